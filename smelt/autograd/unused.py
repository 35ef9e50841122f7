"""Backward prim graph in; the backward for calls in which some results were not used out, and when it is made.

A training loop uses the loss and rarely the logits beside it. Their gradients are absent, not zero: eager computes
nothing from them, and zeros would become NaN where a derivative is infinite (that of `sqrt` at 0). Here what an absent
gradient leads to is left out of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from smelt.base.locks import new_lock
from smelt.graph.meta import TensorMeta
from smelt.graph.module import Graph, GraphModule
from smelt.prims.table import PRIMS, Prim
from smelt.shapes.size import same

Program = Callable[[list[Any]], list[Any]]

MOST = 8
"""Such programs that one graph has; in further calls absent gradients are zeros."""


class Backward:
    """The backward program; `without(absent)` is the one for calls without some of its gradients.

    Args:
        graph: of the program.
        absent, program: the one that is compiled already, and which gradients it is not given.
        make: compiles the graph of another one.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        absent: tuple[int, ...],
        program: Program,
        make: Callable[[fx.GraphModule], Program],
    ) -> None:
        self.graph, self.make = graph, make
        self.programs = {absent: program}
        self.lock = new_lock()

    def __call__(self, inputs: list[Any]) -> list[Any]:
        return self._program(())(inputs)

    def without(self, absent: tuple[int, ...]) -> Program | None:
        """The program for calls in which the tangents at these places of the graph are absent, and are not given.

        None where there are too many already.
        """
        known = self.programs.get(absent)
        if known is not None:
            return known
        return self._program(absent) if len(self.programs) <= MOST else None

    def _program(self, absent: tuple[int, ...]) -> Program:
        known = self.programs.get(absent)
        if known is not None:
            return known
        with self.lock:
            if absent not in self.programs:
                self.programs[absent] = self.make(without_tangents(self.graph, absent) if absent else self.graph)
        return self.programs[absent]


class GivenBackward:
    """The same with more inputs, such as the values of symbols: each program becomes `given(program)`."""

    def __init__(self, backward: Backward, given: Callable[[Program], Program]) -> None:
        self.backward, self.given, self.whole = backward, given, given(backward)
        self.programs: dict[Program, Program] = {}

    def __call__(self, inputs: list[Any]) -> list[Any]:
        return self.whole(inputs)

    def without(self, absent: tuple[int, ...]) -> Program | None:
        """As that of the backward that this is made of."""
        program = self.backward.without(absent)
        if program is None:
            return None
        found = self.programs.get(program)
        if found is None:
            found = self.programs[program] = self.given(program)
        return found


def likely_backward(gm: fx.GraphModule, metas: Sequence[TensorMeta]) -> tuple[fx.GraphModule, tuple[int, ...]]:
    """The backward that a training step is likely to run, and the places of the tangents that it is not given.

    Where one number is returned with other results, it is the loss, and nobody asks for gradients of the others: the
    backward with them is compiled once somebody does.

    Args:
        metas: of the graph's tangents.
    """
    numbers = [i for i, meta in enumerate(metas) if same(meta.numel, 1)]
    absent = tuple(i for i in range(len(metas)) if i not in numbers)
    if len(numbers) != 1 or not absent:
        return gm, ()
    return without_tangents(gm, absent), absent


def without_tangents(gm: fx.GraphModule, absent: Sequence[int]) -> fx.GraphModule:
    """The graph without these of its inputs called `tangents_...`, by their place among them, and what they lead to."""
    return _Without(gm, absent).build()


class _Without:
    def __init__(self, gm: fx.GraphModule, absent: Sequence[int]) -> None:
        self.gm = gm
        tangents = [n for n in gm.graph.nodes if n.op == "placeholder" and n.name.startswith("tangents_")]
        self.nothing: set[fx.Node] = {tangents[i] for i in absent}
        self.gone = set(self.nothing)
        self.graph = Graph()
        self.env: dict[fx.Node, fx.Node] = {}

    def build(self) -> fx.GraphModule:
        for node in self.gm.graph.nodes:
            if node in self.gone:
                continue
            if node.op == "call_function" and self.reduced(node):
                continue
            for operand in node.all_input_nodes:
                self.value(operand)  # zeros come before what reads them, also before the output
            self.env[node] = self.graph.node_copy(node, self.value)
            if node.op == "output":
                self.env[node].meta["val"] = node.meta["val"]
        for node in reversed(list(self.graph.nodes)):
            if node.op == "call_function" and not node.users and isinstance(node.target, Prim):
                self.graph.erase_node(node)
        return GraphModule(self.gm, self.graph)

    def reduced(self, node: fx.Node) -> bool:
        """Whether nothing, or one of its operands, stands for a node."""
        empty = [n for n in node.all_input_nodes if n in self.nothing]
        name = node.target.name if isinstance(node.target, Prim) else ""
        if not empty:
            return False
        first = node.args[0] if node.args else None
        if isinstance(node.target, Prim) and any(node.args[i] in empty for i in node.target.facts.annihilated_by):
            self.nothing.add(node)
        elif name in ("add", "sub") and len(empty) == len(node.all_input_nodes) == _tensors(node):
            self.nothing.add(node)
        elif name == "where" and all(x in self.nothing or _is_zero(x) for x in node.args[1:]):
            self.nothing.add(node)
        elif name == "add" or name == "sub" and first not in empty:
            rest = next(x for x in node.args if x not in empty)
            if not isinstance(rest, fx.Node):
                return False
            self.env[node] = self.env[rest]
        else:
            return False
        return True

    def value(self, node: fx.Node) -> fx.Node:
        """The node in the new graph; zeros where nothing takes part in an operation that has no rule."""
        if node in self.nothing and node not in self.env:
            meta = node.meta["val"]
            zero = False if meta.dtype is torch.bool else 0.0 if meta.dtype.is_floating_point else 0
            full = self.graph.call_function(PRIMS["full"], (meta.shape, zero, meta.dtype, meta.device))
            full.meta["val"] = PRIMS["full"].meta(*full.args)
            self.env[node] = full
        return self.env[node]


def _tensors(node: fx.Node) -> int:
    return len({x for x in node.args if isinstance(x, fx.Node)})


def _is_zero(value: Any) -> bool:
    return not isinstance(value, fx.Node) and value == 0
