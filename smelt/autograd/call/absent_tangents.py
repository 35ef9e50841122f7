"""Compiles, on demand, the backward programs for calls in which the gradients of some results are absent.

A training loop uses the loss that a model returns, and rarely the logits that it returns as well. The gradient of the
logits is then absent, not zero: eager computes nothing from it, and a gradient of zeros would become NaN where a
derivative is infinite (that of `sqrt` at 0). This module prunes the graph: it removes nodes that depend only on absent
gradients.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from smelt.base.locks import new_lock
from smelt.base.process_state import preserving
from smelt.base.torch_private import OpOverload, schema_of
from smelt.graph.ir.gradient_marks import Chosen, GradientMark, Materialized, flow_of
from smelt.graph.ir.meta import TensorMeta, inverse, memory_order
from smelt.graph.ir.module import Graph, GraphModule, remove_dead
from smelt.prims.table import NO_FACTS, PRIMS, Kind, Prim
from smelt.shapes.size import Size, same, same_all

Program = Callable[[list[Any]], list[Any]]

MAX_PROGRAMS = 8
"""Maximum number of programs of one graph that take several tangents. For any other set of absent tangents, several
programs run and their gradients are added.
"""


LINEAR_IN = {"index_add": (0, 3)}
"""Argument positions, as in `Facts.linear_in`, of ATen operators that are not primitives. Every `..._backward` is
linear in its first argument.
"""

PRODUCTS = frozenset({"mv", "dot", "vdot"})
"""Names of ATen operators that are not primitives and whose result is 0 if one operand is 0."""


class Backward:
    """The backward program for calls with all gradients; `without` returns the programs for calls in which some are
    absent.

    Args:
        graph: the backward graph, with gradient marks (`graph.ir.gradient_marks`).
        make: compiles a backward graph.
        programs: programs that are already compiled, by the positions of the absent tangents, which they do not take.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        make: Callable[[fx.GraphModule], Program],
        programs: Mapping[tuple[int, ...], Program] | None = None,
    ) -> None:
        self.graph, self.make = graph, make
        self.programs = dict(programs or {})
        self.lock = new_lock()

    def __call__(self, inputs: list[Any]) -> list[Any]:
        return self._program(())(inputs)

    def compile(self) -> None:
        """Compile the program for calls with all gradients."""
        self._program(())

    def without(self, absent: tuple[int, ...], count: int) -> list[tuple[tuple[int, ...], Program]]:
        """Returns the programs for calls in which the tangents at the positions `absent` (of `count` in the graph) are
        absent.

        Returns:
            (absent tangents, program) pairs: a program does not take its absent tangents. The gradients are the sums of
            the results of all programs.
        """
        known = self.programs.get(absent)
        if known is not None:
            return [(absent, known)]
        if len(self.programs) <= MAX_PROGRAMS or len(absent) >= count - 1 or self.affine:
            return [(absent, self._program(absent))]
        if self.draws:  # each program would draw different random numbers
            return [((), self)]
        return [(subset, self._program(subset)) for subset in subsets(self.programs, absent, count)]

    def reads(self, absent: tuple[int, ...], count: int) -> frozenset[int] | None:
        """Returns the positions of the saved values that the programs of `without(absent, count)` read."""
        return frozenset().union(*(self._read(subset) for subset, _ in self.without(absent, count)))

    def _read(self, absent: tuple[int, ...]) -> frozenset[int]:
        inputs = [n for n in without_tangents(self.graph, absent).graph.nodes if n.op == "placeholder"]
        saved = itertools.takewhile(lambda n: not n.name.startswith("tangents_"), inputs)
        return frozenset(k for k, node in enumerate(saved) if node.users)

    @functools.cached_property
    def draws(self) -> bool:
        return any(map(_draws, self.graph.graph.nodes))

    @functools.cached_property
    def affine(self) -> bool:
        """Whether gradients may be affine instead of linear in the tangents, so that results of several programs cannot
        be added.

        A `torch.autograd.Function` of the user may return nonzero gradients even if all gradients that it gets are
        zeros or None.
        """
        return any(isinstance(n.target, (Materialized, Chosen)) for n in self.graph.graph.nodes)

    def _program(self, absent: tuple[int, ...]) -> Program:
        known = self.programs.get(absent)
        return known if known is not None else preserving(self._made, absent)  # an interrupt leaves no lock locked

    def _made(self, absent: tuple[int, ...]) -> Program:
        with self.lock:
            if absent not in self.programs:
                self.programs[absent] = self.make(without_tangents(self.graph, absent))
        return self.programs[absent]


