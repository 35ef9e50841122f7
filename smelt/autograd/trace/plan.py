"""The joint graph and the plan of its calls: what a caller must see beyond values, as plain data."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import fx

from smelt.graph.ir.gradient_marks import Flow
from smelt.graph.ir.meta import TensorMeta, without_gaps
from smelt.graph.ir.storage_view import Step
from smelt.graph.nodes.custom_functions import BackwardState
from smelt.graph.nodes.invalid_history import once_more
from smelt.shapes.real import Real
from smelt.shapes.size import Symbol


@dataclass(frozen=True)
class Fresh:
    """A user output that is program output `index` itself."""

    index: int


@dataclass(frozen=True)
class SameInput:
    """A user output that is the input object `input`."""

    input: int


class Derived(NamedTuple):
    """What a result that a `torch.autograd.Function` gave says of itself: who made it, and whether it is a view."""

    name: str
    is_view: bool


@dataclass(frozen=True)
class View:
    """A user output that is made by view operators at each call.

    Attributes:
        of_input: the base is an input (else a program output).
        base: index of the base.
        steps: the views to take, in order.
        history: index of the program output whose gradients it takes instead of the base's, or None. So it is for a
            detached tensor that was then written with something that requires grad.
        after: the views to take then, which nobody may write.
        derived: the history is that of a `torch.autograd.Function` which returned memory of its argument, or of
            another result: nothing was written.
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
    """A user output that is no tensor."""

    value: Any


OutputPlan = Fresh | SameInput | View | Repeated | Constant


@dataclass(frozen=True)
class Mutation:
    """An input that the program writes.

    Attributes:
        input: its index.
        grad: the write is part of the differentiable computation, so the new value carries gradients.
        counted: how many writes the input's version counter sees; none through `.data`.
    """

    input: int
    grad: bool
    counted: int = 1


@dataclass(frozen=True)
class SparseGradient:
    """A gradient that eager gives as a sparse tensor: two of the program's results, put together at each call.

    Attributes:
        indices, values: positions among the gradients: of the rows (1, n) and of what each receives (n, ...).
        size: that of the whole gradient.
        but: the row whose entries are left out, or None.
    """

    indices: int
    values: int
    size: tuple[int, ...]
    but: int | None


@dataclass(frozen=True)
class SizeInput:
    """Where a call finds the value of a symbol: dimension `dim` of input `input`, or that input itself, a number."""

    symbol: Symbol
    input: int
    dim: int | None


class InvalidHistory(NamedTuple):
    """What a backward raises (None: the output's history leads to no primal), and the primals that it leads to."""

    error: Exception | None
    origins: tuple[int, ...]


@dataclass
class Joint:
    """A functional graph of forward and backward, and what a caller needs to run it.

    Graph inputs: the primals, then `seeds`, then one tangent for each of `differentiable`, then one number
    for each of `sizes`; forward and backward programs both take those numbers last.
    Graph outputs: `num_outputs` program outputs, the new values of `mutations`, then the gradients that exist, then the
    `num_found` numbers that the graph finds on its way: those of `reads`, and results of checks that nobody needs. The
    forward program returns these last, after what it saves; the backward takes the numbers of `reads` after `sizes`.

    Attributes:
        module: the graph. The output node's meta holds the TensorMeta that eager would give each output.
        num_primals: inputs of the traced function.
        num_outputs: program outputs (fresh user outputs and bases of views).
        mutations: in the order of the values in the graph's outputs.
        touched: other inputs whose version counter sees a write, to the same memory or of the same values; once for
            each write.
        outputs: how each user output is made.
        differentiable: positions among program outputs and mutated values that have a tangent.
        gradients: for each primal the position of its gradient among the gradients, how it is made of two, or None.
        seeds: devices on which the graph draws random numbers; each has an input that they are drawn from.
        autocast: kinds of devices whose autocast regions it was traced inside of, so that calls come from there.
        sizes: the symbols that the graph's sizes are made of; `input` counts the call's inputs.
        numbers: positions among the call's inputs that hold numbers, with the name of a floating-point one; they are
            no primals.
        reals: floating-point numbers that each call computes; tensors of them are the last primals.
        reads: the symbols that only the forward program tells.
        num_found: the numbers that it returns last.
        states: what backward methods of the program's own functions have read.
        metas: what `output_metas` is where the graph's own metadata is symbolic and this plan is for given numbers.
        asked_for: leaves whose gradients have another layout in eager where they are asked for by themselves
            (`torch.autograd.grad`) than where they are accumulated, with the former.
        invalid_histories: program outputs and, counted on from them, mutations (their `grad` is false) that have a
            history and no gradients, with what eager says when somebody asks: a value that their history needs was
            overwritten, or it begins inside of the program.
        flow: of several results with gradients, which may be absent: what is there then.
        reached: for each primal with a gradient the conditions of `flow` under which it has it.
        idle: primals that require grad and have no gradient, whatever result is used.
        cloned: primals that the program calls `clone()` on: the caller may write to them before the backward.
        unsaved: primals that eager's autograd graph does not save, and that are no parameters of a module: the backward
            takes none of them as it is then.
        unsaved_outputs: program outputs that it does not save, likewise.
        saved_itself: primals that it saves by themselves, so that its backward reads what `x.data = y` puts there. Of
            others it saves a view at most (the transposed weight of `linear`), and reads the memory that was there.
        saved_both: those of which it saves a view as well, which is of the memory that was there.
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
    asked_for: Mapping[int, TensorMeta] = field(default_factory=dict)

    @property
    def plain(self) -> bool:
        """Whether a call without gradients returns what its forward program returns, and does nothing else."""
        fresh = all(type(o) is Fresh and o.index == i for i, o in enumerate(self.outputs))
        return fresh and not self.mutations and not self.touched and not self.invalid_histories

    @property
    def num_forward(self) -> int:
        """Graph outputs that the forward program makes for the caller."""
        return self.num_outputs + len(self.mutations)

    @property
    def output_metas(self) -> tuple[TensorMeta, ...]:
        """Metadata of the graph's outputs as eager would return them; of tensors only."""
        if self.metas is not None:
            return self.metas
        metas = self.module.graph.output_node().meta["val"]
        return metas[: len(metas) - self.num_found]

    def tangent_meta(self, output: int) -> TensorMeta:
        """What the backward takes as the gradient of an output."""
        return without_gaps(self.output_metas[output])

    def updates(self) -> dict[int, str]:
        """Outputs of the forward that are nothing but the new value of an input, which they may be written over.

        Not where a number that the graph finds may end the call: its inputs must then be as they were.
        """
        if self.num_found:
            return {}
        names = [node.name for node in self.module.graph.nodes if node.op == "placeholder"]
        return {self.num_outputs + k: names[m.input] for k, m in enumerate(self.mutations) if not m.grad}

    def split_results(self, results: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """`results`, one for each output of the graph, split into: of the forward, gradients, numbers that it found."""
        end = len(results) - self.num_found
        return results[: self.num_forward], results[self.num_forward : end], results[end:]


def unreached(joint: Joint, unused: Collection[int]) -> frozenset[int]:
    """The primals whose gradient comes from tangents, but only from such as nobody gave.

    Args:
        unused: positions in `joint.differentiable`.

    Raises:
        Exception: what a function of the program raises where it is given None for these.
    """
    if joint.flow is None:
        return frozenset()
    present = joint.flow.present(unused)
    error = joint.flow.error(present)
    if error is not None:
        raise once_more(error)
    given = (i for i, made in enumerate(joint.gradients) if made is not None)
    return frozenset(i for i in given if not joint.reached.get(i, present) & present)
