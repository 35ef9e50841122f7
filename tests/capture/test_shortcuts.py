"""Questions about many tensors that C answers where it can: a yes is Python's yes, and Python is not asked for it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from smelt.capture import _native as native
from smelt.capture.guards.calibrate import calibrate, describe
from smelt.capture.guards.questions import no_hooks, share_no_memory
from smelt.capture.tensors.step_counts import _Equal


@pytest.fixture(autouse=True)
def calibrated() -> None:
    calibrate()


class VersionGuards:
    """A question to Python that counts how often it is put."""

    def __init__(self, fn: Callable[..., bool]) -> None:
        self.fn, self.count = fn, 0

    def __call__(self, *args: Any) -> bool:
        self.count += 1
        return self.fn(*args)


def ask(fn: Callable[..., bool], shortcut: int, *tensors: torch.Tensor) -> tuple[bool, bool]:
    """(the answer, whether Python was asked)"""
    asked, count = VersionGuards(fn), len(tensors)
    checks = [(i, native.TENSOR, native.TensorSpec(t)) for i, t in enumerate(tensors)]
    checks.append((count - 1, native.PYTHON, (asked, tuple(range(count)), shortcut)))
    guards = native.Guards([(-1, native.LOCAL, i) for i in range(count)], checks, [])
    answers = {guards.check(tensors, {}) is not None for _ in range(3)}
    assert len(answers) == 1
    return answers.pop(), asked.count > 0


def apart(*tensors: torch.Tensor) -> tuple[bool, bool]:
    return ask(share_no_memory, native.SHORT_DISJOINT, *tensors)


def same(*tensors: torch.Tensor) -> tuple[bool, bool]:
    return ask(_Equal(), native.SHORT_EQUAL_NUMBERS, *tensors)


def hookless(*tensors: torch.Tensor) -> tuple[bool, bool]:
    return ask(no_hooks, native.SHORT_NO_HOOKS, *tensors)


def test_tensors_apart() -> None:
    base = torch.zeros(6, 4)
    assert apart(torch.zeros(3), torch.zeros(2, 2), torch.zeros(()), torch.zeros(0, 3)) == (True, False)
    assert apart(base[3:], torch.zeros(5, dtype=torch.int8), base[:3]) == (True, False)
    assert apart(base[3:], base[:4]) == (False, True)
    assert apart(base, base) == (False, True)
    assert apart(base.t(), base[5, 3:]) == (False, True)
    assert apart(base[:, 0].expand(4, 6), base[5, 1:]) == (True, False)


def test_tensors_apart_are_those_of_python() -> None:
    rng, base = random.Random(0), torch.zeros(400)
    for _ in range(300):
        views = []
        for _ in range(rng.randint(2, 4)):
            size, step = rng.choice([(1,), (7,), (2, 3), (4, 1, 2), (0, 2)]), rng.randint(0, 3)
            strides = tuple(step * 5 // (i + 1) for i in range(len(size)))
            views.append(base.as_strided(size, strides, rng.randint(0, 300)))
        answer, asked = apart(*views)
        assert answer == share_no_memory(*views) and asked == (not answer)


def test_memory_that_moves_is_seen() -> None:
    a, b = torch.zeros(4), torch.zeros(4)
    asked = VersionGuards(share_no_memory)
    guards = native.Guards(
        [(-1, native.LOCAL, 0), (-1, native.LOCAL, 1)],
        [
            (0, native.TENSOR, native.TensorSpec(a)),
            (1, native.TENSOR, native.TensorSpec(b)),
            (1, native.PYTHON, (asked, (0, 1), native.SHORT_DISJOINT)),
        ],
        [],
    )
    assert guards.check((a, b), {}) is not None and guards.check((b, a), {}) is not None and not asked.count
    a.set_(b)  # type: ignore[call-overload]
    assert guards.check((a, b), {}) is None and asked.count


def test_equal_numbers() -> None:
    def one(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.tensor(value, dtype=dtype)

    assert same(one(2.0), one(2.0), one(2.0, torch.float64)) == (True, False)
    assert same(one(2.0), torch.tensor([1.0, 2.0])[1:]) == (True, False)
    assert same(one(2.0), one(3.0)) == (False, True)
    assert same(one(float("nan")), one(float("nan"))) == (False, True)
    assert same(one(2, torch.int64), one(2, torch.int64)) == (True, True)
    assert same(torch._neg_view(one(2.0)), one(-2.0)) == (True, True)


def test_no_hooks() -> None:
    parameter, other = torch.nn.Parameter(torch.zeros(2)), torch.zeros(3, requires_grad=True)
    assert hookless(parameter, other) == (True, False)
    handle = parameter.register_hook(lambda gradient: None)
    assert hookless(parameter, other) == (False, True)
    handle.remove()
    assert hookless(parameter, other) == (True, False)
    parameter.register_post_accumulate_grad_hook(lambda parameter: None)
    assert hookless(other, parameter) == (False, True)


def test_python_answers_where_memory_cannot_be_read() -> None:
    try:
        native.set_tensor_layout(torch.Tensor, describe, None)
        assert apart(torch.zeros(2), torch.zeros(2)) == (True, True)
    finally:
        native.set_tensor_layout(torch.Tensor, describe, calibrate().tensors)
    assert apart(torch.zeros(2), torch.zeros(2).to_sparse().to_dense().as_subclass(Subclass)) == (True, False)


class Subclass(torch.Tensor):
    pass
