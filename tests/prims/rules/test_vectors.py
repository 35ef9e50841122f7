"""Vectors along a dimension, against eager and by hand."""

from __future__ import annotations

import math

import pytest
import torch

from tests.prims.aten_check import check

aten = torch.ops.aten


def f(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize(
    ("x", "y", "dim"),
    [((3,), (3,), -1), ((2, 3), (2, 3), 1), ((3, 2), (3, 1), 0), ((0, 3), (0, 3), -1)],
)
def test_cross(x: tuple[int, ...], y: tuple[int, ...], dim: int) -> None:
    check(aten.linalg_cross.default, f(*x), f(*y), dim=dim)
    check(aten.linalg_cross.default, f(*x).float(), f(*y).float(), dim=dim)
    check(aten.linalg_cross.default, torch.randint(-9, 9, x), torch.randint(-9, 9, y), dim=dim)


ORDERS = [0, 1, 2, 3, 0.5, math.inf, -math.inf, -1]


@pytest.mark.parametrize("order", ORDERS)
def test_dist(order: float) -> None:
    for x, y in ((f(3, 4), f(3, 4)), (f(3, 1), f(4)), (f(), f()), (f(0, 3), f(0, 3))):
        if x.numel() or order > 0 and math.isfinite(order):
            check(aten.dist.default, x, y, order)
    check(aten.dist.default, f(5).float(), f(5).float(), order)


@pytest.mark.parametrize("order", [1, 2, 3, 0.5, math.inf])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_renorm(order: float, dim: int) -> None:
    for x in (f(3, 4, 5), f(3, 4, 5) * 0.01, f(2, 0)):
        if order == math.inf and not x.numel():
            continue
        for limit in (0.5, 3.0, 0.0):
            check(aten.renorm.default, x, order, dim, limit)
    check(aten.renorm.default, f(3, 4).bfloat16(), order, dim, 0.5, scale=2.0)


@pytest.mark.parametrize(
    ("new_x", "new_y", "new_z", "summed"),
    [
        ([2], [0], [1], [0]),
        ([2], [0], [1], []),
        ([0], [1], [2], [0, 2]),
        ([0], [0], [0], [0, 1, 2]),
    ],
)
def test_trilinear(new_x: list[int], new_y: list[int], new_z: list[int], summed: list[int]) -> None:
    x, y, z = f(3, 3), f(3, 3), f(3, 3)
    a, b, c = x.unsqueeze(new_x[0]), y.unsqueeze(new_y[0]), z.unsqueeze(new_z[0])
    want = (a * b * c).sum(summed) if summed else a * b * c
    got = check(aten._trilinear.default, x, y, z, new_x, new_y, new_z, summed)
    torch.testing.assert_close(got(x, y, z, torch.tensor(0))[0], want)
