"""Reductions of segments; distances between rows."""

from __future__ import annotations

import torch

from smelt.graph.ir.meta import TensorMeta
from smelt.graph.meta_rules.elementwise import broadcast
from smelt.prims.table import Number, Shape, kernel, make, require
from smelt.shapes.size import same

aten = torch.ops.aten


def _like(x: TensorMeta) -> TensorMeta:
    return make(x.shape, x.dtype, x.device)


@kernel("segment_reduce", aten.segment_reduce.default)
def segment_reduce(
    data: TensorMeta,
    reduce: str,
    lengths: TensorMeta | None,
    indices: TensorMeta | None,
    offsets: TensorMeta | None,
    axis: int,
    unsafe: bool,
    initial: Number | None,
) -> TensorMeta:
    """The reduction of each segment of data along axis; the segments are given by lengths (..., segments) or by offsets
    (..., segments + 1)."""
    bounds = lengths if lengths is not None else offsets
    require(bounds is not None, "prim segment_reduce: neither lengths nor offsets")
    assert bounds is not None
    count = bounds.shape[axis] - (lengths is None)
    return make((*data.shape[:axis], count, *data.shape[axis + 1 :]), data.dtype, data.device)


@kernel("segment_reduce_backward", aten._segment_reduce_backward.default)
def segment_reduce_backward(
    grad: TensorMeta,
    output: TensorMeta,
    data: TensorMeta,
    reduce: str,
    lengths: TensorMeta | None,
    offsets: TensorMeta | None,
    axis: int,
    initial: Number | None,
) -> TensorMeta:
    """The gradient of segment_reduce with respect to data."""
    return _like(data)


def _pairs(x: TensorMeta, y: TensorMeta) -> Shape:
    lead = broadcast([make(v.shape[:-2], v.dtype, v.device) for v in (x, y)])
    require(lead is not None and x.shape[-1] == y.shape[-1], f"prim cdist: {x.shape} and {y.shape}")
    assert lead is not None
    return (*lead, x.shape[-2], y.shape[-2])


@kernel("cdist", aten._cdist_forward.default)
def cdist(x: TensorMeta, y: TensorMeta, p: float, compute_mode: int | None) -> TensorMeta:
    """The p-norm of the difference of each row of x (..., n, width) and each row of y (..., m, width)."""
    return make(_pairs(x, y), x.dtype, x.device)


@kernel("cdist_backward", aten._cdist_backward.default)
def cdist_backward(grad: TensorMeta, x: TensorMeta, y: TensorMeta, p: float, distances: TensorMeta) -> TensorMeta:
    """The gradient of cdist with respect to x."""
    if any(same(n, 0) for v in (x, y) for n in v.shape):
        return _like(x)
    return make((*_pairs(x, y)[:-1], x.shape[-1]), x.dtype, x.device)


@kernel("pdist", aten._pdist_forward.default)
def pdist(x: TensorMeta, p: float) -> TensorMeta:
    """The p-norms of the differences of all pairs of rows of x, ordered by the first row."""
    rows = x.shape[0]
    return make((rows * (rows - 1) // 2,), x.dtype, x.device)


@kernel("pdist_backward", aten._pdist_backward.default)
def pdist_backward(grad: TensorMeta, x: TensorMeta, p: float, distances: TensorMeta) -> TensorMeta:
    """The gradient of pdist with respect to x."""
    return _like(x)
