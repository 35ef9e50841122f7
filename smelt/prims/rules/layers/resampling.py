"""Resampling, reflection and replication padding, `affine_grid`: input positions are functions of output positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from smelt.prims.registry import Lowering, as_float, aten, decomposition, dtype_of, is_empty, rank_of, shape_of
from smelt.shapes.size import Size, exact_quotient, known_less, same, same_all

# -- reads at positions along one dimension, and their gradient


def _read(p: Lowering, x: Node, dim: int, positions: Node) -> Node:
    return p.index_select(x, dim, positions)


def _read_gradient(p: Lowering, g: Node, dim: int, positions: Node, size: int) -> Node:
    """Returns the gradient of `_read`: the elements of g, summed at the positions from which `_read` took them."""
    shape = shape_of(g)
    zeros = p.full((*shape[:dim], size, *shape[dim + 1 :]), 0, dtype_of(g), p.out.device)
    indices = tuple(positions if d == dim else None for d in range(len(shape)))
    return p.index_put(zeros, indices, g, True)


# -- nearest


def _ignores_scale(p: Lowering, before: Sequence[int], after: Sequence[int], dim: int, each: bool) -> bool:
    """Whether eager copies along `dim` and ignores the scale, because the size does not change.

    Args:
        before, after: shapes of input and output.
        each: whether GPU kernels also decide for each dimension separately. Otherwise they copy only if no size
            changes. CPU kernels always decide separately.
    """
    if not each and p.out.device.type != "cpu":
        return same_all(before[2:], after[2:])
    return same(before[dim], after[dim])


def _unless_sizes_are_equal(p: Lowering, position: Node, at: Node, size: int, out: int) -> Node:
    """Returns `at`, or `position` if the sizes are equal. Only symbolic sizes are compared: callers have compared
    constants.
    """
    if not isinstance(size, Size) and not isinstance(out, Size):
        return at
    if known_less(size, out) or known_less(out, size):
        return at
    return p.where(p.eq(p.full_like(position, size), p.full_like(position, out)), position, at)


def _scale_of_dim(scales: Sequence[float | None], i: int) -> float | None:
    return scales[i] if i < len(scales) else None


def _scaled(p: Lowering, position: Node, scale: float | None, size: int, out: int) -> Node:
    """Returns position / scale for a given scale, else position * input size / output size."""
    if scale:
        return p.mul(position, 1 / scale)
    if isinstance(size, Size) or isinstance(out, Size):
        return p.mul(position, p.div(p.full_like(position, size), as_float(out)))
    return p.mul(position, size / out)


def _repetitions(scales: Sequence[float | None], i: int, size: int, out: int) -> int | None:
    """Returns the number of times that each input element is repeated; None if it differs between elements."""
    factor, scale = exact_quotient(out, size), _scale_of_dim(scales, i)
    if factor is None or (scale and (isinstance(factor, Size) or 1 / scale != 1 / factor)):
        return None
    return factor  # type: ignore[return-value]


def _nearest_positions(
    p: Lowering, size: int, out: int, scale: float | None, exact: bool = False, keeps: bool = True
) -> Node:
    """Returns the input position that each output position reads: floor(position * size / out), or with a given scale
    floor(position / scale).

    Args:
        exact: use position + 0.5, the middle of the output element, instead of position.
        keeps: read the same position if the sizes are equal, independent of the scale.
    """
    position = p.iota(out, 0, 1, torch.float32, p.out.device)
    at = _scaled(p, p.add(position, 0.5) if exact else position, scale, size, out)
    at = at if exact or not keeps else _unless_sizes_are_equal(p, position, at, size, out)
    return p.minimum(p.convert(p.floor(at), torch.int64), size - 1)


@decomposition(aten.upsample_nearest1d.default, aten.upsample_nearest2d.default, aten.upsample_nearest3d.default)
def upsample_nearest(p: Lowering, x: Node, sizes: Sequence[int], *scales: float | None) -> Any:
    """Repeat each element if the factor is a whole number; else read at `_nearest_positions`."""
    if is_empty(shape_of(x)):
        return NotImplemented
    # in one and three dimensions eager uses the scale even if the sizes are equal
    before, images = shape_of(x), rank_of(x) == 4
    for i, out in enumerate(p.out.shape[2:]):
        shape, dim = shape_of(x), 2 + i
        if images and _ignores_scale(p, before, p.out.shape, dim, each=True):
            continue
        factor = _repetitions(scales, i, shape[dim], out)
        if factor is not None:
            split = (*shape[: dim + 1], factor, *shape[dim + 1 :])
            spread = p.broadcast_in_dim(x, split, (*range(dim + 1), *range(dim + 2, len(split))))
            x = p.reshape(spread, (*shape[:dim], out, *shape[dim + 1 :]))
        else:
            x = _read(p, x, dim, _nearest_positions(p, shape[dim], out, _scale_of_dim(scales, i), keeps=images))
    return x


@decomposition(
    aten.upsample_nearest1d_backward.default,
    aten.upsample_nearest2d_backward.default,
    aten.upsample_nearest3d_backward.default,
)
def upsample_nearest_backward(
    p: Lowering, g: Node, sizes: Sequence[int], input_size: Sequence[int], *scales: float | None
) -> Any:
    return _nearest_backward(p, g, input_size, scales, exact=False)


def _nearest_backward(
    p: Lowering, g: Node, input_size: Sequence[int], scales: Sequence[float | None], exact: bool
) -> Any:
    if is_empty(input_size):
        return NotImplemented
    a, after = p.widen(g), shape_of(g)
    for i, size in enumerate(input_size[2:]):
        shape, dim = shape_of(a), 2 + i
        out = shape[dim]
        if not exact and _ignores_scale(p, input_size, after, dim, each=False):
            continue
        factor = None if exact else _repetitions(scales, i, size, out)
        if factor is not None:
            tiles = p.reshape(a, (*shape[:dim], size, factor, *shape[dim + 1 :]))
            a = p.sum(tiles, (dim + 1,))
        else:
            keeps = p.out.device.type == "cpu"
            positions = _nearest_positions(p, size, out, _scale_of_dim(scales, i), exact, keeps)
            a = _read_gradient(p, a, dim, positions, size)
    return p.convert(a, p.out.dtype)


EXACT = [getattr(aten, f"_upsample_nearest_exact{_rank}d").default for _rank in (1, 2, 3)]
EXACT_BACKWARD = [getattr(aten, f"_upsample_nearest_exact{_rank}d_backward").default for _rank in (1, 2, 3)]


@decomposition(*EXACT)
def upsample_nearest_exact(p: Lowering, x: Node, sizes: Sequence[int], *scales: float | None) -> Any:
    if is_empty(shape_of(x)):
        return NotImplemented
    for i, out in enumerate(p.out.shape[2:]):
        x = _read(p, x, 2 + i, _nearest_positions(p, shape_of(x)[2 + i], out, _scale_of_dim(scales, i), True))
    return x


@decomposition(*EXACT_BACKWARD)
def upsample_nearest_exact_backward(
    p: Lowering, g: Node, sizes: Sequence[int], input_size: Sequence[int], *scales: float | None
) -> Any:
    return _nearest_backward(p, g, input_size, scales, exact=True)


# -- linear


def _weights(p: Lowering, like: Node, size: int, out: int, align: bool, scale: float | None) -> tuple[Node, Node, Node]:
    """Returns (left index, right index, weight of the right element) per output element, computed in the dtype of
    `like`, as in eager.
    """
    position = p.iota(out, 0, 1, dtype_of(like), p.out.device)
    if align:
        at = _scaled(p, position, None, size - 1, out - 1) if not same(out, 1) else p.mul(position, 0.0)
    else:
        at = p.sub(_scaled(p, p.add(position, 0.5), scale, size, out), 0.5)
        at = p.maximum(at, 0.0)
        at = _unless_sizes_are_equal(p, position, at, size, out) if p.out.device.type == "cpu" else at
    left = p.minimum(p.convert(p.floor(at), torch.int64), size - 1)
    right = p.minimum(p.add(left, 1), size - 1)
    weight = p.sub(at, p.convert(left, dtype_of(like)))
    return left, right, p.minimum(p.maximum(weight, 0.0), 1.0)


def _broadcast_weight(p: Lowering, weight: Node, like: Node, dim: int) -> Node:
    return p.broadcast_in_dim(p.convert(weight, dtype_of(like)), shape_of(like), (dim,))


@decomposition(aten.upsample_linear1d.default, aten.upsample_bilinear2d.default, aten.upsample_trilinear3d.default)
def upsample_linear(p: Lowering, x: Node, sizes: Sequence[int], align: bool, *scales: float | None) -> Any:
    if is_empty(shape_of(x)) or not dtype_of(x).is_floating_point:
        return NotImplemented
    a = p.widen(x)
    for i, out in enumerate(p.out.shape[2:]):
        dim = 2 + i
        if _ignores_scale(p, shape_of(x), p.out.shape, dim, each=False):
            continue
        left, right, weight = _weights(p, a, shape_of(a)[dim], out, align, scales[i] if i < len(scales) else None)
        low, high = _read(p, a, dim, left), _read(p, a, dim, right)
        w = _broadcast_weight(p, weight, low, dim)
        a = p.add(p.mul(low, p.sub(1.0, w)), p.mul(high, w))
    return p.convert(a, p.out.dtype)


@decomposition(
    aten.upsample_linear1d_backward.default,
    aten.upsample_bilinear2d_backward.default,
    aten.upsample_trilinear3d_backward.default,
)
def upsample_linear_backward(
    p: Lowering, g: Node, sizes: Sequence[int], input_size: Sequence[int], align: bool, *scales: float | None
) -> Any:
    if is_empty(input_size) or not dtype_of(g).is_floating_point:
        return NotImplemented
    a, after = p.widen(g), shape_of(g)
    for i, size in enumerate(input_size[2:]):
        dim = 2 + i
        if _ignores_scale(p, input_size, after, dim, each=False):
            continue
        left, right, weight = _weights(p, a, size, shape_of(a)[dim], align, scales[i] if i < len(scales) else None)
        w = _broadcast_weight(p, weight, a, dim)
        low = _read_gradient(p, p.mul(a, p.sub(1.0, w)), dim, left, size)
        a = p.add(low, _read_gradient(p, p.mul(a, w), dim, right, size))
    return p.convert(a, p.out.dtype)


# -- padding by reflection and replication


def _padded_positions(p: Lowering, size: int, low: int, high: int, reflect: bool) -> Node:
    """Returns the source position of each element of a padded dimension."""
    position = p.iota(size + low + high, -low, 1, torch.int64, p.out.device)
    if reflect:
        return p.sub(size - 1, p.abs(p.sub(size - 1, p.abs(position))))
    return p.minimum(p.maximum(position, 0), size - 1)


def _for_padded_dims(
    p: Lowering, x: Node, sizes: Sequence[int], amounts: Sequence[int], reflect: bool, step: Callable[..., Node]
) -> Any:
    """Apply `step(x, dim, positions, size)` along each padded dimension; `sizes` is the shape without padding."""
    if is_empty(sizes):
        return NotImplemented
    for i in range(len(amounts) // 2):
        dim = rank_of(x) - 1 - i
        low, high = amounts[2 * i], amounts[2 * i + 1]
        if low or high:
            x = step(x, dim, _padded_positions(p, sizes[dim], low, high, reflect), sizes[dim])
    return x


def _pad(reflect: bool) -> Callable[..., Any]:
    def rule(p: Lowering, x: Node, amounts: Sequence[int]) -> Any:
        read = lambda x, dim, positions, size: _read(p, x, dim, positions)  # noqa: E731
        return _for_padded_dims(p, x, shape_of(x), amounts, reflect, read)

    return rule


def _pad_backward(reflect: bool) -> Callable[..., Any]:
    def rule(p: Lowering, g: Node, x: Node, amounts: Sequence[int]) -> Any:
        add = lambda g, dim, positions, size: _read_gradient(p, g, dim, positions, size)  # noqa: E731
        found = _for_padded_dims(p, p.widen(g), shape_of(x), amounts, reflect, add)
        return found if found is NotImplemented else p.convert(found, p.out.dtype)

    return rule


for _rank in (1, 2, 3):
    decomposition(getattr(aten, f"reflection_pad{_rank}d").default)(_pad(reflect=True))
    decomposition(getattr(aten, f"replication_pad{_rank}d").default)(_pad(reflect=False))
    decomposition(getattr(aten, f"reflection_pad{_rank}d_backward").default)(_pad_backward(reflect=True))
    decomposition(getattr(aten, f"replication_pad{_rank}d_backward").default)(_pad_backward(reflect=False))


# -- sampling grids


@decomposition(aten.affine_grid_generator.default)
def affine_grid(p: Lowering, theta: Node, size: Sequence[int], align: bool) -> Any:
    """Returns the points at which to sample an image or a volume: the affine map theta, applied to a regular grid.

    Coordinates go from -1 to 1; the coordinate along the last dimension of the image comes first.
    """
    space, shape = size[2:], p.out.shape
    if is_empty(shape):
        return NotImplemented
    a, axes = p.widen(theta), len(space)
    wide = (shape[0], *space, axes)
    total = None
    for column in range(axes + 1):
        factor = p.slice(a, (0, 0, column), (shape[0], axes, column + 1), (1, 1, 1))
        term = p.broadcast_in_dim(p.reshape(factor, (shape[0], axes)), wide, (0, axes + 1))
        if column < axes:
            dim = axes - 1 - column  # columns are in the order x, y, z: the last dimension first
            term = p.mul(term, p.broadcast_in_dim(_grid_coordinates(p, a, space[dim], align), wide, (dim + 1,)))
        total = term if total is None else p.add(total, term)
    return p.convert(total, p.out.dtype)


def _grid_coordinates(p: Lowering, like: Node, count: int, align: bool) -> Node:
    """Returns `count` evenly spaced numbers: from -1 to 1 inclusive if `align`, else the middles of `count` equal
    intervals.
    """
    if not isinstance(count, Size) and count <= 1:
        return p.full((count,), 0, dtype_of(like), p.out.device)
    position = p.iota(count, 0, 1, dtype_of(like), p.out.device)
    if align:
        return p.sub(p.mul(position, 2 / (count - 1)), 1.0)
    return p.sub(p.mul(position, 2 / count), 1 - 1 / count)
