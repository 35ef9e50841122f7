"""Sums of many numbers are about as exact as those of eager, whatever divides their count: few roundings in a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

LARGE, SMALL = 32771, 1009  # primes


def gradient_of_bias(x: torch.Tensor) -> torch.Tensor:
    bias = torch.ones(x.shape[-1], dtype=x.dtype, requires_grad=True)
    return torch.autograd.grad(((x + bias) * 1.1).sum(), bias)[0]


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "columns": lambda x: x.sum(0),
    "mean of columns": lambda x: x.mean(0),
    "rows": lambda x: x.T.contiguous().sum(1),
    "all": lambda x: x.sum(),
    "of a part of each row": lambda x: x.repeat(1, 3)[:, 1:4].sum(),
    "two dimensions": lambda x: x[: x.shape[0] // 5 * 5].reshape(-1, 5, 3).sum((0, 1)),
    "a dimension between": lambda x: x[: x.shape[0] // 4 * 4].reshape(4, -1, 3).sum(1),
    "repeated": lambda x: x[:1].expand(x.shape[0], 3).sum(0),
    "loss": lambda x: (x - 1).abs().mean(),
    "columns of columns": lambda x: x.T.contiguous().T.sum(0),
    "gradient of a bias": gradient_of_bias,
}


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest relative error, in roundings of float32."""
    return float(((found.double() - exact) / exact).abs().max()) / torch.finfo(torch.float32).eps


def numbers(rows: int, near: float) -> torch.Tensor:
    return torch.rand(rows, 3, generator=torch.Generator().manual_seed(rows)) * 0.25 + near


@pytest.mark.parametrize("near", [1.1, 10_000.3])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_sums_of_many(name: str, dynamic: bool | None, near: float) -> None:
    function = FUNCTIONS[name]
    compiled = smelt.compile(function, dynamic=dynamic)
    for rows in (LARGE, 2 * LARGE, 8192, SMALL):
        x = numbers(rows, near)
        exact, eager = function(x.double()), function(x)
        assert error(compiled(x), exact) <= 12 + 2 * error(eager, exact), rows


@pytest.mark.parametrize("name", ["columns", "rows", "all"])
def test_sums_of_many_on_each_target(name: str, compiled: Callable[..., Any]) -> None:
    x = numbers(SMALL, 10_000.3)
    function = FUNCTIONS[name]
    exact, eager = function(x.double()), function(x)
    assert error(compiled(function)(x), exact) <= 12 + 2 * error(eager, exact)


def test_infinities_extremes_and_integers() -> None:
    x = numbers(4096, 1.0)
    x[7, 0], x[4000, 0], x[9, 2] = float("inf"), -float("inf"), float("inf")
    whole = (x.nan_to_num(0, 0, 0) * 100).int()
    for function in (lambda x, n: n.sum(0), lambda x, n: x.amax(0), lambda x, n: n.sum(), lambda x, n: x.argmin(0)):
        assert torch.equal(smelt.compile(function)(x, whole), function(x, whole))
    total = smelt.compile(lambda x: x.sum(0))(x)
    assert total[0].isnan() and total[2] == float("inf")
    assert error(total[1], x[:, 1].double().sum()) < 12
