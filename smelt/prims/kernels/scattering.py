"""Reductions of all values that are written to the same data-dependent index."""

from __future__ import annotations

import torch

from smelt.graph.ir.meta import TensorMeta
from smelt.prims.table import kernel, pointwise_like, require

aten = torch.ops.aten

REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


@kernel("scatter_reduce", aten.scatter_reduce.two)
def scatter_reduce(
    x: TensorMeta, dim: int, index: TensorMeta, src: TensorMeta, reduce: str, include_self: bool
) -> TensorMeta:
    """A copy of x in which out[i][index[i][j][k]][k] is the reduction of all src[i][j][k] with that index, and of x's
    element if include_self (shown for dim 1)."""
    require(reduce in REDUCTIONS and src.dtype is x.dtype, f"prim scatter_reduce: {reduce} of {src.dtype}")
    return pointwise_like((x,), x.dtype)


@kernel("index_reduce", aten.index_reduce.default)
def index_reduce(
    x: TensorMeta, dim: int, index: TensorMeta, source: TensorMeta, reduce: str, include_self: bool
) -> TensorMeta:
    """The slices of source reduced into the slices of x along dim that the 1-d index names."""
    require(reduce in REDUCTIONS and source.dtype is x.dtype, f"prim index_reduce: {reduce} of {source.dtype}")
    return pointwise_like((x,), x.dtype)
