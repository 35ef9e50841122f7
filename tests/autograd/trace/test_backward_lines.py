"""smelt/autograd/trace/backward_lines.py: what a backward computes knows its line of the forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import smelt
from smelt import driver


def lines_of_backward(monkeypatch: pytest.MonkeyPatch, fn: Any, *inputs: torch.Tensor) -> dict[str, set[int]]:
    """For each operation of the forward, the lines of what the backward computes for it, from the top of `fn`."""
    found: dict[str, set[int]] = {}
    inner: Any = getattr(fn, "__wrapped__", fn)

    def note(part: Any, options: Any, report: Any, name: str, updates: Any = None) -> Any:
        for node in part.graph.nodes:
            if "of" in node.meta:
                line = int(str(node.meta["line"]).rpartition(":")[2]) - inner.__code__.co_firstlineno
                found.setdefault(node.meta["of"], set()).add(line)
        return render(part, options, report, name, updates)

    render = driver.render_part
    monkeypatch.setattr(driver, "render_part", note)
    out = smelt.compile(fn)(*inputs)
    if out.requires_grad:
        out.backward()
    return found


def chain(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    z = y * y
    if z.dim() > 1:
        z = z.flatten()
    w = z.exp()
    return w.mean()


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_lines(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
    found = lines_of_backward(monkeypatch, chain, torch.randn(shape, requires_grad=True))
    assert found["sin"] == {1} and found["mul"] == {2} and found["exp"] == {5} and found["mean"] == {6}


def test_a_backward_inside_of_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        y = (x.sin() * 3).sum()
        (g,) = torch.autograd.grad(y, x)
        return g

    assert lines_of_backward(monkeypatch, whole, torch.randn(3))["sin"] == {2}


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 2


def test_functions_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        y = Twice.apply(y)
        return y.sum()

    found = lines_of_backward(monkeypatch, fn, torch.randn(3, requires_grad=True))
    assert {2} in found.values() and found["sin"] == {1}
