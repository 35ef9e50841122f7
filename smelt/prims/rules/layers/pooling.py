"""Pooling and pixel shuffles. Average pooling in windows that tile the image is a mean; prims compute other pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from smelt.prims.registry import Lowering, as_float, aten, decomposition, dtype_of, is_empty, rank_of, shape_of
from smelt.prims.rules.reductions import mean_of
from smelt.shapes.size import known_divides

Sizes = Sequence[int] | int


def _pair(values: Sizes, default: Sizes = ()) -> tuple[int, int]:
    sizes = (values,) if isinstance(values, int) else tuple(values)
    if not sizes:
        return _pair(default)
    return (sizes[0], sizes[0]) if len(sizes) == 1 else (sizes[0], sizes[1])


@decomposition(aten.max_pool2d_with_indices.default)
def max_pool2d(
    p: Lowering, x: Node, kernel: Sizes, stride: Sizes = (), padding: Sizes = 0, dilation: Sizes = 1, ceil: bool = False
) -> Any:
    if is_empty(shape_of(x)):
        return NotImplemented
    return p.max_pool2d(x, _pair(kernel), _pair(stride, kernel), _pair(padding), _pair(dilation), ceil)


@decomposition(aten.max_pool2d_with_indices_backward.default)
def max_pool2d_backward(
    p: Lowering,
    g: Node,
    x: Node,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    ceil: bool,
    indices: Node,
) -> Any:
    if is_empty(shape_of(x)):
        return NotImplemented
    windows = (_pair(kernel), _pair(stride, kernel), _pair(padding), _pair(dilation))
    return p.max_pool2d_backward(g, indices, shape_of(x), *windows)


def _tiles(x: tuple[int, ...], kernel: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, int]]:
    """Returns the shape (..., rows, height, columns, width) of images of shape x split into windows, and its window
    dimensions.
    """
    *lead, h, w = x
    return (*lead, h // kernel[0], kernel[0], w // kernel[1], kernel[1]), (len(lead) + 1, len(lead) + 3)


def _tiled_mean(p: Lowering, x: Node, kernel: tuple[int, int]) -> Node:
    shape, dims = _tiles(shape_of(x), kernel)
    return p.convert(mean_of(p, p.reshape(p.widen(x), shape), dims), p.out.dtype)


def _tiled_mean_backward(p: Lowering, g: Node, shape: tuple[int, ...], kernel: tuple[int, int]) -> Node:
    tiled, dims = _tiles(shape, kernel)
    share = p.div(p.widen(g), as_float(kernel[0] * kernel[1]))
    return p.convert(p.reshape(p.spread(share, tiled, dims), shape), p.out.dtype)


def _tiles_image(
    shape: tuple[int, ...], kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int], divisor: Any
) -> bool:
    fits = known_divides(kernel[0], shape[-2]) and known_divides(kernel[1], shape[-1])
    return fits and kernel == stride and padding == (0, 0) and divisor is None and not is_empty(shape)


@decomposition(aten.avg_pool2d.default)
def avg_pool2d(
    p: Lowering,
    x: Node,
    kernel: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    ceil: bool = False,
    count_padding: bool = True,
    divisor: int | None = None,
) -> Any:
    if not dtype_of(x).is_floating_point or is_empty(shape_of(x)):
        return NotImplemented
    windows = (_pair(kernel), _pair(stride, kernel), _pair(padding))
    if _tiles_image(shape_of(x), *windows, divisor):
        return _tiled_mean(p, x, windows[0])
    return p.convert(p.avg_pool2d(p.widen(x), *windows, ceil, count_padding, divisor), p.out.dtype)


@decomposition(aten.avg_pool2d_backward.default)
def avg_pool2d_backward(
    p: Lowering,
    g: Node,
    x: Node,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    ceil: bool,
    count_padding: bool,
    divisor: int | None,
) -> Any:
    if not dtype_of(x).is_floating_point or is_empty(shape_of(x)):
        return NotImplemented
    windows = (_pair(kernel), _pair(stride, kernel), _pair(padding))
    if _tiles_image(shape_of(x), *windows, divisor):
        return _tiled_mean_backward(p, g, shape_of(x), windows[0])
    options = (ceil, count_padding, divisor)
    return p.convert(p.avg_pool2d_backward(p.widen(g), shape_of(x), *windows, *options), p.out.dtype)


def _adaptive_kernel(shape: tuple[int, ...], out: tuple[int, ...]) -> tuple[int, int] | None:
    if is_empty(out) or not (known_divides(out[-2], shape[-2]) and known_divides(out[-1], shape[-1])):
        return None
    return shape[-2] // out[-2], shape[-1] // out[-1]


@decomposition(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(p: Lowering, x: Node, sizes: Sizes) -> Any:
    kernel = _adaptive_kernel(shape_of(x), p.out.shape)
    return p.adaptive_avg_pool2d(x, _pair(sizes)) if kernel is None else _tiled_mean(p, x, kernel)


@decomposition(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool2d_backward(p: Lowering, g: Node, x: Node) -> Any:
    kernel = _adaptive_kernel(shape_of(x), shape_of(g))
    if kernel is None:
        return p.adaptive_avg_pool2d_backward(g, x)
    return _tiled_mean_backward(p, g, shape_of(x), kernel)


# -- moves between channels and space


@decomposition(aten.pixel_shuffle.default)
def pixel_shuffle(p: Lowering, x: Node, factor: int) -> Node:
    *lead, c, h, w = shape_of(x)
    x = p.reshape(x, (*lead, c // factor**2, factor, factor, h, w))
    n = len(lead)
    return p.reshape(p.permute(x, (*range(n + 1), n + 3, n + 1, n + 4, n + 2)), p.out.shape)


@decomposition(aten.pixel_unshuffle.default)
def pixel_unshuffle(p: Lowering, x: Node, factor: int) -> Node:
    *lead, c, h, w = shape_of(x)
    x = p.reshape(x, (*lead, c, h // factor, factor, w // factor, factor))
    n = len(lead)
    return p.reshape(p.permute(x, (*range(n + 1), n + 2, n + 4, n + 1, n + 3)), p.out.shape)


@decomposition(aten.channel_shuffle.default)
def channel_shuffle(p: Lowering, x: Node, groups: int) -> Node:
    n, c, *space = shape_of(x)
    x = p.reshape(x, (n, groups, c // groups, *space))
    return p.reshape(p.permute(x, (0, 2, 1, *range(3, rank_of(x)))), p.out.shape)
