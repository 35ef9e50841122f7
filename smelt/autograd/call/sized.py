"""Calls of a graph with symbolic sizes: the values of symbols are read from the inputs and substituted into its plan.

One plan is made for each set of values. Calls with these values then run like those of a graph with static sizes.
"""

from __future__ import annotations

import dataclasses
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from smelt.autograd.call.absent_tangents import Backward, GivenBackward
from smelt.autograd.trace.plan import Joint, SizeInput, SparseGradient, View
from smelt.graph.ir.meta import TensorMeta
from smelt.graph.ir.storage_view import Step
from smelt.shapes.real import evaluate_real
from smelt.shapes.size import Size, Symbol, evaluate

Program = Callable[[list[Any]], list[torch.Tensor]]
Compiled = Callable[..., tuple[Any, ...]]
Wrap = Callable[[Joint, Program, Program | None], Compiled]

LIMIT = 256
"""Maximum number of cached plans. Each plan is small and takes microseconds to make."""


def wrap_sized(joint: Joint, forward: Program, backward: Program | None, wrap: Wrap) -> Compiled:
    """Returns the callable of a graph whose programs take the values of the symbols in `joint.sizes` after their
    tensors.
    """
    plans: dict[tuple[int, ...], Compiled] = {}
    read, tensors = _reader(joint.sizes), _chooser(joint)

    def call(*inputs: Any) -> tuple[Any, ...]:
        values = read(inputs)
        plan = plans.get(values)
        if plan is None:
            if len(plans) >= LIMIT:
                plans.clear()
            plan = plans[values] = _plan(joint, forward, backward, wrap, values)
        if not joint.numbers and not joint.reals:
            return plan(*inputs)
        return plan(*tensors(inputs), *_reals(joint, inputs, values))

    return call


def wrap_reading(
    joint: Joint, forward: Program, backward: Program | None, wrap: Wrap, below: Callable[[Joint, Program], Program]
) -> Compiled:
    """Returns the callable of a graph whose forward computes the values of some symbols.

    The forward program runs first; after it all values are known that the plan of the call needs.

    Args:
        below: function that wraps a program so that it runs below autograd.
    """
    plans: dict[tuple[int, ...], Compiled] = {}
    programs: dict[tuple[int, ...], Program] = {}
    read, choose = _reader(joint.sizes), _chooser(joint)
    as_computed = joint.plain and (backward is None or not joint.differentiable)
    if as_computed and not (joint.sizes or joint.numbers or joint.reals):
        return _as_computed(joint, below(joint, forward))
    waiting = threading.local()

    def finished(inputs: list[Any]) -> list[torch.Tensor]:
        results, waiting.results = waiting.results, None
        return results

    def call(*inputs: Any) -> tuple[Any, ...]:
        values = read(inputs)
        tensors = [*choose(inputs), *_reals(joint, inputs, values)]
        program = programs.get(values)
        if program is None:
            if len(programs) >= LIMIT:
                programs.clear()
            program = programs[values] = below(joint, _given(forward, values))
        results = program([*tensors])
        found = len(results) - joint.num_found
        if as_computed:  # such results need no plan, whatever the sizes
            return tuple(results[:found])
        values += tuple(map(int, results[found : found + len(joint.reads)]))
        del results[found:]
        plan = plans.get(values)
        if plan is None:
            if len(plans) >= LIMIT:
                plans.clear()
                programs.clear()
            numbers = dict(zip([*(s.symbol for s in joint.sizes), *joint.reads], values, strict=True))
            fixed = dataclasses.replace(in_numbers(joint, numbers), seeds=())
            plan = plans[values] = wrap(fixed, finished, backward and _backward_given(backward, values))
        waiting.results = results
        return plan(*tensors)

    return call


def _as_computed(joint: Joint, program: Program) -> Compiled:
    """Returns the callable of a graph without gradients that returns the results of its forward program unchanged, and
    whose inputs have known sizes.
    """
    count, found = joint.num_primals, joint.num_found

    def call(*inputs: Any) -> tuple[Any, ...]:
        results = program([*inputs[:count]])
        return tuple(results[: len(results) - found])

    return call