def subsets(known: Iterable[tuple[int, ...]], absent: tuple[int, ...], count: int) -> Iterator[tuple[int, ...]]:
    """Yields sets of absent tangents such that each tangent that is not in `absent` is taken by exactly one of their
    programs.

    Args:
        known: sets that have a program. The smallest ones are chosen first; each remaining tangent gets a set that
            leaves only this tangent.
        absent, count: see `Backward.without`.
    """
    left = set(range(count)).difference(absent)
    for subset in sorted([*known], key=len):
        used = set(range(count)).difference(subset)
        if used and used <= left:
            left -= used
            yield subset
    for i in sorted(left):
        yield tuple(k for k in range(count) if k != i)


class GivenBackward:
    """A `Backward` whose programs get additional inputs, such as the values of symbols: each program is replaced by
    `wrap(program)`.
    """

    def __init__(self, backward: Backward, wrap: Callable[[Program], Program]) -> None:
        self.backward, self.wrap, self.wrapped = backward, wrap, wrap(backward)
        self.programs: dict[Program, Program] = {}

    def __call__(self, inputs: list[Any]) -> list[Any]:
        return self.wrapped(inputs)

    def without(self, absent: tuple[int, ...], count: int) -> list[tuple[tuple[int, ...], Program]]:
        """Returns the result of `Backward.without`, with each program wrapped."""
        return [(subset, self._wrapped(program)) for subset, program in self.backward.without(absent, count)]

    def reads(self, absent: tuple[int, ...], count: int) -> frozenset[int] | None:
        """Returns the result of `Backward.reads`, unchanged: additional inputs come after the saved values and do not
        change their positions.
        """
        return self.backward.reads(absent, count)

    def _wrapped(self, program: Program) -> Program:
        found = self.programs.get(program)
        if found is None:
            found = self.programs[program] = self.wrap(program)
        return found


def sum_of_gradients(results: Sequence[Sequence[Any]]) -> list[Any]:
    """Returns the sums of the gradients that several programs returned. Indices of sparse gradients, which are equal in
    all of them, are not added.
    """
    first, *others = results
    return [
        value if value is None or not (value.is_floating_point() or value.is_complex()) else sum(more, value)
        for value, *more in zip(first, *others, strict=True)
    ]


def likely_backward(
    gm: fx.GraphModule, metas: Sequence[TensorMeta], some: bool = False
) -> tuple[fx.GraphModule | None, tuple[int, ...]]:
    """Returns the backward graph that a training step is likely to run, and the positions of the tangents that it does
    not take.

    If exactly one of several results is a single number, it is assumed to be the loss: only its backward is compiled in
    advance, other backwards are compiled when they are first needed. Otherwise it is unknown which results will be
    used, and no backward is compiled in advance.

    Args:
        metas: the metadata of the graph's tangents.
        some: whether to return a backward in any case: if no loss is found, the one that takes all gradients.
    """
    if len(metas) == 1:
        return without_tangents(gm, ()), ()
    numbers = [i for i, meta in enumerate(metas) if same(meta.numel, 1)]
    if len(numbers) != 1:
        return without_tangents(gm, ()) if some else None, ()
    absent = tuple(i for i in range(len(metas)) if i not in numbers)
    return without_tangents(gm, absent), absent


def without_tangents(gm: fx.GraphModule, absent: Sequence[int]) -> fx.GraphModule:
    """Returns the graph without some of its tangents (the inputs `tangents_...`, counted by `absent`) and without the
    nodes that depend only on these.

    Gradient marks are resolved, because their values depend on which tangents are absent. A user's function whose
    backward raises gets no gradients in the graph: a call that reaches it has raised its error before
    (`plan.unreached`).
    """
    return _Without(gm, absent).build() if absent or flow_of(gm.graph) is not None else gm


