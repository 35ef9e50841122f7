"""Image resampling (by a grid of positions, bicubic, antialiased), and images as columns of patches (im2col)."""

from __future__ import annotations

import torch

from smelt.graph.ir.meta import TensorMeta, channels_last_stride, is_channels_last
from smelt.prims.table import LINEAR, Shape, kernel, make, require

aten = torch.ops.aten


def _image(shape: Shape, like: TensorMeta) -> TensorMeta:
    if len(shape) == 4 and is_channels_last(like.shape, like.stride):
        return TensorMeta(shape, like.dtype, channels_last_stride(shape), like.device)
    return make(shape, like.dtype, like.device)


def _grid_sampler(rank: int) -> None:
    name = f"grid_sampler_{rank}d"

    def sample(
        x: TensorMeta, grid: TensorMeta, interpolation_mode: int, padding_mode: int, align_corners: bool
    ) -> TensorMeta:
        require(len(x.shape) == len(grid.shape) == rank + 2, f"prim {name}: {x.shape} by {grid.shape}")
        return make((*x.shape[:2], *grid.shape[1:-1]), x.dtype, x.device)

    def backward(
        grad: TensorMeta,
        x: TensorMeta,
        grid: TensorMeta,
        interpolation_mode: int,
        padding_mode: int,
        align_corners: bool,
        output_mask: tuple[bool, bool],
    ) -> tuple[TensorMeta | None, TensorMeta]:
        image = make(x.shape, x.dtype, x.device) if output_mask[0] else None
        return image, make(grid.shape, grid.dtype, grid.device)

    sample.__doc__ = "x (batch, channels, *space) at the positions in [-1, 1] that grid (batch, *out, rank) names."
    backward.__doc__ = f"The gradients of {name} with respect to x (None where the mask says so) and grid."
    kernel(name, getattr(aten, name).default)(sample)
    kernel(f"{name}_backward", getattr(aten, f"{name}_backward").default)(backward)


for _rank in (2, 3):
    _grid_sampler(_rank)


def _upsample(name: str) -> None:
    def resample(
        x: TensorMeta, output_size: Shape, align_corners: bool, scales_h: float | None, scales_w: float | None
    ) -> TensorMeta:
        return _image((*x.shape[:2], *output_size), x)

    def backward(
        grad: TensorMeta,
        output_size: Shape,
        input_size: Shape,
        align_corners: bool,
        scales_h: float | None,
        scales_w: float | None,
    ) -> TensorMeta:
        return _image(tuple(input_size), grad)

    own = name.removeprefix("_")
    resample.__doc__ = "x (batch, channels, height, width) resampled to output_size" + (
        ", smoothed where it shrinks." if own.endswith("aa") else " by cubic weights."
    )
    backward.__doc__ = f"The gradient of {own} with respect to x."
    kernel(own, getattr(aten, name).default)(resample)
    kernel(f"{own}_backward", getattr(aten, f"{name}_backward").default)(backward)


for _name in ("upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"):
    _upsample(_name)


@kernel("im2col", aten.im2col.default, LINEAR)
def im2col(x: TensorMeta, kernel_size: Shape, dilation: Shape, padding: Shape, stride: Shape) -> TensorMeta:
    """Each window of x as a column: ([batch,] channels * window elements, window positions)."""
    *lead, channels, _, _ = x.shape
    counts = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, d, p, s in zip(x.shape[-2:], kernel_size, dilation, padding, stride, strict=True)
    ]
    rows = channels * kernel_size[0] * kernel_size[1]
    return make((*lead, rows, counts[0] * counts[1]), x.dtype, x.device)


@kernel("col2im", aten.col2im.default, LINEAR)
def col2im(
    x: TensorMeta, output_size: Shape, kernel_size: Shape, dilation: Shape, padding: Shape, stride: Shape
) -> TensorMeta:
    """The transpose of im2col: each column is added to its window of an image of output_size."""
    *lead, rows, _ = x.shape
    return make((*lead, rows // (kernel_size[0] * kernel_size[1]), *output_size), x.dtype, x.device)
