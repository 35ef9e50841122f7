"""Variables live on behind a graph break where the program may still ask for them by name."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.capture.harness import compiled, same


def _eval(x: Tensor) -> Any:
    a, b = 1, x + 1  # noqa: F841
    print(end="", flush=True)
    torch._dynamo.graph_break()
    return eval("a + b")


def _exec(x: Tensor) -> Any:
    a, out = x * 2, {}  # type: ignore[var-annotated]  # noqa: F841
    torch._dynamo.graph_break()
    exec("out['a'] = a")
    return out


def _locals(x: Tensor) -> Any:
    a, b = 1, x + 1  # noqa: F841
    torch._dynamo.graph_break()
    return locals()


def _vars(x: Tensor) -> Any:
    a = x * 3  # noqa: F841
    torch._dynamo.graph_break()
    return dict(vars())


def _dir(x: Tensor) -> Any:
    a = x * 3  # noqa: F841
    return dir(), x


def _dir_after(x: Tensor) -> Any:
    a = x * 3  # noqa: F841
    torch._dynamo.graph_break()
    return dir(), x


def _frame(x: Tensor) -> Any:
    a = x * 3  # noqa: F841
    torch._dynamo.graph_break()
    return sorted(sys._getframe().f_locals)


def _current(x: Tensor) -> Any:
    a = x * 3  # noqa: F841
    torch._dynamo.graph_break()
    return sorted(inspect.currentframe().f_locals)  # type: ignore[union-attr]


def _within(x: Tensor) -> Any:
    def inner() -> Any:
        a = x * 2  # noqa: F841
        torch._dynamo.graph_break()
        return eval("a")

    return inner() + 1


def _changed(x: Tensor) -> Any:
    a = 1
    torch._dynamo.graph_break()
    a = x.sum()  # type: ignore[assignment]  # noqa: F841
    torch._dynamo.graph_break()
    return eval("a")


@pytest.mark.parametrize(
    "f", [_eval, _exec, _locals, _vars, _dir, _dir_after, _frame, _current, _within, _changed], ids=lambda f: f.__name__
)
def test_variables_that_are_asked_for_by_name(f: Callable[[Tensor], Any]) -> None:
    want, run = f(torch.ones(2)), compiled(f)
    for _ in range(2):
        assert same(want, run(torch.ones(2)))
