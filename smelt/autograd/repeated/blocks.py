"""Finds the repeated blocks of a torch-level graph: equal layers of a model, each with parameters of its own.

The calls of a graph are in the order in which the program made them, so equal layers are a periodic part of that order.
Where one block ends and the next begins is arbitrary: any period of the calls is a block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.fx import Node
from torch.nn import Parameter

from smelt.autograd.repeated.forms import alike, same_callers
from smelt.base.torch_private import is_view
from smelt.graph.ir.meta import TensorMeta
from smelt.graph.nodes.gradients import DERIVATIVES
from smelt.graph.trace.overlap import overlapping

MIN_BLOCKS = 8
"""Minimum number of blocks for which a graph is traced with fewer of them."""

_TENSORS = (torch.Tensor, Parameter)
"""Classes of a graph's inputs: other classes may carry state of their own."""


@dataclass
class Blocks:
    """The repeated blocks of a graph: block k consists of the `period` calls from `start + k * period`.

    Corresponding calls of two successive blocks are the same operation, at the same line, with the same arguments;
    operands are values of the same block or the block before, inputs of the block, or values that all blocks read.

    Attributes:
        calls: all nodes but inputs and output, in order.
        inputs: the placeholders.
        chains: for each input that a block has for itself, by position in a block: the inputs of successive blocks.
        level: the block that reads an input of `chains` first; less than 0 or at least `count` before and after them.
        end: the calls before this index (and from `start`) are periodic, also beyond the last whole block.
    """

    calls: list[Node]
    inputs: list[Node]
    start: int
    period: int
    count: int
    end: int
    chains: list[list[Node]] = field(default_factory=list)
    level: dict[Node, int] = field(default_factory=dict)
    index: dict[Node, int] = field(default_factory=dict)

    def level_at(self, at: int) -> int:
        """Returns the number of the block of the call with this index."""
        return (at - self.start) // self.period

    def returned_by_block(self, output: Node) -> dict[int, list[int]]:
        """Returns for each block that returns values of its calls the positions of these calls in it, in the order in
        which they are returned.
        """
        found: dict[int, list[int]] = {}
        for value in results_of(output):
            at = self.index.get(value) if isinstance(value, Node) else None
            if at is not None:
                block, position = divmod(at - self.start, self.period)
                found.setdefault(block, []).append(position)
        return found


def find_blocks(gm: fx.GraphModule, examples: Sequence[torch.Tensor]) -> Blocks | None:
    """Returns the repeated blocks of a torch-level graph; None if they are few, or values of many of them are read
    elsewhere.

    Args:
        examples: the graph's inputs.
    """
    nodes = list(gm.graph.nodes)
    inputs = [n for n in nodes if n.op == "placeholder"]
    if len(inputs) != len(examples) or any(_has_symbols(n.meta.get("val")) for n in inputs):
        return None
    if any(type(e) not in _TENSORS or e.layout is not torch.strided or e.is_nested for e in examples):
        return None
    calls = [n for n in nodes if n.op not in ("placeholder", "output")]
    seed = None if _differentiates(calls) else _seed(calls)
    return None if seed is None else _Search(calls, inputs, examples, *seed).run(nodes[-1])


def _differentiates(calls: Sequence[Node]) -> bool:
    """Whether gradients are computed inside of the graph: they differentiate all blocks, wherever they stand."""
    return any(n.target is each for n in calls for each in DERIVATIVES)


def _has_symbols(val: Any) -> bool:
    return val is not None and not isinstance(val, torch.Tensor) and not (type(val) is TensorMeta and not val.symbolic)


