"""Variables live on behind a graph break where the program may still ask for them by name."""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Callable
from inspect import stack
from typing import Any

import pytest
import torch
from torch import Tensor

from smelt.capture.compiled import compile_callable
from smelt.capture.core import liveness
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


def _stack(x: Tensor) -> Any:
    a = x * 3  # noqa: F841
    torch._dynamo.graph_break()
    return sorted(inspect.stack(0)[0].frame.f_locals)


def _stack_alone(x: Tensor) -> Any:
    a = x * 3  # noqa: F841
    torch._dynamo.graph_break()
    return sorted(stack(0)[0].frame.f_locals)


def _builtin(x: Tensor) -> Any:
    a = x * 3  # noqa: F841
    torch._dynamo.graph_break()
    return sorted(builtins.locals())


ASKING = (
    *(_eval, _exec, _locals, _vars, _dir, _dir_after, _frame, _current, _within, _changed),
    *(_stack, _stack_alone, _builtin),
)


@pytest.mark.parametrize("f", ASKING, ids=lambda f: f.__name__)
def test_variables_that_are_asked_for_by_name(f: Callable[[Tensor], Any]) -> None:
    want, run = f(torch.ones(2)), compiled(f)
    for _ in range(2):
        assert same(want, run(torch.ones(2)))


class Projecting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = torch.nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        a = x.sin()
        b = self.query(a)
        torch._dynamo.graph_break()
        return b


def _stacking(x: Tensor) -> Tensor:
    a = x.sin()
    b = torch.stack([a, a.cos()])
    torch._dynamo.graph_break()
    return b


def _tracing(x: Tensor) -> Tensor:
    a = x.outer(x)
    b = a.trace() + torch.trace(a)
    torch._dynamo.graph_break()
    return b


@pytest.mark.parametrize("make", [Projecting, lambda: _stacking, lambda: _tracing], ids=["query", "stack", "trace"])
def test_names_that_others_have_too_keep_no_variables(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """`a` is no result of the first graph: nobody can ask for it."""
    not_loaded = {f"{library}, not loaded": names for library, names in liveness._LOOKING_METHODS.items()}
    monkeypatch.setattr(liveness, "_LOOKING_METHODS", not_loaded)
    counts = []

    def backend(gm: Any, inputs: Any, report: Any, options: Any) -> Callable[..., Any]:
        counts.append(len(list(gm.graph.nodes)[-1].args[0]))
        return gm.forward  # type: ignore[no-any-return]

    compile_callable(make(), backend)(torch.ones(2))
    assert counts[0] == 1
