"""Pooling against eager: windows side by side are means, others window primitives; moves between channels and space."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.prims.aten_check import check
from tests.prims.prim_check import names

aten = torch.ops.aten


def f(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize(
    "windows", [([2],), ([2, 3], [1, 2]), ([3], [], [1]), ([3, 2], [2], [1, 0], [1, 2]), ([2], [3], [0], [1], True)]
)
def test_maxima(windows: tuple[Any, ...], batch: tuple[int, ...]) -> None:
    x = f(*batch, 3, 7, 6)
    check(aten.max_pool2d_with_indices.default, x, *windows)
    check(aten.max_pool2d_with_indices.default, x.bfloat16(), *windows)
    best, places = aten.max_pool2d_with_indices.default(x, *windows)
    kernel, stride, padding, dilation, ceil = (*windows, *([], [0], [1], False)[len(windows) - 1 :])
    rest = (kernel, stride, padding, dilation, ceil, places)
    check(aten.max_pool2d_with_indices_backward.default, torch.randn_like(best), x, *rest)


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize(
    ("windows", "tiled"),
    [
        (([2, 3],), True),
        (([4, 6], [4, 6]), True),
        (([1],), True),
        (([2, 3], [2, 3], [0], True), True),
        (([2],), True),
        (([3],), False),
        (([2, 3], [2, 2]), False),
        (([2, 3], [2, 3], [1, 0]), False),
        (([2, 3], [2, 3], [1, 1], False, False), False),
        (([2, 3], [2, 3], [0], False, True, 5), False),
        (([3, 4], [2], [1], True, False), False),
    ],
)
def test_means(windows: tuple[Any, ...], tiled: bool, batch: tuple[int, ...]) -> None:
    x = f(*batch, 3, 4, 6)
    tiled = tiled and windows[0] != [1]
    prims = check(aten.avg_pool2d.default, x, *windows)
    assert ("avg_pool2d" not in names(prims)) == (tiled or windows[0] == [1])
    check(aten.avg_pool2d.default, x.bfloat16(), *windows, scale=2.0)
    options = (*windows, *([], [0], False, True, None)[len(windows) - 1 :])
    grad = torch.randn_like(aten.avg_pool2d.default(x, *windows))
    back = check(aten.avg_pool2d_backward.default, grad, x, *options)
    assert ("avg_pool2d_backward" not in names(back)) == (tiled or windows[0] == [1])


def test_whole_numbers_and_nothing_stay() -> None:
    check(aten.avg_pool2d.default, torch.arange(16).reshape(1, 4, 4), [2], fallback=True)
    check(aten.max_pool2d_with_indices.default, torch.arange(16).reshape(1, 4, 4), [2])
    empty = check(aten.avg_pool2d.default, f(0, 3, 4, 4), [2])
    assert names(empty) == ["full"]
    assert set(names(check(aten.max_pool2d_with_indices.default, f(0, 3, 4, 4), [2]))) == {"full"}


@pytest.mark.parametrize(
    ("sizes", "tiled"),
    [([2, 3], True), ([1, 1], True), ([4, 6], True), ([3, 3], False), ([2, 4], False), ([5, 7], False)],
)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_means_to_given_sizes(sizes: list[int], tiled: bool, batch: tuple[int, ...]) -> None:
    x = f(*batch, 3, 4, 6)
    prims = check(aten._adaptive_avg_pool2d.default, x, sizes)
    assert ("adaptive_avg_pool2d" not in names(prims)) == tiled
    grad = torch.randn_like(aten._adaptive_avg_pool2d.default(x, sizes))
    back = check(aten._adaptive_avg_pool2d_backward.default, grad, x)
    assert ("adaptive_avg_pool2d_backward" not in names(back)) == tiled
    check(aten._adaptive_avg_pool2d.default, x.bfloat16(), sizes, scale=2.0)


@pytest.mark.parametrize("lead", [(), (2,), (2, 3), (0,)])
@pytest.mark.parametrize("factor", [1, 2, 3])
def test_moves_between_channels_and_space(lead: tuple[int, ...], factor: int) -> None:
    check(aten.pixel_shuffle.default, f(*lead, 2 * factor**2, 3, 2), factor)
    check(aten.pixel_unshuffle.default, f(*lead, 2, 3 * factor, 2 * factor), factor)


@pytest.mark.parametrize("space", [(3,), (3, 2), (2, 1, 3)])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_channels_of_groups(space: tuple[int, ...], groups: int) -> None:
    check(aten.channel_shuffle.default, f(2, 6, *space), groups)
