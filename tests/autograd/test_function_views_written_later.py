"""Views that a `torch.autograd.Function` returned, of memory that is written afterwards: eager forbids their use."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import smelt


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return -g


class AsItIs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return -g


def of_an_argument(h: Any, f: Any) -> Any:
    r = f(h)
    h.add_(1)
    return r


def of_a_value(w: Any, f: Any) -> Any:
    h = w * 2
    r = f(h)
    h.add_(1)
    return r


def beside_what_was_written(w: Any, f: Any) -> Any:
    h = w * 2
    r = f(h)
    h.add_(1)
    return r, h


def a_part(w: Any, f: Any) -> Any:
    h = w * 2
    r = f(h)[1:]
    h.add_(1)
    return r, h


def written_before(w: Any, f: Any) -> Any:
    h = w * 2
    h.add_(1)
    return f(h), h


def seen(program: Any, f: Any, used: int) -> Any:
    """Values, who requires gradients, who shares memory, and what a backward that uses one result says."""
    w = torch.arange(3.0).requires_grad_()
    found = program(w * 1, f)
    results = found if isinstance(found, tuple) else (found,)
    one = results[used % len(results)]
    facts: list[Any] = [(r.requires_grad, r.detach().tolist(), r.data_ptr() - results[-1].data_ptr()) for r in results]
    try:
        one.sum().backward()
        facts.append(w.grad)
    except RuntimeError as error:
        facts.append(str(error))
    return facts


PROGRAMS = [of_an_argument, of_a_value, beside_what_was_written, a_part, written_before]


@pytest.mark.parametrize("used", [0, 1])
@pytest.mark.parametrize("function", [Reversed, AsItIs])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("backend", ["aot_eager", "smelt"])
def test_its_use_raises_as_in_eager(backend: str, program: Any, function: Any, used: int) -> None:
    run = smelt.compile(program, backend=backend)
    for _ in range(2):
        assert str(seen(run, function.apply, used)) == str(seen(program, function.apply, used))
