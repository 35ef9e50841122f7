"""Operators that raise for values out of a range, and a node that does only that: for those whose result nobody uses.

Eager runs an operator for its result and so checks its operands. A graph leaves out what nobody uses, but must raise
the same: capture keeps such calls (`capture/closing`), and a joint graph gets an `in_range` node in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._ops import OpOverload

from smelt.base.faults import (
    NEGATIVE_DEVIATION,
    NO_PROBABILITY,
    NOT_IN_UNIT,
    OUT_OF_RANGE,
    TARGET_NOT_IN_UNIT,
    fault_error,
)
from smelt.graph.functional_form import check_form
from smelt.graph.meta import TensorMeta
from smelt.shapes.size import same

aten = torch.ops.aten


class Range(NamedTuple):
    """What an operator expects of the values of one operand.

    Attributes:
        low, high: the least and the largest value; None: there is none.
        ignored: a value that is never looked at.
        fault: what eager raises (`base.faults`).
        waits: on a GPU eager looks before it begins, so that nothing is lost; elsewhere a kernel asserts.
    """

    operand: fx.Node
    low: Any
    high: Any
    fault: int
    ignored: int | None = None
    waits: bool = False


Rule = Callable[[Sequence[Any]], Iterator[Range]]


def _shape(node: fx.Node) -> tuple[Any, ...]:
    return node.meta["val"].shape or (1,)


def _at(dim: int | None, place: int) -> Rule:
    """The operand at `place` holds places along dimension `args[dim]` of the first (of its first where dim is None)."""

    def rule(args: Sequence[Any]) -> Iterator[Range]:
        shape = _shape(args[0])
        yield Range(args[place], 0, shape[0 if dim is None else args[dim] % len(shape)] - 1, OUT_OF_RANGE)

    return rule


def _indices(args: Sequence[Any]) -> Iterator[Range]:
    at, waits = 0, len(args) > 3 and bool(args[3])
    for index in args[1]:
        if index is not None and index.meta["val"].dtype in (torch.bool, torch.uint8):
            at += len(index.meta["val"].shape)
            continue
        if index is not None:
            size = args[0].meta["val"].shape[at]
            yield Range(index, -size, size - 1, OUT_OF_RANGE, None, waits)
        at += 1


def _take(args: Sequence[Any]) -> Iterator[Range]:
    size = args[0].meta["val"].numel
    yield Range(args[1], -size, size - 1, OUT_OF_RANGE)


def _classes(args: Sequence[Any]) -> Iterator[Range]:
    shape = _shape(args[0])
    yield Range(args[1], 0, shape[1 if len(shape) > 1 else 0] - 1, OUT_OF_RANGE, args[4])


def _cross_entropy(args: Sequence[Any]) -> Iterator[Range]:
    yield Range(args[0], 0.0, 1.0, NOT_IN_UNIT)
    yield Range(args[1], 0.0, 1.0, TARGET_NOT_IN_UNIT)


def _bernoulli(args: Sequence[Any]) -> Iterator[Range]:
    yield Range(args[0], 0.0, 1.0, NO_PROBABILITY)


def _normal(args: Sequence[Any]) -> Iterator[Range]:
    yield Range(args[1], 0.0, None, NEGATIVE_DEVIATION, None, True)


_RULES: dict[OpOverload, Rule] = {
    aten.index.Tensor: _indices,
    aten.index_put.default: _indices,
    aten.embedding.default: _at(None, 1),
    aten.take.default: _take,
    **dict.fromkeys(
        (aten.gather.default, aten.index_select.default, aten.scatter.src, aten.scatter.value, aten.scatter_add.default,
         aten.index_add.default, aten.index_copy.default),
        _at(1, 2),
    ),
    aten.nll_loss_forward.default: _classes,
    aten.nll_loss2d_forward.default: _classes,
    aten.binary_cross_entropy.default: _cross_entropy,
    aten.bernoulli.default: _bernoulli,
    aten.normal.Tensor_Tensor: _normal,
    aten.normal.float_Tensor: _normal,
}  # fmt: skip


def looks_at_values(func: OpOverload) -> bool:
    """Whether the operator raises for some values of its operands."""
    return func in _RULES


def ranges_of(func: OpOverload, args: Sequence[Any]) -> Iterator[Range]:
    """What an operator expects of its operands."""
    return _RULES[func](args)


def checks_of_dead(graph: fx.Graph, live: Callable[[], set[fx.Node]]) -> Iterable[Range]:
    """The ranges that nodes outside of `live()` expect; not of a backward, whose forward has checked."""
    found = [n for n in graph.nodes if n.target in _RULES and not _of_derivative(n)]
    if not found:
        return
    used, seen = live(), set()
    for node in found:
        if node in used:
            continue
        for each in ranges_of(node.target, node.args):
            val = each.operand.meta["val"]
            if each not in seen and not any(same(n, 0) for n in val.shape):
                seen.add(each)
                yield each


def waits(node: fx.Node) -> bool:
    """Whether eager waits for the GPU at this operator, to look at values before it begins: a compiled program does so,
    too, since a check in a kernel ends the context."""
    if node.target not in _RULES or _of_derivative(node):
        return False
    looks = any(each.waits for each in ranges_of(node.target, node.args))
    return looks and _on_gpu(node.meta["val"].device)


def _of_derivative(node: fx.Node) -> bool:
    """Its places are those of a forward, which has looked: the gradient of `x[i]` puts where that was read."""
    return bool(node.meta.get("backward")) or "derivative" in node.meta


def _on_gpu(device: torch.device) -> bool:
    return device.type == "cuda"


def _in_range(x: torch.Tensor, low: Any, high: Any, ignored: int | None, fault: int, waits: bool) -> torch.Tensor:
    if waits:
        return _ends_in_range(x, low, high, fault)
    wrong = torch.zeros_like(x, dtype=torch.bool)
    if low is not None:
        wrong |= ~(x >= low)
    if high is not None:
        wrong |= ~(x <= high)
    if ignored is not None:
        wrong &= x != ignored
    if wrong.any():
        raise fault_error(fault)
    return wrong.any()


def _ends_in_range(x: torch.Tensor, low: Any, high: Any, fault: int) -> torch.Tensor:
    """Of the least and the largest element, with one wait for each, as in eager; a NaN is both."""
    ends = torch.aminmax(x) if x.numel() else None
    for end, inside in ((0, lambda least: least >= low), (1, lambda largest: largest <= high)):
        if ends is not None and (low, high)[end] is not None and not inside(ends[end].item()):
            raise fault_error(fault)
    return x.new_zeros((), dtype=torch.bool)


IN_RANGE = check_form("in_range", "Tensor x, Scalar? low, Scalar? high, int? ignored, int fault, bool waits", _in_range)
"""A bool without dimensions, False; raises for values out of range. `waits`: the processor looks, no kernel does."""


def check_node(emit: Callable[..., fx.Node], each: Range) -> fx.Node:
    """The node that raises for values out of this range."""
    val = TensorMeta((), torch.bool, (), each.operand.meta["val"].device)
    first = each.waits and _on_gpu(val.device)
    return emit(IN_RANGE, (each.operand, each.low, each.high, each.ignored, each.fault, first), {}, val)
