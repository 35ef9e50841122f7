"""Backward prim graph in; the backward for calls in which some results were not used out, and when it is made.

A training loop uses the loss and rarely the logits beside it. Their gradients are absent, not zero: eager computes
nothing from them, and zeros would become NaN where a derivative is infinite (that of `sqrt` at 0). Here what an absent
gradient leads to is left out of the graph.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from smelt.base.locks import new_lock
from smelt.graph.ir.meta import TensorMeta
from smelt.graph.ir.module import Graph, GraphModule
from smelt.prims.table import PRIMS, Kind, Prim
from smelt.shapes.size import Size, same

Program = Callable[[list[Any]], list[Any]]

MOST = 8
"""Programs for more than one result that one graph has; further sets of results take the sum of several programs."""


LINEAR_IN = {
    **dict.fromkeys(("pad", "cat", "gather", "index_select", "index", "cumsum"), (0,)),
    **dict.fromkeys(("view_as_real", "view_as_complex", "to_device", "fft_r2c", "fft_c2c", "fft_c2r"), (0,)),
    **dict.fromkeys(("avg_pool2d", "avg_pool3d", "adaptive_avg_pool2d", "im2col", "col2im"), (0,)),
    **dict.fromkeys(("max_unpool2d", "max_unpool3d", "triangular_solve", "cholesky_solve"), (0,)),
    **dict.fromkeys(("solve", "solve_triangular"), (1,)),
    **dict.fromkeys(("slice_scatter",), (0, 1)),
    **dict.fromkeys(("scatter", "scatter_add"), (0, 3)),
    **dict.fromkeys(("index_put", "convolution"), (0, 2)),
    **dict.fromkeys(("where",), (1, 2)),
    "lu_solve": (2,),
    "index_add": (0, 3),
}
"""Positions of operands: where all of them are 0 everywhere, so is the result. Of `..._backward` it is the first."""

PRODUCTS = frozenset({"mm", "bmm", "mv", "dot", "vdot"})
"""Operators of which one operand that is 0 is enough."""


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

    def without(self, absent: tuple[int, ...], count: int) -> list[tuple[tuple[int, ...], Program]]:
        """The programs for calls in which the tangents at these places of the graph are absent, and are not given.

        Each comes with the tangents that are absent for it, of `count`; the gradients are the sum of what they return.
        """
        known = self.programs.get(absent)
        if known is not None:
            return [(absent, known)]
        if len(self.programs) <= MOST or len(absent) >= count - 1:
            return [(absent, self._program(absent))]
        if self.draws:  # each program would draw numbers of its own
            return [((), self)]
        return [(part, self._program(part)) for part in self._parts(absent, count)]

    @functools.cached_property
    def draws(self) -> bool:
        return any(isinstance(n.target, Prim) and n.target.kind is Kind.RANDOM for n in self.graph.graph.nodes)

    def _parts(self, absent: tuple[int, ...], count: int) -> Iterator[tuple[int, ...]]:
        """Sets of absent tangents whose programs are given, together, each of the others once: the fewest first."""
        left = set(range(count)).difference(absent)
        for part in sorted([*self.programs], key=len):
            used = set(range(count)).difference(part)
            if used and used <= left:
                left -= used
                yield part
        for i in sorted(left):
            yield tuple(k for k in range(count) if k != i)

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

    def without(self, absent: tuple[int, ...], count: int) -> list[tuple[tuple[int, ...], Program]]:
        """As that of the backward that this is made of."""
        return [(part, self._given(program)) for part, program in self.backward.without(absent, count)]

    def _given(self, program: Program) -> Program:
        found = self.programs.get(program)
        if found is None:
            found = self.programs[program] = self.given(program)
        return found


def sum_of_gradients(results: Sequence[Sequence[Any]]) -> list[Any]:
    """What several programs return together. Indices of sparse gradients are the same in all of them."""
    first, *others = results
    return [
        value if value is None or not (value.is_floating_point() or value.is_complex()) else sum(more, value)
        for value, *more in zip(first, *others, strict=True)
    ]


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
        self.zeros = set(self.nothing)  # among what has been walked: these, and values that are 0 everywhere
        self.graph = Graph()
        self.env: dict[fx.Node, fx.Node] = {}

    def build(self) -> fx.GraphModule:
        for node in self.gm.graph.nodes:
            if node in self.gone:
                continue
            if node.op == "call_function":
                reduced = self.reduced(node)
                if node in self.nothing or self.is_zero(node):
                    self.zeros.add(node)
                if reduced:
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
        elif self.linear(node):
            self.nothing.add(node)
        elif name in ("add", "sub") and len(empty) == len(node.all_input_nodes) == _tensors(node):
            self.nothing.add(node)
        elif name == "add" or name == "sub" and first not in empty:
            rest = next(x for x in node.args if x not in empty)
            if not isinstance(rest, fx.Node):
                return False
            self.env[node] = self.env[rest]
        else:
            return False
        return True

    def linear(self, node: fx.Node) -> bool:
        """Whether all that a node's result is a linear function of is nothing, or zeros."""
        name, args = _operation(node), node.args
        if name == "getitem":
            return True
        if not args or name == "pad" and args[3:] != (0,):
            return False
        if name in PRODUCTS:
            return self.empty(args[0]) or self.empty(args[1])
        if isinstance(node.target, Prim) and node.target.facts.annihilated_by == (0,):
            return self.empty(args[0])
        places = LINEAR_IN.get(name, (0,) if name.endswith("_backward") else ())
        return bool(places) and all(i < len(args) and self.empty(args[i]) for i in places)

    def is_zero(self, node: fx.Node) -> bool:
        if node.target is operator.getitem:  # only some results of its operand may be
            return False
        return self.empty(node.args[1]) if _operation(node) == "full" else self.linear(node)

    def empty(self, value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return all(map(self.empty, value))
        if isinstance(value, fx.Node):
            return value in self.zeros
        return value is None or (type(value) is not Size and bool(value == 0))

    def value(self, node: fx.Node) -> fx.Node:
        """The node in the new graph; zeros where nothing takes part in an operation that has no rule."""
        if node in self.nothing and node not in self.env:
            meta = node.meta["val"]
            zero = False if meta.dtype is torch.bool else 0.0 if meta.dtype.is_floating_point else 0
            full = self.graph.call_function(PRIMS["full"], (meta.shape, zero, meta.dtype, meta.device))
            full.meta["val"] = PRIMS["full"].meta(*full.args)
            self.env[node] = full
        return self.env[node]


def _operation(node: fx.Node) -> str:
    """The name of a primitive, or of torch's operator where there is none: for complex numbers."""
    match node.target:
        case Prim():
            return node.target.name
        case torch._ops.OpOverload():
            return str(node.target._schema.name).removeprefix("aten::")
    return "getitem" if node.target is operator.getitem else ""


def _tensors(node: fx.Node) -> int:
    return len({x for x in node.args if isinstance(x, fx.Node)})
