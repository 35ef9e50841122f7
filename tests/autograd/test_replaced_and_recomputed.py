"""Other memory in an input's place (`p.data = q`), where the graph reads what was there as well: each read is eager's.

A `checkpoint` call reads its inputs once more when the backward runs, views that eager saves are of the memory that was
there, and what was computed of a parameter of a module is what it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import smelt


def _again(fn: Callable[..., Any], *args: Any) -> Any:
    return checkpoint(fn, *args, use_reentrant=False)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "one layer outside and inside": lambda x, p: F.linear(x, p).tanh() + _again(lambda a: F.linear(a, p).sin(), x),
    "as an argument": lambda x, p: F.linear(x, p).tanh() + _again(lambda a, q: F.linear(a, q).sin(), x, p),
    "a view outside": lambda x, p: F.linear(x, p).tanh() + _again(lambda a: (a @ p).sin(), x),
    "computed of it": lambda x, p: _again(lambda a: (p.exp() * a).sin(), x) * 2,
    "computed of it twice": lambda x, p: _again(lambda a: (p.exp() * a).sin(), x) * p.exp(),
    "parts of it": lambda x, p: _again(lambda a: (p[0] * a).sin(), x) * p[1],
    "two calls": lambda x, p: _again(lambda a: (a @ p).sin(), x) + _again(lambda a: F.linear(a, p).cos(), x),
    "a call in a call": lambda x, p: (
        _again(lambda a: _again(lambda b: F.linear(b, p).sin(), a) * (a @ p), x) + F.linear(x, p).tanh()
    ),
    "draws in a call": lambda x, p: _again(lambda a: F.dropout((a @ p).sin(), 0.5), x) + F.linear(x, p).tanh(),
    "draws": lambda x, p: F.dropout(F.linear(x, p).tanh(), 0.5) + (p * p).sum(),
    "another call": lambda x, p: _again(lambda a: a.sin().exp(), F.linear(x, p).tanh()) + (p * p).sum(),
    "its exponential and itself": lambda x, p: (p.exp() * x).sin() * p,
}


def _writing(x: torch.Tensor, p: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    out = F.linear(x, p).tanh() + (p * p).sum()
    count.add_(out.detach())
    return out


PROGRAMS["writes"] = lambda x, p: _writing(x, p, torch.ones(6, 6))


def _gradients(run: Callable[..., Any], module: bool, replace: Callable[..., None], *more: torch.Tensor) -> Any:
    x = torch.randn(6, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    p = torch.randn(6, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()
    if module:
        p = torch.nn.Parameter(p.detach())
    torch.manual_seed(2)
    first, second = run(x, p, *more), run(x * 2, p, *more)
    replace(p, x)
    (first * torch.arange(36.0).view(6, 6)).sum().backward()
    (second * 3).sum().backward()
    return x.grad, p.grad, *more


def _other(p: torch.Tensor, x: torch.Tensor) -> None:
    p.data = torch.full_like(p, 0.7)


def _both(p: torch.Tensor, x: torch.Tensor) -> None:
    p.data = (torch.arange(36.0).view(6, 6) / 20).t()
    x.data = torch.full_like(x, 0.5)


@pytest.mark.parametrize("module", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_read_is_of_the_memory_that_eager_reads(name: str, module: bool) -> None:
    fn = PROGRAMS[name]
    compiled = smelt.compile(fn, options={"eager_rng": True})
    for replace in (_other, _both):
        torch.testing.assert_close(
            _gradients(compiled, module, replace), _gradients(fn, module, replace), rtol=1e-4, atol=1e-4
        )


def test_a_written_input_beside_one_that_is_read_twice() -> None:
    compiled = smelt.compile(_writing)
    found = [_gradients(run, False, _other, torch.ones(6, 6)) for run in (_writing, compiled)]
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


def test_insides_of_a_call_are_computed_again_where_they_are_read() -> None:
    """One after the other, so that of all calls one's values are there at a time."""

    def fn(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = _again(lambda a: (a @ p).sin().exp(), x)
        return x.sum()

    x, p = torch.randn(6, 6, requires_grad=True), torch.randn(6, 6, requires_grad=True)
    kept: list[tuple[int, ...]] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = smelt.compile(fn)(x, p)
    assert len(kept) <= 5  # p now and then, and what the calls begin from
    out.backward()
