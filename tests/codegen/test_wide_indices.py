"""Index arithmetic beyond 32 bits, and the order in which places are found, on both targets."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

FAR = 2**31


def check(compiled: Callable[..., Any], function: Callable[..., Any], *args: torch.Tensor) -> None:
    torch.testing.assert_close(compiled(function)(*args), function(*args), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "start, stop, step",
    [
        (FAR - 2, FAR + 3, 1),
        (2 - FAR, -FAR - 5, -1),
        (0, 5 * 10**9, 10**9),
        (0, -5 * 10**9, -(10**9)),
        (2 * FAR - 3, 2 * FAR + 3, 2),
        (-(2**40), 2**40, 2**39 - 1),
    ],
)
def test_numbers_counted_upwards_beyond_32_bits(compiled: Any, start: int, stop: int, step: int) -> None:
    check(compiled, lambda x: torch.arange(start, stop, step) + x, torch.tensor(0))
    check(compiled, lambda x: torch.where(torch.arange(start, stop, step) > x, 1, 0), torch.tensor(start + step))
    check(compiled, lambda x: torch.arange(start, stop, step).double() * x, torch.tensor(0.5))


def test_numbers_counted_in_two_directions(compiled: Any) -> None:
    def table(x: torch.Tensor) -> torch.Tensor:
        return torch.arange(0, 3 * 10**9, 10**9)[:, None] + torch.arange(0, 3 * 10**9, 10**9) + x

    check(compiled, table, torch.tensor(1))


def test_an_integer_over_a_number_beyond_32_bits(compiled: Any) -> None:
    check(compiled, lambda x: torch.arange(FAR - 2, FAR + 3) // 3 + x, torch.tensor(0))


@pytest.fixture(scope="module")
def apart() -> torch.Tensor:
    """Columns 2^30 elements apart; only the pages that are touched exist."""
    memory = torch.empty(5 * 2**30 + 8, dtype=torch.uint8)
    rows = memory.as_strided((8, 5), (1, 2**30))
    rows.copy_(torch.arange(40).reshape(8, 5))
    return rows


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2,
        lambda x: x[3] + 1,
        lambda x: x[:, 3:] + 1,
        lambda x: x.float().sum(-1),
        lambda x: x.float().sum(0),
        lambda x: x.flip(1) + 1,
        lambda x: (x.argmax(), x.argmin(1), x.t().argmax()),
        lambda x: x[:, torch.tensor([4, 2])],
        lambda x: torch.cat([x, x], 1),
        lambda x: x.t().reshape(-1) + 1,
    ],
)
def test_strides_beyond_32_bits(apart: torch.Tensor, function: Callable[..., Any]) -> None:
    check(smelt.compile, function, apart)


def test_writes_beyond_32_bits(apart: torch.Tensor) -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        x[:, 2:] += 1
        return x * 1

    want = apart.clone()
    want[:, 2:] += 1
    try:
        torch.testing.assert_close(smelt.compile(write)(apart), want)
        torch.testing.assert_close(apart.clone(), want)
    finally:
        apart.copy_(torch.arange(40).reshape(8, 5))


def test_elements_of_a_huge_view() -> None:
    check(smelt.compile, lambda x: x.expand(2 * FAR + 8)[2 * FAR :] + 1, torch.ones(1))
    check(smelt.compile, lambda x: x.expand(FAR, 3)[FAR - 2 :].flip(0) + 1, torch.arange(3.0))


# -- where the largest is


def values(kind: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(0, 3, (2, 3, 4, 5), generator=generator).float()
    if kind == "nan":
        x[0, 2, 1, 3] = x[1, 0, 3, 0] = x[1, 1, 0, 4] = float("nan")
    return x.to(torch.float32 if kind == "nan" else getattr(torch, kind))


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int64", "uint8", "nan"])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 3, 2)])
def test_the_first_of_equals_is_found_in_logical_order(compiled: Any, kind: str, order: tuple[int, ...]) -> None:
    def places(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = x.permute(order)
        return x.argmax(), x.argmin(), x.flatten(1).argmax(1), x.flip(0).argmax(), x.argmin(-1), x.max(1).indices

    check(compiled, places, values(kind))


def test_the_first_of_equals_in_an_image_with_channels_last(compiled: Any) -> None:
    image = values("float32").contiguous(memory_format=torch.channels_last)
    check(compiled, lambda x: (x.argmax(), x.argmin(), x.flatten(1).argmax(1), x[:, 1:].argmax()), image)


def test_the_index_of_the_only_value(compiled: Any) -> None:
    check(compiled, lambda x: (x.t().argmax(), x.t().argmin()), torch.full((3, 4), -torch.inf))


# -- slices and masks


def test_slices_of_slices_without_elements(compiled: Any) -> None:
    def slices(x: torch.Tensor, a: int, b: int) -> tuple[torch.Tensor, ...]:
        return x[::a][b:] * 2, x[b:][::a] + 1, x[::a][b:][::2] * 3

    for n, a, b in itertools.product((0, 1, 2, 4), (1, 2, 3), (0, 1, 2)):
        check(compiled, lambda x, a=a, b=b: slices(x, a, b), torch.arange(float(n)))


@pytest.mark.parametrize("shape", [(1, 2), (2, 1), (0, 3), (1, 1), (5, 2)])
def test_diagonals_sliced_past_their_end(compiled: Any, shape: tuple[int, int]) -> None:
    for offset, first in itertools.product((-1, 0, 1), (0, 1, 2)):
        if -shape[0] <= offset <= shape[1]:
            check(compiled, lambda x, o=offset, n=first: x.diagonal(o)[n:] + 1, torch.ones(shape))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, m: x[m],
        lambda x, m: x[m, 1],
        lambda x, m: x[1, m],
        lambda x, m: x[..., m],
        lambda x, m: x[None, m, :, 2],
        lambda x, m: x[..., m, 2],
        lambda x, m: x[m, torch.tensor([1, 2])] if m else x[m],
        lambda x, m: x[m.to(torch.uint8)],
        lambda x, m: x[0, 0][m],
    ],
)
@pytest.mark.parametrize("holds", [True, False])
def test_masks_without_dimensions(function: Callable[..., Any], holds: bool) -> None:
    check(smelt.compile, function, torch.arange(12.0).reshape(3, 4), torch.tensor(holds))


def test_writes_through_masks_without_dimensions() -> None:
    def write(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[m, 1], y[..., m, 0] = 7, 9
        y[m, :, 2] = torch.arange(3.0)
        return y

    compiled = smelt.compile(write)
    for holds in (True, False, True):
        x, m = torch.rand(3, 4), torch.tensor(holds)
        torch.testing.assert_close(compiled(x, m), write(x, m))
