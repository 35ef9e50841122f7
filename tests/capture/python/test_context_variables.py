"""smelt/capture/python/context_variables.py: read with a guard, set for the time of a region."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest
import torch

import smelt
from smelt.base.errors import Unsupported
from tests.capture.harness import check, compiled

SCALE: ContextVar[float] = ContextVar("scale", default=2.0)
X = torch.ones(2, 3)


@contextlib.contextmanager
def scaled(by: float) -> Iterator[None]:
    token = SCALE.set(by * SCALE.get())
    try:
        yield
    finally:
        SCALE.reset(token)


def nested(x: torch.Tensor) -> Any:
    seen = [SCALE.get()]
    with scaled(3.0):
        x = x * SCALE.get()
        with scaled(5.0):
            x = x + SCALE.get()
        seen.append(SCALE.get())
    return x, seen, SCALE.get()


def test_set_for_the_time_of_a_region() -> None:
    check(nested, X)
    run = compiled(nested, fullgraph=True)
    run(X)
    before = smelt.stats()["graphs"]
    run(X)
    assert smelt.stats()["graphs"] == before
    token = SCALE.set(7.0)
    try:
        assert torch.equal(run(X)[0], nested(X)[0]) and run(X)[1:] == nested(X)[1:]
    finally:
        SCALE.reset(token)


def test_reset_by_an_exception() -> None:
    def fn(x: torch.Tensor) -> Any:
        try:
            with scaled(3.0):
                raise KeyError(SCALE.get())
        except KeyError as error:
            return x * SCALE.get(), error.args

    check(fn, X)


def test_a_break_inside_the_region() -> None:
    def fn(x: torch.Tensor) -> Any:
        y = x + 1
        with scaled(3.0):
            smelt.graph_break()
            y = y * SCALE.get()
        return y * SCALE.get()

    run = compiled(fn)
    assert torch.equal(run(X), fn(X)) and torch.equal(run(X), fn(X))
    assert SCALE.get() == 2.0


def test_context_variable_left_set_is_set_after_the_call() -> None:
    def fn(x: torch.Tensor) -> Any:
        y = x + 1
        token = SCALE.set(4.0)
        return y * SCALE.get(), token

    out, token = compiled(fn)(X)
    assert torch.equal(out, (X + 1) * 4) and SCALE.get() == 4.0
    SCALE.reset(token)
    assert SCALE.get() == 2.0
    with pytest.raises(Unsupported, match="scale is still set"):
        compiled(fn, fullgraph=True)(X)
