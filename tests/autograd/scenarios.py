"""A piece of a training program, run in eager and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import smelt

X = torch.linspace(-1, 1, 20).reshape(5, 4)


def model() -> nn.Module:
    """A small network, the same at each call."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 3))


def gradients(module: nn.Module) -> list[torch.Tensor | None]:
    """Of the parameters."""
    return [p.grad for p in module.parameters()]


def same(run: Callable[..., Any], breaks: int | None = 0, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """`run(compile)` gives the same tensors without the compiler and with it, with as many graph breaks (None: any)."""
    want = run(lambda f: f)
    smelt.reset()
    got = run(lambda f: smelt.compile(f, backend="aot_eager"))
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol)
    flags = [[t.requires_grad for t in each if isinstance(t, torch.Tensor)] for each in (want, got)]
    assert flags[0] == flags[1]
    if breaks is not None:
        assert smelt.stats().get("breaks", 0) == breaks, smelt.stats()["break_reasons"]
