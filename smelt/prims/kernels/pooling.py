"""Pooling in 3 dimensions, to given sizes, at random positions; unpooling. Operands: ([batch,] channels, *space)."""

from __future__ import annotations

import torch

from smelt.graph.ir.meta import TensorMeta, channels_last_stride, is_channels_last
from smelt.prims.table import LINEAR, Shape, kernel, make, require
from smelt.prims.windows import pooled_size

aten = torch.ops.aten
Pair = tuple[TensorMeta, TensorMeta]


def _sized(x: TensorMeta, space: Shape, dtype: torch.dtype | None = None) -> TensorMeta:
    """Returns the meta of a tensor like x with other spatial sizes."""
    rank = len(space)
    require(len(x.shape) in (rank + 1, rank + 2), f"pooling of {x.shape} in {rank} dimensions")
    shape = x.shape[: len(x.shape) - rank] + tuple(space)
    if len(shape) == 4 and is_channels_last(x.shape, x.stride):
        return TensorMeta(shape, dtype or x.dtype, channels_last_stride(shape), x.device)
    return make(shape, dtype or x.dtype, x.device)


def _with_indices(x: TensorMeta, space: Shape) -> Pair:
    return _sized(x, space), _sized(x, space, torch.int64)


def _like(x: TensorMeta) -> TensorMeta:
    return _sized(x, x.shape[-2:] if len(x.shape) == 4 else x.shape[-3:])


def _each(values: Shape, default: Shape = ()) -> Shape:
    sizes = values or default
    return tuple(sizes) * 3 if len(sizes) == 1 else tuple(sizes)


def _pooled(x: TensorMeta, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape, ceil: bool) -> Shape:
    windows = (_each(kernel), _each(stride, kernel), _each(padding), _each(dilation))
    return tuple(pooled_size(*each, ceil) for each in zip(x.shape[-3:], *windows, strict=True))


def _adaptive(rank: int) -> None:
    """Define average and maximum pooling to a given output size: windows divide each dimension as evenly as
    possible.
    """

    def mean(x: TensorMeta, output_size: Shape) -> TensorMeta:
        return _sized(x, output_size)

    def mean_backward(grad: TensorMeta, x: TensorMeta) -> TensorMeta:
        return _sized(x, x.shape[-rank:])

    def maximum(x: TensorMeta, output_size: Shape) -> Pair:
        return _with_indices(x, output_size)

    def maximum_backward(grad: TensorMeta, x: TensorMeta, indices: TensorMeta) -> TensorMeta:
        require(grad.shape == indices.shape, f"prim adaptive_max_pool{rank}d_backward: {grad.shape}")
        return _sized(x, x.shape[-rank:])

    mean.__doc__ = f"The mean of each of output_size windows over the last {rank} dimensions."
    mean_backward.__doc__ = f"The gradient of adaptive_avg_pool{rank}d with respect to x."
    maximum.__doc__ = "(maximum, int64 position in the image) of each of output_size windows over the last dimensions."
    maximum_backward.__doc__ = f"The gradient of adaptive_max_pool{rank}d with respect to x."
    kernel(f"adaptive_avg_pool{rank}d", getattr(aten, f"_adaptive_avg_pool{rank}d").default, LINEAR)(mean)
    kernel(f"adaptive_avg_pool{rank}d_backward", getattr(aten, f"_adaptive_avg_pool{rank}d_backward").default)(
        mean_backward
    )
    kernel(f"adaptive_max_pool{rank}d", getattr(aten, f"adaptive_max_pool{rank}d").default)(maximum)
    kernel(f"adaptive_max_pool{rank}d_backward", getattr(aten, f"adaptive_max_pool{rank}d_backward").default)(
        maximum_backward
    )


def _fractional(rank: int) -> None:
    """Define maximum pooling over windows whose positions depend on random samples."""

    def maximum(x: TensorMeta, kernel_size: Shape, output_size: Shape, samples: TensorMeta) -> Pair:
        return _with_indices(x, output_size)

    def maximum_backward(
        grad: TensorMeta, x: TensorMeta, kernel_size: Shape, output_size: Shape, indices: TensorMeta
    ) -> TensorMeta:
        return make(x.shape, x.dtype, x.device)

    maximum.__doc__ = "(maximum, int64 position) of output_size windows at positions that samples in [0, 1) choose."
    maximum_backward.__doc__ = f"The gradient of fractional_max_pool{rank}d with respect to x."
    kernel(f"fractional_max_pool{rank}d", getattr(aten, f"fractional_max_pool{rank}d").default)(maximum)
    kernel(f"fractional_max_pool{rank}d_backward", getattr(aten, f"fractional_max_pool{rank}d_backward").default)(
        maximum_backward
    )


for _rank in (2, 3):
    _adaptive(_rank)
    _fractional(_rank)


@kernel("avg_pool3d", aten.avg_pool3d.default, LINEAR)
def avg_pool3d(
    x: TensorMeta,
    kernel_size: Shape,
    stride: Shape,
    padding: Shape,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> TensorMeta:
    """The mean of each window, like avg_pool2d, over the last three dimensions."""
    return _sized(x, _pooled(x, kernel_size, stride, padding, (1,), ceil_mode))


@kernel("avg_pool3d_backward", aten.avg_pool3d_backward.default)
def avg_pool3d_backward(
    grad: TensorMeta,
    x: TensorMeta,
    kernel_size: Shape,
    stride: Shape,
    padding: Shape,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> TensorMeta:
    """The gradient of avg_pool3d with respect to x."""
    return _sized(x, x.shape[-3:])


@kernel("max_pool3d", aten.max_pool3d_with_indices.default)
def max_pool3d(
    x: TensorMeta, kernel_size: Shape, stride: Shape, padding: Shape, dilation: Shape, ceil_mode: bool
) -> Pair:
    """(maximum, int64 position) of each window, like max_pool2d, over the last three dimensions."""
    return _with_indices(x, _pooled(x, kernel_size, stride, padding, dilation, ceil_mode))


@kernel("max_pool3d_backward", aten.max_pool3d_with_indices_backward.default)
def max_pool3d_backward(
    grad: TensorMeta,
    x: TensorMeta,
    kernel_size: Shape,
    stride: Shape,
    padding: Shape,
    dilation: Shape,
    ceil_mode: bool,
    indices: TensorMeta,
) -> TensorMeta:
    """The gradient of max_pool3d with respect to x."""
    return _sized(x, x.shape[-3:])


@kernel("max_unpool2d", aten.max_unpool2d.default, LINEAR)
def max_unpool2d(x: TensorMeta, indices: TensorMeta, output_size: Shape) -> TensorMeta:
    """Zeros of output_size with the elements of x at the positions that max_pool2d returned."""
    return _sized(x, output_size)


@kernel("max_unpool3d", aten.max_unpool3d.default, LINEAR)
def max_unpool3d(x: TensorMeta, indices: TensorMeta, output_size: Shape, stride: Shape, padding: Shape) -> TensorMeta:
    """Zeros of output_size with the elements of x at the positions that max_pool3d returned."""
    return _sized(x, output_size)