def _seed(calls: Sequence[Node]) -> tuple[int, int] | None:
    """Returns the index of a call in the middle of the blocks, and their period; None if there are no blocks.

    A block contains each of the rarest repeated operations once.
    """
    keys = [n.target if isinstance(n.target, str) else id(n.target) for n in calls]
    repeated = [(count, key) for key, count in Counter(keys).items() if count >= MIN_BLOCKS]
    if not repeated:
        return None
    rarest = min(repeated, key=lambda each: each[0])[1]
    at = [i for i, key in enumerate(keys) if key == rarest]
    steps = Counter(b - a for a, b in zip(at, at[1:], strict=False))
    period, count = steps.most_common(1)[0]
    if count + 1 < MIN_BLOCKS:
        return None
    within = [a for a, b in zip(at, at[1:], strict=False) if b - a == period]
    return within[len(within) // 2], period


def results_of(output: Node) -> Sequence[Any]:
    """Returns the results of a graph, given its output node."""
    results = output.args[0]
    return results if isinstance(results, (tuple, list)) else (results,)


class _Search:
    def __init__(
        self, calls: list[Node], inputs: list[Node], examples: Sequence[torch.Tensor], middle: int, period: int
    ) -> None:
        self.calls, self.inputs, self.middle, self.period = calls, inputs, middle, period
        self.index = {node: i for i, node in enumerate(calls)}
        self.example = dict(zip(inputs, examples, strict=True))
        self.examples = examples
        self.next: dict[Node, Node] = {}
        self.previous: dict[Node, Node] = {}
        self.last_read_by_all = -1

    def run(self, output: Node) -> Blocks | None:
        start, last = self.middle, self.middle
        while last + self.period < len(self.calls) and self.corresponds(last):
            last += 1
        while start > 0 and last > self.middle and self.corresponds(start - 1):
            start -= 1
        start = max(start, self.last_read_by_all + 1)
        end = last + self.period
        count = (end - start) // self.period
        if count < MIN_BLOCKS or not self.separate():
            return None
        found = Blocks(self.calls, self.inputs, start, self.period, count, end, index=self.index)
        self.number(found)
        return found if self.is_closed(found, output) else None

    def corresponds(self, at: int) -> bool:
        """Whether a call and the one a period later are corresponding calls of two blocks."""
        one, other = self.calls[at], self.calls[at + self.period]
        if one.op != other.op or not (one.target is other.target or one.op != "call_function"):
            return False
        if one.target != other.target:
            return False
        pairs: list[tuple[Node, Node]] = []
        if not alike(one.args, other.args, pairs) or not alike(one.kwargs, other.kwargs, pairs):
            return False
        mine, its = ({k: v for k, v in node.meta.items() if k != "callers"} for node in (one, other))
        same = alike(mine, its) and same_callers(one.meta.get("callers"), other.meta.get("callers"))
        return same and self.take(at, pairs)

    def take(self, at: int, pairs: Iterable[tuple[Node, Node]]) -> bool:
        """Whether the operands of two calls correspond; records those that are inputs of blocks."""
        following: dict[Node, Node] = {}
        read_by_all = self.last_read_by_all
        for one, other in pairs:
            if one is other:
                read_by_all = max(read_by_all, self.index.get(one, -1))
            elif one in self.index and other in self.index:
                if self.index[other] - self.index[one] != self.period or at - self.index[one] > self.period:
                    return False
            elif one in self.index or other in self.index or not self.may_follow(one, other, following):
                return False
        if read_by_all >= self.middle - self.period:
            return False
        self.last_read_by_all = read_by_all
        self.next |= following
        self.previous |= {other: one for one, other in following.items()}
        return True

    def may_follow(self, one: Node, other: Node, following: dict[Node, Node]) -> bool:
        """Whether the second input may be in its block what the first is in the block before; adds it to
        `following`.
        """
        if self.next.get(one) is other:
            return True
        if one in self.next or other in self.previous or following.get(one, other) is not other:
            return False
        following[one] = other
        return alike(one.meta.get("val"), other.meta.get("val")) and _equal_inputs(
            self.example[one], self.example[other]
        )

    def separate(self) -> bool:
        """Whether no input of a block shares memory with another input."""
        own = {i for i, node in enumerate(self.inputs) if node in self.next or node in self.previous}
        objects = Counter(map(id, self.examples))
        if any(objects[id(self.examples[i])] > 1 for i in own):
            return False
        storages = Counter(each.untyped_storage().data_ptr() for each in self.examples)
        shared = any(storages[self.examples[i].untyped_storage().data_ptr()] > 1 for i in own)
        return not shared and not any(own.intersection(group) for group in overlapping(self.examples))

    def number(self, found: Blocks) -> None:
        for head in [node for node in self.next if node not in self.previous]:
            chain = [head]
            while chain[-1] in self.next:
                chain.append(self.next[chain[-1]])
            readers = [self.index[user] for user in head.users if user in self.index]
            level = (min(readers) - found.start) // found.period if readers else -1
            found.chains.append(chain)
            found.level |= {node: level + k for k, node in enumerate(chain)}

    def is_closed(self, found: Blocks, output: Node) -> bool:
        """Whether only the first and the last block are read from outside of the blocks, and inputs of a block only by
        it and the next one. All blocks may return values of their own, if they return the same ones.
        """
        inner = range(1, found.count - 1)
        for node in [*self.calls[: found.start], *self.calls[found.end :]]:
            if any(self.level_of(found, operand) in inner for operand in node.all_input_nodes):
                return False
        returned = found.returned_by_block(output)
        if any(returned.get(k) != returned.get(1) for k in inner):
            return False
        results = results_of(output)
        for node in output.all_input_nodes:
            if found.level.get(node, -1) in inner or (self.level_of(found, node) in inner and node not in results):
                return False
        return all(
            0 <= found.level_at(self.index[user]) - level <= 1
            for node, level in found.level.items()
            for user in node.users
            if found.start <= self.index.get(user, -1) < found.end
        )

    def level_of(self, found: Blocks, node: Node) -> int:
        """Returns the number of the block of a call or an input."""
        at = self.index.get(node)
        return found.level.get(node, -1) if at is None else found.level_at(at)


def _equal_inputs(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a trace cannot tell two inputs apart, but for their identity."""
    return type(one) is type(other) and one.is_leaf and other.is_leaf and _facts(one) == _facts(other)


def _facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    lazy = tensor.is_conj(), tensor.is_neg(), tensor.is_inference(), is_view(tensor)
    place = tensor.shape, tensor.stride(), tensor.storage_offset()
    return (tensor.dtype, tensor.device, tensor.requires_grad, *lazy, *place)
