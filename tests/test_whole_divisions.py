"""Whole numbers over 0 raise what eager raises, in the second call as well; others are computed as in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import smelt

DIVISIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "floor_divide": lambda a, b: a // b,
    "remainder": lambda a, b: a % b + 1,
    "fmod": lambda a, b: torch.fmod(a, b) * 2,
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "of a number": lambda a, b: torch.remainder(7, b) + a,
    "summed": lambda a, b: (a // b).sum(1),
    "chosen": lambda a, b: torch.where(b > 1, a // b, 0),
    "of rows": lambda a, b: a // b[:, :1],
    "padded": lambda a, b: torch.nn.functional.pad(a // b, (1, 2)),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
@pytest.mark.parametrize("name", DIVISIONS)
def test_whole_numbers_over_zero(name: str, dtype: torch.dtype) -> None:
    fn = DIVISIONS[name]
    run = smelt.compile(fn, fullgraph=True)
    a = torch.arange(24, dtype=dtype).reshape(3, 8)
    by, zero = a + 1, a.flip(0) - a.min()
    torch.testing.assert_close(run(a, by), fn(a, by))
    if name == "of rows":
        zero[:, 0] = 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        fn(a, zero)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run(a, zero)
    torch.testing.assert_close(run(a, by), fn(a, by))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_by_the_lowest_and_the_highest(dtype: torch.dtype) -> None:
    """255 of uint8 has the bits of -1."""
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    a = torch.tensor([low, low + 1, 1, 3, high]).to(dtype)[:, None]
    by = torch.tensor([1, 2, 7, high, high - 1, *([low, -3] if low else [])]).to(dtype)

    def fn(a: torch.Tensor, by: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a // by, a % by, torch.fmod(a, by), torch.div(a, by, rounding_mode="trunc"), a // high, a % high

    torch.testing.assert_close(smelt.compile(fn, fullgraph=True)(a, by), fn(a, by))


def test_a_number_that_is_not_zero_is_not_checked() -> None:
    """A kernel that only divides by numbers tells of nothing."""
    run = smelt.compile(lambda a: (a // 3 + a % 5, a.float() / 0), fullgraph=True)
    a = torch.arange(-9, 9)
    found, infinite = run(a)
    assert found.equal(a // 3 + a % 5) and infinite[0] == -torch.inf


def test_the_number_zero() -> None:
    run = smelt.compile(lambda a: a // 0, fullgraph=True)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            run(torch.arange(4))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_whole_numbers_over_zero_on_a_gpu(dtype: torch.dtype) -> None:
    """What the device gives, as in eager; a later program raises nothing."""
    info = torch.iinfo(dtype)
    values = [n for n in (0, 1, 2, 7, 100, -1, -3, 2**31, 2**32 - 1, 2**32, -(2**40)) if info.min <= n <= info.max]
    a = torch.tensor([*values, info.min, info.max], dtype=dtype, device="cuda")
    by = torch.tensor([0, 1, 3], dtype=dtype, device="cuda")[:, None]

    def fn(a: torch.Tensor, by: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a // by, a % by, torch.fmod(a, by), torch.div(a, by, rounding_mode="trunc"), a // 0, a % 0, 7 % by

    for got, want in zip(smelt.compile(fn)(a, by), fn(a, by), strict=True):
        assert torch.equal(got, want)
    assert torch.equal(smelt.compile(lambda x: x[by.long()[:, 0]] + 1)(a), a[by.long()[:, 0]] + 1)
