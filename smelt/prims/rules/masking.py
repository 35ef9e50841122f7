"""Indexing under a mask, the gradient of `masked_scatter`, and checks of ranges (`in_range`)."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from smelt.graph.nodes.range_checks import IN_RANGE
from smelt.prims.registry import Lowering, aten, common_shape, decomposition, dtype_of, is_empty, shape_of
from smelt.prims.rules.indexing import put_at, read_at
from smelt.shapes.size import same


@decomposition(IN_RANGE)
def in_range(
    p: Lowering,
    x: Node,
    low: Any,
    high: Any,
    ignored: int | None,
    fault: int,
    waits: bool,
    excluded: int | None = None,
    summed: Sequence[int] | None = None,
) -> Any:
    """Returns a flag whose kernel raises the error `fault` for values out of the range; the value of the flag is not
    used.

    The result is NotImplemented if `waits`: then the CPU reads the flag and raises the error, as in eager.
    """
    if waits:
        return NotImplemented
    x = p.widen(x) if dtype_of(x).is_floating_point else p.convert(x, torch.int64)
    if summed is not None:
        x = p.sum(x, tuple(summed))
    tests = [p.ge(x, low)] if low is not None else []
    tests += [p.le(x, high)] if high is not None else []
    tests = [p.logical_not(test) for test in tests]
    tests += [p.eq(x, excluded)] if excluded is not None else []
    wrong = functools.reduce(p.logical_or, tests)
    if ignored is not None:
        wrong = p.logical_and(wrong, p.ne(x, ignored))
    return p.any(p.refuse(wrong, wrong, fault), p.dims_of(x, None))


@decomposition(aten._unsafe_masked_index.default)
def masked_index(p: Lowering, x: Node, mask: Node, indices: Sequence[Node | None], fill: Any) -> Any:
    """Returns x[indices] where the mask is true, else `fill`; where the mask is false, indices may be out of range."""
    if is_empty(shape_of(x)):
        return p.full(p.out.shape, fill, p.out.dtype, p.out.device)
    picked = read_at(p, x, _clamped(p, x, indices))
    return picked if picked is NotImplemented else p.where(p.broadcast(mask, shape_of(picked)), picked, fill)


@decomposition(aten._unsafe_masked_index_put_accumulate.default)
def masked_index_put(p: Lowering, x: Node, mask: Node, indices: Sequence[Node | None], values: Node) -> Any:
    """Returns x after `x[indices] += values`, without the elements of `values` at which the mask is false."""
    if is_empty(shape_of(x)):
        return x
    shape = common_shape(mask, values)
    kept = p.where(
        p.broadcast(mask, shape), p.broadcast(values, shape), p.full(shape, 0, dtype_of(values), p.out.device)
    )
    return put_at(p, x, _clamped(p, x, indices), kept, True)


def _clamped(p: Lowering, x: Node, indices: Sequence[Node | None]) -> tuple[Node | None, ...]:
    """Returns the indices, clamped to the range from -size to size - 1 of their dimension."""
    return tuple(
        None if i is None else p.minimum(p.maximum(p.convert(i, torch.int64), -n), n - 1)
        for i, n in zip(indices, shape_of(x), strict=False)
    )


@decomposition(aten.masked_scatter_backward.default)
def masked_scatter_backward(p: Lowering, g: Node, mask: Node, sizes: Sequence[int]) -> Any:
    """Returns a tensor of shape `sizes` with the elements of g at which the mask is true, in order, followed by
    zeros.
    """
    available, size = math.prod(sizes), math.prod(shape_of(g))
    if same(size, 0) or same(available, 0):
        return p.full(tuple(sizes), 0, dtype_of(g), p.out.device)
    kept = p.reshape(p.broadcast(mask, shape_of(g)), (size,))
    position = p.sub(p.cumsum(p.convert(kept, torch.int64), 0), 1)
    position = p.minimum(p.maximum(position, 0), available - 1)
    values = p.where(kept, p.reshape(g, (size,)), p.full((size,), 0, dtype_of(g), p.out.device))
    zeros = p.full((available,), 0, dtype_of(g), p.out.device)
    return p.reshape(p.index_put(zeros, (position,), values, True, False), tuple(sizes))
