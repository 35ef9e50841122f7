"""Functions that look at the variables of the frames that called them see those of the program, and no others."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.capture.harness import compiled


def variables() -> Any:
    frame = sys._getframe(1)
    return sorted(frame.f_locals), frame.f_code.co_name


def variables_by_inspect() -> Any:
    frame: Any = inspect.currentframe()
    return sorted(frame.f_back.f_locals)


def outermost() -> Any:
    frame: Any = sys._getframe(1)
    found = []
    while frame is not None and frame.f_code.co_name not in ("compiled", "outcome"):
        found.append((frame.f_code.co_name, sorted(frame.f_locals)))
        frame = frame.f_back
    return found


def values() -> Any:
    return {name: str(value) for name, value in sys._getframe(1).f_locals.items()}


def called(t: Tensor) -> Any:
    a = 3
    y = t + a
    found = variables()
    return y * 2, found


def called_twice(t: Tensor) -> Any:
    y = t + 1
    first = variables()
    t = y * 2
    second = variables()
    return t, first, second


def called_inside(t: Tensor) -> Any:
    a = 3

    def inner() -> Any:
        return variables(), variables_by_inspect()

    return t + a, inner()


def called_by_c(t: Tensor) -> Any:
    y = t + 1
    found: list[Any] = []
    sorted([2, 1], key=lambda v: found.append(outermost()) or v)
    return y, found


def nested(t: Tensor) -> Any:
    y = t + 1

    def inner(q: Tensor) -> Any:
        q = q * 2
        return q, outermost()

    return inner(y)


def shown(t: Tensor) -> Any:
    a = 3
    y = t + a
    return y, values()


def of_a_traceback(t: Tensor) -> Any:
    y = t + 1
    try:
        raise ValueError(1)
    except ValueError as error:
        entry: Any = error.__traceback__
        return y, sorted(entry.tb_frame.f_locals)


PROGRAMS = [called, called_twice, called_inside, called_by_c, nested, shown, of_a_traceback]


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_they_are_those_of_the_program(fn: Callable[..., Any]) -> None:
    x, fast = torch.arange(4.0), compiled(fn)
    for _ in range(3):
        assert outcome(fast, x) == outcome(fn, x)


def outcome(fn: Callable[..., Any], x: Tensor) -> str:
    return str(fn(x))
