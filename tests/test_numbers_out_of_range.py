"""Numbers that a type of whole numbers does not hold, beside tensors of it and as constants that become it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import smelt
from smelt.prims.simplify import recast, rounded, typed

WHOLE = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
NUMBERS = (300, -1, 255, -129, 70000, 2**31, -(2**31) - 1, 2**40 + 3, 2**63 - 1, -(2**63), 2**63, 2**64 - 1)

BESIDE: dict[str, Callable[[Tensor, int], Tensor]] = {
    "add": lambda x, n: x + n,
    "rsub": lambda x, n: n - x,
    "mul": lambda x, n: x * n,
    "floor": lambda x, n: n // (x + 1),
    "remainder": lambda x, n: n % (x + 1),
    "and": lambda x, n: x & n,
    "xor": lambda x, n: x ^ n,
    "eq": lambda x, n: x == n,
    "lt": lambda x, n: x < n,
    "ge": lambda x, n: x >= n,
    "power": lambda x, n: n**x,
    "where": lambda x, n: torch.where(x > 3, x, x + n),
    "constants": lambda x, n: torch.full_like(x, 5) * n + x,
    "literal": lambda x, n: torch.tensor(n & (2**62 - 1)) + x,
    "alpha": lambda x, n: torch.add(x, x, alpha=n) if abs(n) < 2**63 else x + n,
}


def eagerly(f: Callable[[Tensor, int], Tensor], x: Tensor, n: int) -> Tensor | None:
    """None where eager refuses the number."""
    try:
        return f(x, n)
    except RuntimeError:
        return None


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", WHOLE)
@pytest.mark.parametrize("name", BESIDE)
def test_whole_numbers_keep_their_low_bits(name: str, dtype: torch.dtype, dynamic: bool) -> None:
    f, x = BESIDE[name], torch.tensor([0, 44, 100], dtype=dtype)
    wanted = {n: want for n in NUMBERS if (want := eagerly(f, x, n)) is not None}
    assert wanted
    got = smelt.compile(lambda x: [f(x, n) for n in wanted], dynamic=dynamic)(x)
    for (n, want), result in zip(wanted.items(), got, strict=True):
        assert result.dtype is want.dtype and torch.equal(result, want), n


@pytest.mark.parametrize("dtype", WHOLE)
@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16])
def test_constants_without_a_whole_number(source: torch.dtype, dtype: torch.dtype) -> None:
    numbers = (math.inf, -math.inf, math.nan, 1e10, -1e10, 300.7, -300.7, 70000.0, -1e30)

    def f(x: Tensor) -> list[Tensor]:
        fulls = [torch.full((2,), n, dtype=source).to(dtype) + x for n in numbers]
        likes = [torch.full_like(x, n, dtype=source).to(dtype) + x for n in numbers]
        return fulls + likes + [torch.where(x > 0, n, -1.0).to(source).to(dtype) for n in numbers]

    x = torch.tensor([0, 1], dtype=dtype)
    for want, got in zip(f(x), smelt.compile(f)(x), strict=True):
        assert got.dtype is dtype and torch.equal(got, want)


@pytest.mark.parametrize(
    ("number", "dtype", "want"),
    [
        (math.inf, torch.int32, 2**31 - 1),
        (-math.inf, torch.int64, -(2**63)),
        (math.nan, torch.int32, 0),
        (1e10, torch.int8, -1),
        (-1e10, torch.int16, 0),
        (300.7, torch.uint8, 44),
        (-1.5, torch.uint8, 255),
        (math.inf, torch.uint8, 255),
        (2.5, torch.int16, 2),
    ],
)
def test_a_gpu_saturates_and_keeps_low_bits(number: float, dtype: torch.dtype, want: int) -> None:
    assert recast(number, torch.float32, dtype, torch.device("cuda")) == want


def test_whole_numbers_are_rounded_once() -> None:
    number = 2**60 + 2**36 + 1  # in float64 a number between two of float32
    assert typed(number, torch.float32) == float(torch.tensor(number).to(torch.float32)) == 2**60 + 2**37
    assert rounded(2**64, torch.bfloat16) == 2.0**64
