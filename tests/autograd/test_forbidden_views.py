"""Views whose memory is written behind them, and of which autograd makes no new history: whoever uses them is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt


def _taken_without_gradients(v: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return v[:2]


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "chunk": lambda v: v.chunk(2)[0],
    "split": lambda v: v.split([1, 3])[1],
    "unbind": lambda v: v.unbind(1)[2],
    "part of a chunk": lambda v: v.chunk(2)[0][1:],
    "without gradients": _taken_without_gradients,
    "usual": lambda v: v[:2],
    "a copy": lambda v: v.chunk(2)[0].clone(),
}
WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "added": lambda v: v.add_(1),
    "multiplied": lambda v: v.mul_(v.detach()),
    "a row": lambda v: v[0].fill_(3),
}


def _outcomes(run: Callable[..., Any]) -> list[Any]:
    """Of each result, whether it has a history, and its gradient or what autograd says."""
    leaf = torch.linspace(-1, 2, 16).view(4, 4).requires_grad_()
    found: list[Any] = []
    for out in run(leaf * 1):
        found.append((out.requires_grad, out.detach()))
        try:
            found.append(torch.autograd.grad(out.sin().sum(), leaf, retain_graph=True)[0])
        except RuntimeError as error:
            found.append(str(error)[:90])
    return found


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("view", VIEWS)
def test_as_in_eager(view: str, write: str, beside: bool) -> None:
    """`beside`: what was written is a result as well."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        v = x * 2
        part = VIEWS[view](v)
        WRITES[write](v)
        return (part, v) if beside else (part,)

    compiled = smelt.compile(f, backend="aot_eager")
    for _ in range(2):
        got, want = _outcomes(compiled), _outcomes(f)
        for made, right in zip(got, want, strict=True):
            assert type(made) is type(right) and (not isinstance(right, str) or made == right)
            if not isinstance(right, str):
                torch.testing.assert_close(made, right)


@pytest.mark.parametrize("write", [None, "before", "behind", "base"])
@pytest.mark.parametrize("beside", [False, True])
def test_a_backward_inside_of_the_function(beside: bool, write: str | None) -> None:
    """`write`: what is written, before or behind the backward; `beside`: what the view shows is a result as well."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        with torch.no_grad():
            part = y[1:]
            if write == "before":
                part.mul_(3)
        (y * x).sum().backward()
        with torch.no_grad():
            if write in ("behind", "base"):
                (part if write == "behind" else y).mul_(3)
        return (part, y) if beside else (part,)

    refused = "created in no_grad mode" if write else "not have been used"
    found = []
    for run in (f, smelt.compile(f)):
        leaf = torch.linspace(-1, 2, 16).view(4, 4).requires_grad_()
        part, *base = run(leaf)
        with pytest.raises(RuntimeError, match=refused):
            torch.autograd.grad(part.sin().sum(), leaf)
        for y in base:
            with pytest.raises(RuntimeError, match="second time"):
                torch.autograd.grad(y.sin().sum(), leaf)
        found.append((part.requires_grad, part.detach(), *[y.detach() for y in base], leaf.grad))
    torch.testing.assert_close(found[1], found[0])
