"""Gradients of NaN, of infinities and for such tangents, where a formula has a shorter form for finite numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch

import smelt

SPECIAL = (1.5, 0.0, math.inf, math.nan)
ROWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(0),
    "amax": lambda x: x.amax(0),
    "cumsum": lambda x: x.cumsum(0),
    "mean": lambda x: x.mean(0),
    "deviation": lambda x: x.std(0, correction=0),
}


@pytest.mark.parametrize("shape", [(), (1,), (1, 3)])
@pytest.mark.parametrize("name", ROWS)
def test_rows_of_one_element(name: str, shape: tuple[int, ...]) -> None:
    f = ROWS[name]
    c = smelt.compile(f)
    for value, tangent in itertools.product(SPECIAL, (1.0, math.inf, math.nan)):
        found = []
        for call in (f, c):
            x = torch.full(shape, value, requires_grad=True)
            out = call(x)
            found.append((out.detach(), *torch.autograd.grad(out, x, torch.full_like(out, tangent))))
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(b, a, equal_nan=True, msg=f"{value}, tangent {tangent}: {b}, not {a}")