def _reals(joint: Joint, inputs: Sequence[Any], values: tuple[int, ...]) -> list[torch.Tensor]:
    """Returns the floating-point numbers of a call as tensors."""
    if not joint.reals:
        return []
    numbers: dict[Any, Any] = {each.symbol: value for each, value in zip(joint.sizes, values, strict=True)}
    numbers |= {name: inputs[i] for i, name in joint.numbers.items() if name}
    return [torch.tensor(evaluate_real(real, numbers), dtype=torch.float64, device="cpu") for real in joint.reals]


def _reader(sizes: Sequence[SizeInput]) -> Callable[[Sequence[Any]], tuple[int, ...]]:
    where = [(s.input, s.dim) for s in sizes]

    def read(inputs: Sequence[Any]) -> tuple[int, ...]:
        return tuple([inputs[i] if dim is None else inputs[i].shape[dim] for i, dim in where])

    return read


def _chooser(joint: Joint) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Returns a function that selects the tensors among a call's inputs. It is written in C, because a whole training
    step has hundreds of inputs.
    """
    count = joint.num_primals - len(joint.reals) + len(joint.numbers)
    positions = [i for i in range(count) if i not in joint.numbers]
    if len(positions) > 1:
        return operator.itemgetter(*positions)
    return lambda inputs: [inputs[i] for i in positions]


def _plan(joint: Joint, forward: Program, backward: Program | None, wrap: Wrap, values: tuple[int, ...]) -> Compiled:
    numbers = {each.symbol: value for each, value in zip(joint.sizes, values, strict=True)}
    return wrap(in_numbers(joint, numbers), _given(forward, values), backward and _backward_given(backward, values))


def _given(program: Program, values: tuple[int, ...]) -> Program:
    def run(inputs: list[Any]) -> list[torch.Tensor]:
        inputs.extend(values)
        return program(inputs)

    return run


def _backward_given(backward: Program, values: tuple[int, ...]) -> Program:
    if isinstance(backward, Backward):
        return GivenBackward(backward, lambda program: _given(program, values))
    return _given(backward, values)


def in_numbers(joint: Joint, numbers: Mapping[Symbol, int]) -> Joint:
    """Returns the plan with numbers substituted for its symbols."""

    def fixed(value: Any) -> Any:
        match value:
            case Size():
                return evaluate(value, numbers)
            case TensorMeta():
                return meta_in_numbers(value, numbers)
            case Step():
                step = Step(value.op, fixed(value.args), fixed(value.kwargs), value.index)
                step.grad, step.data = value.grad, value.data
                return step
            case View():
                return dataclasses.replace(value, steps=fixed(value.steps), after=fixed(value.after))
            case SparseGradient():
                return dataclasses.replace(value, size=fixed(value.size))
            case tuple() | list():
                return type(value)(map(fixed, value))
            case dict():
                return {key: fixed(item) for key, item in value.items()}
        return value

    return dataclasses.replace(
        joint,
        outputs=fixed(joint.outputs),
        gradients=fixed(joint.gradients),
        layouts_returned=fixed(joint.layouts_returned),
        metas=fixed(joint.output_metas),
        sizes=(),
        numbers={},
        reals=(),
        reads=(),
        num_found=0,
    )


def meta_in_numbers(meta: TensorMeta, numbers: Mapping[Symbol, int]) -> TensorMeta:
    """Returns metadata with numbers substituted for symbolic sizes."""
    if not meta.symbolic:
        return meta
    shape, stride = (tuple(evaluate(n, numbers) for n in sizes) for sizes in (meta.shape, meta.stride))
    if 0 in shape:  # strides are computed with 1 for sizes of 0
        ones = {symbol: n or 1 for symbol, n in numbers.items()}
        stride = tuple(step or evaluate(n, ones) for step, n in zip(stride, meta.stride, strict=True))
    return dataclasses.replace(meta, shape=shape, stride=stride)
