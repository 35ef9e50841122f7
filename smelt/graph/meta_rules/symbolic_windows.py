"""Metadata of operators on images of symbolic size: padding, pooling, resampling, rearranging."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt.base.torch_private import schema_of
from smelt.graph.ir.meta import TensorMeta, channels_last_stride, is_channels_last
from smelt.graph.ir.symint import from_torch
from smelt.graph.meta_rules.elementwise import layout_sizes
from smelt.graph.meta_rules.layouts import (
    Rule,
    arguments_by_name,
    as_before,
    fresh,
    in_format,
    in_format_of_volume,
    row_major_like,
    val_of,
)
from smelt.shapes.size import IntLike, same

aten = torch.ops.aten


def _constant_pad(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, shape = val_of(args[0]), _padded(val_of(args[0]), args[1])
    if all(pad <= 0 for pad in args[1]):  # the result is a copy of the remaining elements
        return as_before(replace(val, shape=tuple(shape)))  # type: ignore[arg-type]
    last = is_channels_last(val.shape, val.stride)
    return fresh(val, shape, None, channels_last_stride(shape) if last else None)  # type: ignore[arg-type]


def _padded(val: TensorMeta, pads: Sequence[int]) -> list[IntLike]:
    shape: list[IntLike] = list(val.shape)
    for k in range(len(pads) // 2):
        shape[val.ndim - 1 - k] = shape[val.ndim - 1 - k] + pads[2 * k] + pads[2 * k + 1]
    return shape


def _mirrored_pad(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """The rule of reflection and replication: images and volumes keep their format; a reflection is smaller than the
    image.
    """
    val, pads = val_of(args[0]), args[1]
    if val.ndim not in (len(pads) // 2 + 1, len(pads) // 2 + 2):
        return None
    if "reflection" in schema_of(func).name:
        for k in range(len(pads) // 2):
            if not max(pads[2 * k : 2 * k + 2]) < val.shape[val.ndim - 1 - k]:
                return None
    shape = _padded(val, pads)
    return in_format(val, shape) if len(pads) > 2 and val.device.type == "cpu" else fresh(val, shape)


def _mirrored_pad_backward(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[1])
    return in_format(val, val.shape) if len(args[2]) > 2 and val.device.type == "cpu" else fresh(val, val.shape)


def _upsample(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, size = val_of(args[0]), args[1]
    if size is None or len(size) != val.ndim - 2:
        return None
    return in_format(val, (*val.shape[:2], *size))


def _upsample_backward(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    if func is aten.upsample_bicubic2d_backward.default and val.device.type == "cpu":
        return fresh(val, args[2])
    return in_format(val, args[2])


def _adaptive_pool(results: int = 1) -> Rule:
    def rule(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
        val, size = val_of(args[0]), args[1]
        shape = (*val.shape[: val.ndim - len(size)], *size)
        form = in_format if len(size) == 2 else fresh  # volumes are row-major
        return form(val, shape) if results == 1 else (form(val, shape), form(val, shape, torch.int64))

    return rule


def _in_own_format(position: int) -> Rule:
    """Returns the rule of a gradient in the shape of the argument at `position`, channels last if that is."""

    def rule(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
        val = val_of(args[position])
        return in_format(val, val.shape)

    return rule


def _pool(results: int = 1) -> Rule:
    """Returns the rule of a pooling with as many dimensions as the window has."""

    def rule(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
        val, named = val_of(args[0]), arguments_by_name(func, args, kwargs)
        kernel, count = named["kernel_size"], 3 if "3d" in schema_of(func).name else 2
        shape = list(val.shape[: val.ndim - count])
        for d in range(count):
            k, pad, dilation = (
                _each(named.get(n), d, o) for n, o in (("kernel_size", 1), ("padding", 0), ("dilation", 1))
            )
            step = _each(named["stride"], d, k) if named["stride"] else _each(kernel, d, 1)
            size = _windows(val.shape[val.ndim - count + d], k, step, pad, dilation, named["ceil_mode"])
            if not size > 0:
                return None
            shape.append(size)  # type: ignore[arg-type]
        if func is aten.avg_pool3d.default:
            return fresh(val, shape)
        form = in_format_of_volume if count == 3 and val.ndim == 4 else in_format
        made = form(val, shape)
        return made if results == 1 else (made, form(val, shape, torch.int64))

    return rule


def _each(values: Any, d: int, otherwise: int) -> int:
    if values is None or isinstance(values, int):
        return otherwise if values is None else values
    return values[d % len(values)] if values else otherwise


def _windows(size: IntLike, kernel: int, step: int, pad: int, dilation: int, ceil: bool) -> IntLike:
    """Returns the number of windows that fit; with `ceil` the last may extend over the edge, but must begin inside."""
    count = (size + 2 * pad - dilation * (kernel - 1) - 1 + (step - 1 if ceil else 0)) // step + 1
    return count - 1 if ceil and (count - 1) * step >= size + pad else count


def _pixel_shuffle(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, r = val_of(args[0]), args[1]
    *batch, channels, height, width = val.shape
    if channels % (r * r) != 0:
        return None
    shape = (*batch, channels // (r * r), height * r, width * r)
    return in_format(val, shape) if val.device.type == "cpu" else fresh(val, shape)


def _pixel_unshuffle(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, r = val_of(args[0]), args[1]
    if r == 1 and val.device.type == "cpu" and _is_empty(val):  # nothing to move
        return as_before(val)
    *batch, channels, height, width = val.shape
    if height % r != 0 or width % r != 0:
        return None
    shape = (*batch, channels * r * r, height // r, width // r)
    return in_format(val, shape) if val.device.type == "cpu" else fresh(val, shape)


def _im2col(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, (kernel, dilation, pad, step) = val_of(args[0]), args[1:5]
    height, width = (
        _windows(val.shape[val.ndim - 2 + d], kernel[d], step[d], pad[d], dilation[d], False) for d in (0, 1)
    )
    return fresh(val, (*val.shape[:-3], val.shape[-3] * kernel[0] * kernel[1], height * width))


def _col2im(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, size, kernel = val_of(args[0]), args[1], args[2]
    if val.shape[-2] % (kernel[0] * kernel[1]) != 0:
        return None
    return fresh(val, (*val.shape[:-2], val.shape[-2] // (kernel[0] * kernel[1]), *size))


def _grid_sampler(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, grid = val_of(args[0]), val_of(args[1])
    if grid.ndim != val.ndim or val.shape[0] != grid.shape[0] or grid.shape[-1] != val.ndim - 2:
        return None
    return fresh(val, (*val.shape[:2], *grid.shape[1:-1]))


def _grid_sampler_backward(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, grid = val_of(args[1]), val_of(args[2])
    dx = fresh(val, val.shape) if args[6][0] else None
    return dx, fresh(grid, grid.shape)


def _channel_shuffle(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    if val.ndim < 3 or from_torch(val.shape[1]) % from_torch(args[1]) != 0:  # the same check as the kernel
        return None
    return as_before(val) if _is_empty(val) else in_format(val, val.shape)


def _is_empty(val: TensorMeta) -> bool:
    """Whether the tensor has no elements for the sizes of this call."""
    return any(same(n, 0) for n in layout_sizes(val.shape))


_UPSAMPLES = (
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
    "_upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d "
    "_upsample_bilinear2d_aa _upsample_bicubic2d_aa".split()
)
UPSAMPLES = [getattr(aten, name).default for name in _UPSAMPLES]

WINDOW_RULES: dict[Any, Rule] = {
    aten.constant_pad_nd.default: _constant_pad,
    **{
        getattr(aten, f"{kind}_pad{n}d").default: _mirrored_pad
        for kind in ("reflection", "replication")
        for n in (1, 2, 3)
    },
    **{
        getattr(aten, f"{kind}_pad{n}d_backward").default: _mirrored_pad_backward
        for kind in ("reflection", "replication")
        for n in (1, 2, 3)
    },
    **{func: _upsample for func in UPSAMPLES},
    **{getattr(aten, f"{name}_backward").default: _upsample_backward for name in _UPSAMPLES},
    aten._adaptive_avg_pool2d.default: _adaptive_pool(),
    aten._adaptive_avg_pool3d.default: _adaptive_pool(),
    aten.adaptive_max_pool2d.default: _adaptive_pool(2),
    aten.adaptive_max_pool3d.default: _adaptive_pool(2),
    aten._adaptive_avg_pool2d_backward.default: _in_own_format(1),
    aten._adaptive_avg_pool3d_backward.default: row_major_like(1),
    aten.adaptive_max_pool2d_backward.default: _in_own_format(1),
    aten.adaptive_max_pool3d_backward.default: row_major_like(1),
    aten.max_pool2d_with_indices.default: _pool(2),
    aten.max_pool3d_with_indices.default: _pool(2),
    aten.avg_pool2d.default: _pool(),
    aten.avg_pool3d.default: _pool(),
    aten.max_pool2d_with_indices_backward.default: _in_own_format(1),
    aten.avg_pool2d_backward.default: _in_own_format(1),
    aten.max_pool3d_with_indices_backward.default: _in_own_format(1),
    aten.avg_pool3d_backward.default: row_major_like(1),
    aten.pixel_shuffle.default: _pixel_shuffle,
    aten.pixel_unshuffle.default: _pixel_unshuffle,
    aten.channel_shuffle.default: _channel_shuffle,
    aten.im2col.default: _im2col,
    aten.col2im.default: _col2im,
    aten.grid_sampler_2d.default: _grid_sampler,
    aten.grid_sampler_3d.default: _grid_sampler,
    aten.grid_sampler_2d_backward.default: _grid_sampler_backward,
    aten.grid_sampler_3d_backward.default: _grid_sampler_backward,
}