class _Without:
    def __init__(self, gm: fx.GraphModule, absent: Sequence[int]) -> None:
        self.gm = gm
        tangents = [n for n in gm.graph.nodes if n.op == "placeholder" and n.name.startswith("tangents_")]
        flow = flow_of(gm.graph)
        self.of_prims = any(isinstance(n.target, Prim) for n in gm.graph.nodes)
        self.present = 0 if flow is None else flow.present(absent)
        self.nothing: set[fx.Node] = {tangents[i] for i in absent}
        self.gone = set(self.nothing)
        self.zeros = set(self.nothing)  # contains absent nodes and nodes whose value is 0 everywhere
        self.graph = Graph()
        self.env: dict[fx.Node, fx.Node] = {}

    def build(self) -> fx.GraphModule:
        for node in self.gm.graph.nodes:
            if node in self.gone:
                continue
            if isinstance(node.target, GradientMark):
                self.resolve(node, node.target)
                continue
            if node.op == "call_function":
                reduced = self.reduced(node)
                if node in self.nothing or self.is_zero(node):
                    self.zeros.add(node)
                if reduced:
                    continue
            for operand in node.all_input_nodes:
                self.value(operand)  # zeros are inserted before their reader, also before the output
            self.env[node] = self.graph.node_copy(node, self.value)
            if node.op == "output":
                self.env[node].meta["val"] = node.meta["val"]
        remove_dead(self.graph)
        return GraphModule(self.gm, self.graph)

    def resolve(self, node: fx.Node, mark: GradientMark) -> None:
        """Set the value of a gradient mark for calls in which these gradients are absent."""
        value: Any = node.args[0]
        if isinstance(mark, Chosen):
            pattern = mark.choice.pattern(self.present)
            value = None if pattern is None else node.args[pattern]
        if value is None or value in self.nothing or not mark.mask & self.present:
            self.nothing.add(node)
            if isinstance(mark, Materialized):
                self.value(node)
                self.nothing.discard(node)
            else:
                self.zeros.add(node)
            return
        self.env[node] = self.env[value]
        if value in self.zeros:
            self.zeros.add(node)

    def reduced(self, node: fx.Node) -> bool:
        """Whether a node becomes absent, or is replaced by one of its operands."""
        empty = [n for n in node.all_input_nodes if n in self.nothing]
        name = node.target.name if isinstance(node.target, Prim) else ""
        if not empty:
            return False
        if isinstance(node.target, Prim) and any(node.args[i] in empty for i in node.target.facts.annihilated_by):
            self.nothing.add(node)
        elif self.linear(node):
            self.nothing.add(node)
        elif name in ("add", "sub") and len(empty) == len(node.all_input_nodes) == _tensors(node):
            self.nothing.add(node)
        else:
            return self.rest_of_sum(node, name, empty)
        return True

    def rest_of_sum(self, node: fx.Node, name: str, empty: Sequence[fx.Node]) -> bool:
        """Whether a sum or a difference is replaced by one operand, since the other is absent."""
        if not (name == "add" or name == "sub" and node.args[0] not in empty) or node.kwargs:
            return False
        rest = next(x for x in node.args if x not in empty)
        if not isinstance(rest, fx.Node) or not _like(self.env[rest], node):
            return False
        self.env[node] = self.env[rest]
        return True

    def linear(self, node: fx.Node) -> bool:
        """Whether all operands in which a node is linear are absent or zero, so that its result is zero."""
        name, args = _operation(node), node.args
        if name == "getitem":
            return True
        if not args:
            return False
        facts = PRIMS[name].facts if name in PRIMS else NO_FACTS  # ATen operators are named like primitives
        if facts.matmul or name in PRODUCTS:
            return self.empty(args[0]) or self.empty(args[1])
        if isinstance(node.target, Prim) and facts.annihilated_by == (0,):
            return self.empty(args[0])
        positions = facts.linear_in or LINEAR_IN.get(name, (0,) if name.endswith("_backward") else ())
        return bool(positions) and all(i < len(args) and self.empty(args[i]) for i in positions)

    def is_zero(self, node: fx.Node) -> bool:
        if node.target is operator.getitem:  # only some results of its operand may be absent
            return False
        return self.empty(node.args[1]) if _operation(node) == "full" else self.linear(node)

    def empty(self, value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return all(map(self.empty, value))
        if isinstance(value, fx.Node):
            return value in self.zeros
        return value is None or (type(value) is not Size and bool(value == 0))

    def value(self, node: fx.Node) -> fx.Node:
        """Returns the node in the new graph; zeros for an absent operand of an operation that has no rule for absent
        operands.
        """
        if node in self.nothing and node not in self.env:
            self.env[node] = self.made(node.meta["val"])
        return self.env[node]

    def made(self, meta: TensorMeta) -> fx.Node:
        """Returns zeros in the layout of `node`, which they replace: the recorded strides of readers follow from that
        layout.
        """
        order, repeated = _memory(meta)
        shape = tuple(1 if d in repeated else meta.shape[d] for d in order)
        zero = False if meta.dtype is torch.bool else 0.0 if meta.dtype.is_floating_point else 0
        if self.of_prims:
            zeros = self.graph.call_function(PRIMS["full"], (shape, zero, meta.dtype, meta.device))
        else:
            options: dict[str, Any] = {"dtype": meta.dtype, "device": meta.device}
            zeros = self.graph.call_function(torch.ops.aten.full.default, ([*shape], zero), options)
        zeros.meta["val"] = PRIMS["full"].meta(shape, zero, meta.dtype, meta.device)
        if order != [*range(meta.ndim)]:
            zeros = self.view("permute", torch.ops.aten.permute.default, zeros, inverse(order))
        if repeated:
            zeros = self.view("broadcast_in_dim", torch.ops.aten.expand.default, zeros, meta.shape, range(meta.ndim))
        return zeros

    def view(self, name: str, operator_of_torch: Any, value: fx.Node, *args: Sequence[Any]) -> fx.Node:
        prim, parameters = PRIMS[name], [tuple(arg) for arg in args]
        if self.of_prims:
            node = self.graph.call_function(prim, (value, *parameters))
        else:
            node = self.graph.call_function(operator_of_torch, (value, [*parameters[0]]))
        node.meta["val"] = prim.meta(value.meta["val"], *parameters)
        return node


def _memory(meta: TensorMeta) -> tuple[list[int], set[int]]:
    """Returns (dimensions from the outermost to the innermost in memory, dimensions of stride 0); for a layout with
    gaps, (all dimensions in order, none).
    """
    repeated = {d for d in range(meta.ndim) if type(meta.stride[d]) is int and meta.stride[d] == 0}
    kept = [d for d in range(meta.ndim) if d not in repeated]
    reduced = replace(meta, shape=tuple(meta.shape[d] for d in kept), stride=tuple(meta.stride[d] for d in kept))
    order = memory_order(reduced)
    if order is None:
        return [*range(meta.ndim)], set()
    return [kept[i] for i in order] + sorted(repeated), repeated


def _operation(node: fx.Node) -> str:
    """Returns the name of a node's primitive, or of its ATen operator (complex values have no primitives)."""
    match node.target:
        case Prim():
            return node.target.name
        case OpOverload():
            return str(schema_of(node.target).name).removeprefix("aten::")
    return "getitem" if node.target is operator.getitem else ""


def _like(one: fx.Node, other: fx.Node) -> bool:
    """Whether one value can replace the other: dtype, shape and strides are equal. The recorded strides of readers
    depend on them."""
    a, b = one.meta["val"], other.meta["val"]
    same_form = a.dtype is b.dtype and len(a.shape) == len(b.shape) and same_all(a.shape, b.shape)
    return same_form and same_all(a.stride, b.stride)


def _draws(node: fx.Node) -> bool:
    return node.target.kind is Kind.RANDOM if isinstance(node.target, Prim) else bool(node.meta.get("random"))


def _tensors(node: fx.Node) -> int:
    return len({x for x in node.args if isinstance(x, fx.Node)})
