"""Resampling against eager where a size does not change, and grids of one line."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt

FACTORS = [(1.3, 1.5), (1.5, 1.3), (1.0, 1.2), (1.1, 1.1), (0.8, 2.0), (2.0, 2.0)]


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "nearest-exact", "bicubic"])
@pytest.mark.parametrize("factors", FACTORS)
def test_images_resampled_where_a_size_does_not_change(mode: str, factors: tuple[float, float]) -> None:
    def run(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.interpolate(x, scale_factor=factors, mode=mode)
        return y, torch.autograd.grad(y.square().sum(), x)[0]

    compiled = smelt.compile(run)
    for height, width in ((3, 4), (5, 7)):
        x = torch.rand(1, 2, height, width, dtype=torch.float64, requires_grad=True)
        torch.testing.assert_close(compiled(x), run(x))


@pytest.mark.parametrize("mode, shape", [("linear", (1, 2, 3)), ("trilinear", (1, 2, 3, 4, 5)), ("nearest", (1, 1, 3))])
@pytest.mark.parametrize("dynamic", [False, True])
def test_lines_and_volumes_resampled_where_a_size_does_not_change(mode: str, shape: Any, dynamic: bool) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=1.3, mode=mode)

    compiled = smelt.compile(run, dynamic=dynamic)
    for more in (0, 1, 3):
        x = torch.rand(*shape[:2], *(n + more for n in shape[2:]), dtype=torch.float64)
        torch.testing.assert_close(compiled(x), run(x))


@pytest.mark.filterwarnings("ignore:Since version 1.3.0")
@pytest.mark.parametrize("size", [(2, 3, 1, 9), (2, 3, 9, 1), (2, 3, 1, 1), (2, 3, 2, 1, 4), (2, 3, 1, 1, 1)])
def test_gradients_of_grids_of_one_line(size: tuple[int, ...]) -> None:
    axes = len(size) - 2

    def run(theta: torch.Tensor, align: bool) -> tuple[torch.Tensor, torch.Tensor]:
        grid = F.affine_grid(theta, size, align_corners=align)
        return grid, torch.autograd.grad(grid.sin().sum(), theta)[0]

    for align, dtype in itertools.product((True, False), (torch.float32, torch.float64)):
        theta = torch.rand(2, axes, axes + 1, dtype=dtype, requires_grad=True)
        torch.testing.assert_close(smelt.compile(run)(theta, align), run(theta, align))
