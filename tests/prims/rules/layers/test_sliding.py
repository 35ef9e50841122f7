"""Sliding windows and their transpose, against eager."""

from __future__ import annotations

import pytest
import torch

from smelt.prims.rules.layers.sliding import MAX_UNROLLED_WINDOW
from tests.prims.aten_check import check
from tests.prims.prim_check import names

aten = torch.ops.aten
LONG = MAX_UNROLLED_WINDOW + 1


@pytest.mark.parametrize("step", [1, 2, 3, 50])
@pytest.mark.parametrize(("shape", "dim"), [((40,), 0), ((2, 40), -1), ((40, 3), 0), ((2, 40, 3), 1), ((2, 3, 40), -1)])
def test_windows(shape: tuple[int, ...], dim: int, step: int) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    for size in (1, 3, MAX_UNROLLED_WINDOW, LONG, 40):
        prims = check(aten.unfold.default, x, dim, size, step)
        assert ("index_select" in names(prims)) == (size > MAX_UNROLLED_WINDOW)
        g = torch.randn_like(aten.unfold.default(x, dim, size, step))
        check(aten.unfold_backward.default, g, list(shape), dim, size, step)
        check(aten.unfold_copy.default, x, dim, size, step)


@pytest.mark.parametrize("size", [0, 1])
def test_of_a_number(size: int) -> None:
    x = torch.tensor(2.5)
    check(aten.unfold.default, x, 0, size, 1)
    check(aten.unfold_backward.default, torch.randn(size), [], 0, size, 1)


def test_of_nothing() -> None:
    for shape, dim, size in (((0, 3), 1, 2), ((5, 0), 0, 2), ((5,), 0, 0), ((0,), 0, 0)):
        x = torch.randn(shape)
        out = aten.unfold.default(x, dim, size, 1)
        check(aten.unfold.default, x, dim, size, 1)
        check(aten.unfold_backward.default, torch.randn_like(out), list(shape), dim, size, 1)


def test_overlapping_windows_add_up_wide() -> None:
    g = torch.randn(38, 3).bfloat16()
    check(aten.unfold_backward.default, g, [40], 0, 3, 1, scale=2.0)
