"""Sliding windows along one dimension (`unfold`), and their gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Node

from smelt.prims.registry import Lowering, aten, decomposition, dtype_of, rank_of, shape_of
from smelt.prims.rules.views import cut
from smelt.shapes.size import same

MAX_UNROLLED_WINDOW = 16
"""Maximum window size for which `unfold` is one strided slice per window element; later stages treat these as views."""


def _window_positions(p: Lowering, count: int, size: int, step: int) -> Node:
    """Returns the positions that the windows read, window by window, as a vector of count * size elements."""
    starts = p.iota(count, 0, step, torch.int64, p.out.device)
    inside = p.iota(size, 0, 1, torch.int64, p.out.device)
    shape = (count, size)
    both = p.add(p.broadcast_in_dim(starts, shape, (0,)), p.broadcast_in_dim(inside, shape, (1,)))
    return p.reshape(both, (count * size,))


@decomposition(aten.unfold.default, aten.unfold_copy.default)
def unfold(p: Lowering, x: Node, dim: int, size: int, step: int) -> Node:
    if not rank_of(x):
        return p.reshape(x, (1,)) if size == 1 else p.full(p.out.shape, 0, p.out.dtype, p.out.device)
    dim %= rank_of(x)
    count, last = p.out.shape[dim], rank_of(x)
    if same(count, 0) or size == 0:
        return p.full(p.out.shape, 0, p.out.dtype, p.out.device)
    if size <= MAX_UNROLLED_WINDOW:
        rows = [cut(p, x, dim, i, i + (count - 1) * step + 1, step) for i in range(size)]
        return p.cat(tuple(p.keep(row, (last,)) for row in rows), last)
    picked = p.index_select(x, dim, _window_positions(p, count, size, step))
    shape = shape_of(x)
    picked = p.reshape(picked, (*shape[:dim], count, size, *shape[dim + 1 :]))
    order = tuple(d for d in range(last + 1) if d != dim + 1)
    return p.permute(picked, (*order, dim + 1))


@decomposition(aten.unfold_backward.default)
def unfold_backward(p: Lowering, g: Node, sizes: Sequence[int], dim: int, size: int, step: int) -> Node:
    """Compute the gradient of each element as the sum of g over the windows that contain it."""
    sizes, a = tuple(sizes), p.widen(g)
    zeros = p.full(sizes, 0, dtype_of(a), p.out.device)
    if not sizes:
        return p.reshape(g, ()) if size == 1 else p.convert(zeros, p.out.dtype)
    rank = len(sizes)
    dim %= rank
    count = shape_of(g)[dim]
    if same(count, 0) or size == 0:
        return p.convert(zeros, p.out.dtype)
    a = p.permute(a, (*range(dim + 1), rank, *range(dim + 1, rank)))
    a = p.reshape(a, (*sizes[:dim], count * size, *sizes[dim + 1 :]))
    indices = tuple(_window_positions(p, count, size, step) if d == dim else None for d in range(rank))
    return p.convert(p.index_put(zeros, indices, a, True, False), p.out.dtype)
