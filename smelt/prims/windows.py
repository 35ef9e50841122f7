"""Pooling over the last two dimensions of (batch, channels, height, width) or (channels, height, width).

Parameter tuples are (height, width). Decompositions express other kinds of pooling by these primitives or by
reductions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from smelt.graph.ir.meta import TensorMeta
from smelt.prims.products import channels_last_stride, is_channels_last
from smelt.prims.table import LINEAR, Kind, Shape, make, prim, require

aten = torch.ops.aten


def pooled_size(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil: bool) -> int:
    """Returns the number of windows along one dimension; with `ceil`, the last window may extend beyond the padded
    input if it begins within it.
    """
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (span + (stride - 1 if ceil else 0)) // stride + 1
    if ceil and (count - 1) * stride >= size + padding:
        count -= 1
    return count


def _pooled(
    x: TensorMeta, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape, ceil: bool, dtype: torch.dtype
) -> TensorMeta:
    require(len(x.shape) in (3, 4), f"pooling of shape {x.shape}")
    space = tuple(
        pooled_size(*each, ceil) for each in zip(x.shape[-2:], kernel, stride, padding, dilation, strict=True)
    )
    return _laid_out(x.shape[:-2] + space, x, dtype)


def _laid_out(shape: Shape, like: TensorMeta, dtype: torch.dtype) -> TensorMeta:
    if is_channels_last(like):
        return TensorMeta(shape, dtype, channels_last_stride(shape), like.device)
    return make(shape, dtype, like.device)


def _max_pool2d(
    x: Tensor, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape, ceil: bool
) -> tuple[Tensor, Tensor]:
    return tuple(aten.max_pool2d_with_indices(x, list(kernel), list(stride), list(padding), list(dilation), ceil))


@prim("max_pool2d", kind=Kind.WINDOW, reference=_max_pool2d)
def max_pool2d(
    x: TensorMeta, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape, ceil: bool
) -> tuple[TensorMeta, TensorMeta]:
    """(maximum, int64 position h * width + w in x) of each window. NaN is the largest; of equal elements the first is
    taken.

    Padding is never the maximum.
    """
    out = _pooled(x, kernel, stride, padding, dilation, ceil, x.dtype)
    return out, TensorMeta(out.shape, torch.int64, out.stride, out.device)


def _max_pool2d_backward(
    grad: Tensor, indices: Tensor, shape: Shape, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape
) -> Tensor:
    lead = shape[:-2]
    flat = grad.new_zeros((*lead, shape[-2] * shape[-1]))
    return flat.scatter_add(-1, indices.reshape(*lead, -1), grad.reshape(*lead, -1)).reshape(shape)


@prim("max_pool2d_backward", kind=Kind.WINDOW, reference=_max_pool2d_backward)
def max_pool2d_backward(
    grad: TensorMeta,
    indices: TensorMeta,
    shape: Shape,
    kernel: Shape,
    stride: Shape,
    padding: Shape,
    dilation: Shape,
) -> TensorMeta:
    """The gradient with respect to the input, which has `shape`: for each element the sum of grad over the windows
    whose maximum it was."""
    require(grad.shape == indices.shape, f"prim max_pool2d_backward: {grad.shape} and {indices.shape}")
    return _laid_out(shape, grad, grad.dtype)


def _avg_pool2d(
    x: Tensor, kernel: Shape, stride: Shape, padding: Shape, ceil: bool, count_padding: bool, divisor: int | None
) -> Tensor:
    return aten.avg_pool2d(x, list(kernel), list(stride), list(padding), ceil, count_padding, divisor)


@prim("avg_pool2d", kind=Kind.WINDOW, reference=_avg_pool2d, facts=LINEAR)
def avg_pool2d(
    x: TensorMeta,
    kernel: Shape,
    stride: Shape,
    padding: Shape,
    ceil: bool,
    count_padding: bool,
    divisor: int | None,
) -> TensorMeta:
    """The sum of each window, divided by divisor if that is given, else by the number of the window's elements within
    the padded input (count_padding) or within the input itself."""
    return _pooled(x, kernel, stride, padding, (1, 1), ceil, x.dtype)


def _avg_pool2d_backward(
    grad: Tensor,
    shape: Shape,
    kernel: Shape,
    stride: Shape,
    padding: Shape,
    ceil: bool,
    count_padding: bool,
    divisor: int | None,
) -> Tensor:
    like = grad.new_empty(shape)
    options = (list(kernel), list(stride), list(padding), ceil, count_padding, divisor)
    return aten.avg_pool2d_backward(grad, like, *options)


@prim("avg_pool2d_backward", kind=Kind.WINDOW, reference=_avg_pool2d_backward)
def avg_pool2d_backward(
    grad: TensorMeta,
    shape: Shape,
    kernel: Shape,
    stride: Shape,
    padding: Shape,
    ceil: bool,
    count_padding: bool,
    divisor: int | None,
) -> TensorMeta:
    """The gradient with respect to the input, which has `shape`: for each element the sum of grad / divisor over the
    windows that contain it."""
    require(math.prod(shape[:-2]) == math.prod(grad.shape[:-2]), f"prim avg_pool2d_backward: {grad.shape}, {shape}")
    return _laid_out(shape, grad, grad.dtype)
