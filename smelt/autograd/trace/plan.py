"""The joint graph and the plan of its calls: effects that a caller must see beyond values, as plain data."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import fx

from smelt.graph.ir.gradient_marks import Flow
from smelt.graph.ir.meta import TensorMeta, without_gaps
from smelt.graph.ir.storage_view import Step
from smelt.graph.nodes.custom_functions import BackwardState
from smelt.graph.nodes.invalid_history import copy_of_error
from smelt.shapes.real import Real
from smelt.shapes.size import Symbol

aten = torch.ops.aten


@dataclass(frozen=True)
class Fresh:
    """A user output that is program output `index` itself."""

    index: int


@dataclass(frozen=True)
class SameInput:
    """A user output that is the input object `input`."""

    input: int


class Derived(NamedTuple):
    """A result of a `torch.autograd.Function`: the name of the function, and whether the result is a view."""

    name: str
    is_view: bool


@dataclass(frozen=True)
class View:
    """A user output that is made by view operators at each call.

    Attributes:
        of_input: whether the base is an input (else a program output).
        base: index of the base.
        steps: the view operators to apply, in order.
        history: index of the program output whose autograd history it has instead of the base's, or None. Needed for a
            detached tensor into which a value that requires grad was then written.
        after: further view operators to apply; autograd forbids writes to their results.
        derived: set if the history is that of a `torch.autograd.Function` that returned memory of its argument or of
            another result, without a write.
    """

    of_input: bool
    base: int
    steps: tuple[Step, ...]
    history: int | None = None
    after: tuple[Step, ...] = ()
    derived: Derived | None = None


@dataclass(frozen=True)
class Repeated:
    """A user output that is the same object as user output `output`."""

    output: int


@dataclass(frozen=True)
class Constant:
    """A user output that is not a tensor."""

    value: Any


OutputPlan = Fresh | SameInput | View | Repeated | Constant


@dataclass(frozen=True)
class Mutation:
    """An input that the program writes.

    Attributes:
        input: index of the input.
        grad: whether the write is part of the differentiable computation, so that the new value carries gradients.
        counted: number of writes that the input's version counter sees; writes through `.data` are not counted.
    """

    input: int
    grad: bool
    counted: int = 1


@dataclass(frozen=True)
class SparseGradient:
    """A gradient that is a sparse tensor in eager: each call assembles it from two results of the program.

    Attributes:
        indices, values: positions, among the gradients, of the row indices (1, n) and of the rows' values (n, ...).
        size: shape of the whole gradient.
        but: the row whose entries are left out, or None.
    """

    indices: int
    values: int
    size: tuple[int, ...]
    but: int | None


@dataclass(frozen=True)
class SizeInput:
    """The location of a symbol's value in a call: dimension `dim` of input `input`, or, if `dim` is None, the input, a
    number.
    """

    symbol: Symbol
    input: int
    dim: int | None


class InvalidHistory(NamedTuple):
    """The error that a backward raises (None: the history leads to no primal), and the primals to which the history
    leads.
    """

    error: Exception | None
    origins: tuple[int, ...]


@dataclass(frozen=True)
class CallFacts:
    """Facts about a joint graph that follow from its calls.

    Attributes:
        needed: positions of the primals on whose values the gradients depend.
        computed_from: those of `needed` whose values at the forward matter. The others are read only by the backward,
            with the values that they have when it runs.
        recomputes: whether nodes are inside `torch.utils.checkpoint`, which eager runs twice.
        drawing: the devices on which the graph draws random numbers, in order of first use.
        generators: those of them whose PyTorch generators the graph uses, as eager does.
    """

    needed: frozenset[int]
    computed_from: frozenset[int]
    recomputes: bool
    drawing: tuple[torch.device, ...]
    generators: tuple[torch.device, ...]


@dataclass
class Joint:
    """A functional graph of forward and backward, and the information that a caller needs to run it.

    Graph inputs: the primals, then `seeds`, then one tangent for each of `differentiable`, then one number for each of
    `sizes`; forward and backward programs both take those numbers last. Graph outputs: `num_outputs` program outputs,
    the new values of `mutations`, then the gradients that exist, then the `num_found` numbers that the forward
    computes: those of `reads`, and results of checks that are not used. The forward program returns these last, after
    the saved values; the backward takes the numbers of `reads` after `sizes`.

    Attributes:
        module: the graph. The output node's meta has the TensorMeta that eager would give each output.
        num_primals: number of inputs of the traced function.
        num_outputs: number of program outputs (fresh user outputs and bases of views).
        mutations: written inputs, in the order of their values in the graph's outputs.
        touched: other inputs whose version counter sees a write, to the same memory or of the same values; once for
            each write.
        outputs: for each user output, the plan by which it is made.
        differentiable: positions among program outputs and mutated values that have a tangent.
        gradients: for each primal, the position of its gradient among the gradients, the form in which it is made of
            two, or None.
        seeds: devices on which the graph draws random numbers; each has an input with the seed.
        autocast: device types whose autocast was enabled during the trace, as it is at each call.
        sizes: the symbols of which the graph's sizes consist; their `input` is a position among the call's inputs.
        numbers: positions among the call's inputs that are numbers, with the name of a floating-point one; they are not
            primals.
        reals: floating-point numbers that each call computes; tensors of them are the last primals.
        reads: the symbols whose values only the forward program computes.
        num_found: number of numbers that the forward program returns last.
        states: mutable state that backward methods of the program's own functions have read.
        metas: the value of `output_metas` if the graph's metadata is symbolic and this plan is for given sizes.
        layouts_returned: leaves whose gradients have one layout in eager if `torch.autograd.grad` returns them and
            another if they are accumulated, each with the first of the two.
        facts: facts about the graph's calls, if `module` has only its inputs and the metadata of its results; else
            None: they are found in the graph.
        invalid_histories: program outputs and, with positions after these, mutations (their `grad` is false) that have
            a history and no gradients, with the error that eager raises in backward: a value that their history needs
            was overwritten, or the history begins inside the program.
        flow: the gradients that exist when the gradients of some of several results are absent.
        reached: for each primal with a gradient, the conditions of `flow` under which that gradient exists.
        idle: primals that require grad and have no gradient for any used result.
        cloned: primals of which the program makes a `clone()`: the caller may write to them before the backward.
        unsaved: primals that eager's autograd graph does not save and that are not parameters of a module: the backward
            must not read their memory, which may have been overwritten.
        unsaved_outputs: likewise, program outputs that eager's autograd graph does not save.
        saved_itself: primals that eager saves directly, so that its backward reads the memory that `x.data = y`
            assigns. Of others it saves at most a view (the transposed weight of `linear`), and reads the original
            memory.
        saved_both: the primals of `saved_itself` of which eager also saves a view, of the original memory.
    """

    module: fx.GraphModule
    num_primals: int
    num_outputs: int
    mutations: tuple[Mutation, ...]
    outputs: tuple[OutputPlan, ...]
    differentiable: tuple[int, ...]
    gradients: tuple[int | SparseGradient | None, ...]
    seeds: tuple[torch.device, ...]
    autocast: tuple[str, ...]
    cloned: frozenset[int] = frozenset()
    unsaved: frozenset[int] = frozenset()
    unsaved_outputs: frozenset[int] = frozenset()
    saved_itself: frozenset[int] = frozenset()
    saved_both: frozenset[int] = frozenset()
    touched: tuple[int, ...] = ()
    idle: tuple[int, ...] = ()
    invalid_histories: Mapping[int, InvalidHistory] = field(default_factory=dict)
    flow: Flow | None = None
    reached: Mapping[int, int] = field(default_factory=dict)
    sizes: tuple[SizeInput, ...] = ()
    numbers: Mapping[int, str] = field(default_factory=dict)
    reals: tuple[Real, ...] = ()
    reads: tuple[Symbol, ...] = ()
    num_found: int = 0
    states: tuple[BackwardState, ...] = ()
    metas: tuple[TensorMeta, ...] | None = None
    layouts_returned: Mapping[int, TensorMeta] = field(default_factory=dict)
    facts: CallFacts | None = None

    @property
    def plain(self) -> bool:
        """Whether a call without gradients only returns the results of its forward program."""
        fresh = all(type(o) is Fresh and o.index == i for i, o in enumerate(self.outputs))
        return fresh and not self.mutations and not self.touched and not self.invalid_histories

    @property
    def num_forward(self) -> int:
        """Number of graph outputs that the forward program makes for the caller."""
        return self.num_outputs + len(self.mutations)

    @property
    def output_metas(self) -> tuple[TensorMeta, ...]:
        """Metadata of those graph outputs that are tensors, as eager would return them."""
        if self.metas is not None:
            return self.metas
        metas = self.module.graph.output_node().meta["val"]
        return metas[: len(metas) - self.num_found]

    def tangent_meta(self, output: int) -> TensorMeta:
        """Returns the metadata of the gradient of an output, in the form that the backward takes."""
        return without_gaps(self.output_metas[output])

    def updates(self) -> dict[int, str]:
        """Returns the outputs of the forward that are only the new value of an input, and may be computed in that
        input's memory.

        The result is empty if a number that the graph computes may end the call with an error, because inputs must then
        be unchanged.
        """
        if self.num_found:
            return {}
        names = [node.name for node in self.module.graph.nodes if node.op == "placeholder"]
        return {self.num_outputs + k: names[m.input] for k, m in enumerate(self.mutations) if not m.grad}

    def split_results(self, results: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """Returns `results`, one for each output of the graph, split into those of the forward, gradients, found
        numbers.
        """
        end = len(results) - self.num_found
        return results[: self.num_forward], results[self.num_forward : end], results[end:]


def unreached(joint: Joint, unused: Collection[int]) -> frozenset[int]:
    """Returns the primals whose gradient depends only on tangents that are absent.

    Args:
        unused: positions in `joint.differentiable`.

    Raises:
        Exception: the error of a function of the program that cannot take None as its gradient.
    """
    if joint.flow is None:
        return frozenset()
    present = joint.flow.present(unused)
    error = joint.flow.error(present)
    if error is not None:
        raise copy_of_error(error)
    present_gradients = (i for i, made in enumerate(joint.gradients) if made is not None)
    return frozenset(i for i in present_gradients if not joint.reached.get(i, present) & present)


def recomputes(joint: Joint) -> bool:
    """Whether nodes of the graph are inside `torch.utils.checkpoint`, which eager runs twice."""
    if joint.facts is not None:
        return joint.facts.recomputes
    return any("checkpoint" in node.meta for node in joint.module.graph.nodes)


def needed(joint: Joint) -> frozenset[int]:
    """Returns the positions of the primals on whose values the gradients depend."""
    return joint.facts.needed if joint.facts is not None else _reached(joint, lambda node: False)


def computed_from(joint: Joint) -> frozenset[int]:
    """Returns the positions of the primals of `needed` whose values at the forward matter."""
    if joint.facts is not None:
        return joint.facts.computed_from
    return _reached(joint, lambda node: node.meta.get("as_saved", "?")[0] in ("input", "alias"))


def _reached(joint: Joint, is_end: Callable[[fx.Node], bool]) -> frozenset[int]:
    """Returns the primals on which the gradients depend through nodes for which `is_end` is false; found in one pass
    from the last node.
    """
    graph = joint.module.graph
    output: Any = graph.output_node().args[0]
    seen = {node for node in joint.split_results(output)[1] if isinstance(node, fx.Node)}
    for node in reversed(graph.nodes):
        if node in seen and node.op != "placeholder" and not is_end(node):
            seen.update(_depends_on(node))
    primals = [node for node in graph.nodes if node.op == "placeholder"][: joint.num_primals]
    return frozenset(i for i, node in enumerate(primals) if node in seen)


def _depends_on(node: fx.Node) -> list[fx.Node]:
    """Returns the operands on whose values this node depends. In training, results of batch norm do not depend on the
    old running statistics, apart from the new ones.
    """
    if node.target is operator.getitem and node.args[1] in (3, 4) and _is_batch_norm(node.args[0]):
        return [node.all_input_nodes[0], *node.all_input_nodes[0].all_input_nodes]
    if _is_batch_norm(node):
        return [arg for arg in node.args[:3] if isinstance(arg, fx.Node)]
    return node.all_input_nodes


def _is_batch_norm(node: Any) -> bool:
    target = aten._native_batch_norm_legit_functional.default
    return isinstance(node, fx.Node) and node.target is target and bool(node.args[5])
