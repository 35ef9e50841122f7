"""What looks at the frame that runs it: tracebacks, `eval`, the call stack. The frame then goes on as it is."""

from __future__ import annotations

import inspect
import logging
import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.capture.harness import compiled, same


def formatted(x: Tensor) -> Any:
    try:
        raise ValueError("q")
    except ValueError:
        return x + 1, traceback.format_exc()


def of_a_callee(x: Tensor) -> Any:
    def fails(n: int) -> None:
        if n:
            fails(n - 1)
        [1, 2][n + 5]

    y = x * 2
    try:
        fails(2)
    except IndexError as error:
        return (
            y + 1,
            traceback.format_exc(),
            error.__traceback__ is not None,
            len(traceback.extract_tb(sys.exc_info()[2])),
        )


def twice(x: Tensor) -> Any:
    texts = []
    for name in ("a", "b"):
        try:
            {"c": x}[name]
        except KeyError as error:
            texts.append((name, traceback.format_exception(error)))
    return x + len(texts), texts


def with_a_cause(x: Tensor) -> Any:
    try:
        try:
            x = x / 0 + [][0]
        except IndexError as error:
            raise ValueError("outer") from error
    except ValueError:
        lines = traceback.format_exc().splitlines()
        return x + 1, [line for line in lines if line.strip("~^ ")]  # of an error that led to another, no columns


class Seen(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


LOGGER = logging.getLogger("in_frame")
LOGGER.propagate = False
HANDLER = Seen()
LOGGER.addHandler(HANDLER)


def logged(x: Tensor) -> Any:
    HANDLER.texts.clear()
    try:
        [][1]
    except IndexError:
        LOGGER.exception("failed")
    return x + 1, list(HANDLER.texts)


class Suppressing:
    def __init__(self) -> None:
        self.had: Any = None

    def __enter__(self) -> Suppressing:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self.had = kind, trace is not None
        return True


def leaves_a_with(x: Tensor) -> Any:
    with Suppressing() as manager:
        raise ValueError("inside")
    return x + 1, manager.had


def evaluates(x: Tensor) -> Any:
    y, k = x * 2, 3  # noqa: F841
    return eval("y + k") + x


def executes(x: Tensor) -> Any:
    k = 2
    scope = {"k": k, "x": x}
    exec("z = x * k", scope)
    return scope["z"] + k


def evaluates_in_a_callee(x: Tensor) -> Any:
    return evaluates(x + 1) * 2


def evaluates_in_a_loop(x: Tensor) -> Any:
    for i in range(3):  # noqa: B007
        x = x + eval("i * 2")
    return x, vars()["i"], sorted(vars())


def knows_its_frame(x: Tensor) -> Any:
    y = x + 1
    here = inspect.currentframe()
    assert here is not None
    return y, here.f_code.co_name, sorted(here.f_locals), sys._getframe().f_code.co_name


PROGRAMS: list[Callable[[Tensor], Any]] = [
    formatted,
    of_a_callee,
    twice,
    with_a_cause,
    logged,
    leaves_a_with,
    evaluates,
    executes,
    evaluates_in_a_callee,
    evaluates_in_a_loop,
    knows_its_frame,
]


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_as_in_eager(fn: Callable[[Tensor], Any]) -> None:
    run = compiled(fn)
    for _ in range(3):
        assert same(fn(torch.ones(2)), run(torch.ones(2)))


class Noting:
    def __enter__(self) -> Noting:
        return self

    def __exit__(self, *error: Any) -> None:
        self.error = error


RAISED_AGAIN = ValueError("an object from outside")


@pytest.mark.parametrize("look", ["exit", "except"])
def test_an_exception_from_outside_has_a_traceback_where_it_was_raised(look: str) -> None:
    def function(x: torch.Tensor) -> Any:
        y = x + 1
        try:
            with Noting() as noting:
                raise RAISED_AGAIN
        except ValueError as error:
            found = noting.error[2] if look == "exit" else error.__traceback__
            return y * 2, found is None

    run = compiled(function)
    for _ in range(2):
        RAISED_AGAIN.__traceback__ = None
        assert run(torch.ones(2))[1] is False
