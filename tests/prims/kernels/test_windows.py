"""Sampling by a grid, cubic and smoothed resampling, images as columns, against eager, scipy and by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import ndimage

from smelt.base.errors import CompileError
from smelt.graph.ir.meta import meta_of
from smelt.prims.table import PRIMS
from tests.prims.prim_check import checked, to_meta


def f(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("mode", [0, 1])
def test_sampling_by_a_grid(rank: int, mode: int) -> None:
    """Corners of the grid are the middles of the first and last element (align_corners)."""
    space, out = (4, 5, 6)[:rank], (3, 2, 4)[:rank]
    x, grid = f(2, 3, *space), torch.rand(2, *out, rank, dtype=torch.float64) * 2 - 1
    got = checked(f"grid_sampler_{rank}d", x, grid, mode, 1, True)
    at = (grid.flip(-1) + 1) / 2 * (torch.tensor(space) - 1)
    for b, c in itertools.product(range(2), range(3)):
        places = at[b].movedim(-1, 0).numpy()
        want = ndimage.map_coordinates(x[b, c].numpy(), places, order=1 - mode, mode="nearest")
        np.testing.assert_allclose(got[b, c], want, atol=1e-9)


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("wanted", [(True, True), (False, True)])
def test_gradients_of_sampling(rank: int, wanted: tuple[bool, bool]) -> None:
    x = f(2, 3, *(4, 5, 6)[:rank]).requires_grad_()
    grid = (torch.rand(2, *(3, 2, 4)[:rank], rank, dtype=torch.float64) * 2 - 1).requires_grad_()
    out = F.grid_sample(x, grid, "bilinear", "zeros", False)
    grad = torch.randn_like(out)
    want = torch.autograd.grad(out, (x, grid), grad)
    got = checked(f"grid_sampler_{rank}d_backward", grad, x.detach(), grid.detach(), 0, 0, False, wanted)
    torch.testing.assert_close(got[1], want[1])
    if wanted[0]:
        torch.testing.assert_close(got[0], want[0])


@pytest.mark.parametrize("rank", [2, 3])
def test_grids_of_another_rank(rank: int) -> None:
    for x, grid in ((f(1, 1, *(2,) * rank), f(1, 2, 2)), (f(1, *(2,) * rank), f(1, *(2,) * rank, rank))):
        with pytest.raises(CompileError, match=f"prim grid_sampler_{rank}d"):
            PRIMS[f"grid_sampler_{rank}d"].meta(to_meta(x), to_meta(grid), 0, 0, False)


RESAMPLE = {
    "upsample_bicubic2d": {"mode": "bicubic"},
    "upsample_bilinear2d_aa": {"mode": "bilinear", "antialias": True},
    "upsample_bicubic2d_aa": {"mode": "bicubic", "antialias": True},
}


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("size", [(8, 3), (1, 1), (5, 6)])
@pytest.mark.parametrize("name", RESAMPLE)
def test_resampling(name: str, size: tuple[int, int], corners: bool) -> None:
    x = f(2, 3, 5, 6).requires_grad_()
    want = F.interpolate(x, size, align_corners=corners, **RESAMPLE[name])
    got = checked(name, x.detach(), size, corners, None, None)
    torch.testing.assert_close(got, want.detach())
    grad = torch.randn_like(want)
    (wanted,) = torch.autograd.grad(want, x, grad)
    back = checked(f"{name}_backward", grad, size, (2, 3, 5, 6), corners, None, None)
    torch.testing.assert_close(back, wanted)
    constant = checked(name, torch.full((1, 1, 5, 6), 2.5), size, corners, None, None)
    np.testing.assert_allclose(constant, 2.5, rtol=1e-6)


@pytest.mark.parametrize("name", RESAMPLE)
def test_channels_last_stays(name: str) -> None:
    x = torch.rand(2, 3, 5, 6).to(memory_format=torch.channels_last)
    meta = PRIMS[name].meta(meta_of(x), (4, 7), False, None, None)
    assert meta.stride == (84, 1, 21, 3) == PRIMS[name](x, (4, 7), False, None, None).stride()
    assert PRIMS[name].meta(meta_of(x.contiguous()), (4, 7), False, None, None).stride == (84, 28, 7, 1)
    back = PRIMS[f"{name}_backward"].meta(meta_of(x), (5, 6), [2, 3, 9, 9], False, None, None)
    assert back.shape == (2, 3, 9, 9) and back.stride == (243, 1, 27, 3)


PATCHES = [((2, 3), (1, 1), (0, 1), (2, 1)), ((3, 2), (2, 1), (1, 0), (1, 3)), ((1, 1), (1, 1), (0, 0), (1, 1))]


@pytest.mark.parametrize("case", PATCHES)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_images_as_columns(case: tuple, batch: tuple[int, ...]) -> None:
    (kh, kw), (dh, dw), (ph, pw), (sh, sw) = case
    x = f(*batch, 3, 7, 6)
    got = checked("im2col", x, *case)
    padded = F.pad(x, (pw, pw, ph, ph))
    rows = range(0, padded.shape[-2] - dh * (kh - 1), sh)
    columns = range(0, padded.shape[-1] - dw * (kw - 1), sw)
    want = [
        padded[..., r : r + dh * (kh - 1) + 1 : dh, c : c + dw * (kw - 1) + 1 : dw].flatten(-3)
        for r in rows
        for c in columns
    ]
    assert torch.equal(got, torch.stack(want, -1))
    y = torch.randn_like(got)  # the transpose: <im2col x, y> = <x, col2im y>
    back = checked("col2im", y, (7, 6), *case)
    torch.testing.assert_close((got * y).sum(), (x * back).sum())
    assert PRIMS["im2col"].facts.linear_in == PRIMS["col2im"].facts.linear_in == (0,)
