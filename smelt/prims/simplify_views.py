"""Simplifications of views and copies: removes identities, chains of one kind, and views of constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.fx import Node

from smelt.prims.one_hot import sum_of_one_hot
from smelt.prims.ops import PRIMS
from smelt.prims.simplify import FULL, operands
from smelt.prims.table import Number, Shape
from smelt.shapes.size import known_less, same, same_all

if TYPE_CHECKING:
    from smelt.prims.builder import Builder

RESHAPE, PERMUTE, BROADCAST, SLICE, SLICE_SCATTER = (
    PRIMS[name] for name in ("reshape", "permute", "broadcast_in_dim", "slice", "slice_scatter")
)


def _constant(p: Builder, x: Node, shape: Shape) -> Any:
    _, value, dtype, device = operands(x)
    return p.full(shape, value, dtype, device)


def _reshape(p: Builder, x: Node, shape: Shape) -> Any:
    if same_all(x.meta["val"].shape, shape):
        return x
    if x.target is FULL:
        return _constant(p, x, shape)
    if x.target is RESHAPE:
        return p.reshape(operands(x)[0], shape)
    return None


def _permute(p: Builder, x: Node, dims: Shape) -> Any:
    shape = x.meta["val"].shape
    if dims == tuple(range(len(dims))):
        return x
    moved = [d for d in dims if not same(shape[d], 1)]
    if moved == sorted(moved):  # only dimensions of size 1 move
        return p.reshape(x, tuple(shape[d] for d in dims))
    if x.target is FULL:
        return _constant(p, x, tuple(shape[d] for d in dims))
    if x.target is PERMUTE:
        inner = operands(x)[1]
        return p.permute(operands(x)[0], tuple(inner[d] for d in dims))
    return None


def _added_ones(small: Shape, large: Shape) -> Shape | None:
    """Returns the position in `large` of each dimension of `small`, if `large` is `small` with dimensions of size 1
    inserted; else None.
    """
    matched: list[int] = []
    for d, n in enumerate(large):
        if len(matched) < len(small) and same(small[len(matched)], n):
            matched.append(d)
        elif not same(n, 1):
            return None
    return tuple(matched) if len(matched) == len(small) else None


def _broadcast(p: Builder, x: Node, shape: Shape, dims: Shape) -> Any:
    own = x.meta["val"].shape
    if same_all(own, shape):
        return x
    if x.target is FULL:
        return _constant(p, x, shape)
    if x.target is BROADCAST:
        inner = operands(x)[2]
        return p.broadcast_in_dim(operands(x)[0], shape, tuple(dims[d] for d in inner))
    if x.target is RESHAPE:
        source = operands(x)[0]
        kept_dims = _added_ones(source.meta["val"].shape, own)
        if kept_dims is not None:
            return p.broadcast_in_dim(source, shape, tuple(dims[d] for d in kept_dims))
    if sum(not same(n, 1) for n in shape) == sum(not same(n, 1) for n in own):  # only dimensions of size 1 are added
        return p.reshape(x, shape)
    return None


def _slice(p: Builder, x: Node, starts: Shape, stops: Shape, steps: Shape) -> Any:
    shape = x.meta["val"].shape
    each = all(s == 1 or same(n, 0) or same(n, 1) for s, n in zip(steps, shape, strict=True))
    if each and all(same(a, 0) for a in starts) and same_all(stops, shape):
        return x
    if x.target is FULL:
        sizes = ((b - a + s - 1) // s for a, b, s in zip(starts, stops, steps, strict=True))
        return _constant(p, x, tuple(sizes))
    if x.target is SLICE:
        source, first, _, strides = operands(x)
        begin = tuple(map(_composed_start, first, starts, stops, strides))
        end = tuple(map(_composed_stop, first, starts, stops, strides))
        jump = tuple(s * t for s, t in zip(steps, strides, strict=True))
        return p.slice(source, begin, end, jump) if all(e is not None for e in end) else None
    return None


def _composed_start(first: int, start: int, stop: int, stride: int) -> int:
    """Returns the start of a composed slice: `start:stop` of a slice that begins at `first` with step `stride`, both as
    one slice of the original value.

    An empty slice starts at `first`: `first + start * stride` may be beyond the end of the value.
    """
    return first if same(start, stop) else first + start * stride


def _composed_stop(first: int, start: int, stop: int, stride: int) -> int | None:
    """Returns the stop of that composed slice (see `_composed_start`); None if it is unknown whether the slice is
    empty.
    """
    if same(start, stop):
        return first
    if stride == 1:
        return first + stop
    return first + (stop - 1) * stride + 1 if known_less(start, stop) else None


def _slice_scatter(p: Builder, x: Node, src: Node, starts: Shape, stops: Shape, steps: Shape) -> Any:
    """Turn a write to a slice of a slice (`z[2:5, 1:3] = y`, `z[i, j] = y`) into one write."""
    # the dimensions of size 1 that `select` had removed from the slice are inserted into `src`
    ones = src.target is RESHAPE
    written = operands(src)[0] if ones else src
    if written.target is not SLICE_SCATTER:
        return None
    region, inner, *bounds = operands(written)
    region = operands(region)[0] if region.target is RESHAPE and ones else region
    if region.target is not SLICE or operands(region)[:1] != (x,) or operands(region)[1:] != (starts, stops, steps):
        return None
    shape = src.meta["val"].shape
    kept = _added_ones(written.meta["val"].shape, shape)
    if kept is None:
        return None
    first, last, jump = [0] * len(shape), [1] * len(shape), [1] * len(shape)
    sizes = [1] * len(shape)
    for d, a, b, s, n in zip(kept, *bounds, inner.meta["val"].shape, strict=True):
        first[d], last[d], jump[d], sizes[d] = a, b, s, n
    begin = tuple(map(_composed_start, starts, first, last, steps))
    end = tuple(map(_composed_stop, starts, first, last, steps))
    if None in end:
        return None
    jumps = tuple(s * t for s, t in zip(steps, jump, strict=True))
    return p.slice_scatter(x, p.reshape(inner, tuple(sizes)), begin, end, jumps)


def _flip(p: Builder, x: Node, dims: Shape) -> Any:
    return x if x.target is FULL or all(_at_most_one(x.meta["val"].shape[d]) for d in dims) else None


def _at_most_one(size: int) -> bool:
    return same(size, 0) or same(size, 1)


def _pad(p: Builder, x: Node, low: Shape, high: Shape, value: Number) -> Any:
    return x if all(same(n, 0) for n in (*low, *high)) else None


def _cat(p: Builder, tensors: Any, dim: int) -> Any:
    kept = tuple(x for x in tensors if not same(x.meta["val"].shape[dim], 0)) or tuple(tensors)[:1]
    if len(kept) == 1:
        return kept[0]
    return None if len(kept) == len(tensors) else p.cat(kept, dim)


def _reduction(p: Builder, x: Node, dims: Shape) -> Any:
    if not dims:
        return x
    shape = x.meta["val"].shape
    if all(same(shape[d], 1) for d in dims):
        return p.reshape(x, tuple(n for d, n in enumerate(shape) if d not in dims))
    return None


def _sum(p: Builder, x: Node, dims: Shape) -> Any:
    simpler = _reduction(p, x, dims)
    if simpler is None:
        return sum_of_one_hot(p, x, dims)
    return p.add(simpler, 0.0) if x.meta["val"].dtype.is_floating_point else simpler  # the sum of a single -0.0 is 0.0


def _undoes(name: str) -> Callable[..., Any]:
    """Returns the rule of a prim that is the inverse of the prim `name`: a pair of them is the identity."""
    other = PRIMS[name]
    return lambda p, x: operands(x)[0] if x.target is other else None


VIEW_RULES: dict[str, Callable[..., Any]] = {
    "view_as_real": _undoes("view_as_complex"),
    "view_as_complex": _undoes("view_as_real"),
    "reshape": _reshape,
    "permute": _permute,
    "broadcast_in_dim": _broadcast,
    "slice": _slice,
    "slice_scatter": _slice_scatter,
    "flip": _flip,
    "pad": _pad,
    "cat": _cat,
    **dict.fromkeys(("prod", "amax", "amin", "any", "all"), _reduction),
    "sum": _sum,
}
"""The simplification rules of view, copy and reduction prims, by name."""
