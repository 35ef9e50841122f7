"""Scans and sorting along one dimension."""

from __future__ import annotations

import torch
from torch import Tensor

from smelt.graph.ir.meta import TensorMeta
from smelt.prims.table import LINEAR, Kind, make, prim, require


@prim("cumsum", kind=Kind.SCAN, reference=lambda x, dim: torch.cumsum(x, dim, dtype=x.dtype), facts=LINEAR)
def cumsum(x: TensorMeta, dim: int) -> TensorMeta:
    """Running sums along dim, in the dtype of x."""
    return make(x.shape, x.dtype, x.device)


@prim("cumprod", kind=Kind.SCAN, reference=lambda x, dim: torch.cumprod(x, dim, dtype=x.dtype))
def cumprod(x: TensorMeta, dim: int) -> TensorMeta:
    """Running products along dim, in the dtype of x."""
    return make(x.shape, x.dtype, x.device)


def _sort(x: Tensor, dim: int, descending: bool, stable: bool) -> tuple[Tensor, Tensor]:
    values, indices = torch.sort(x, dim=dim, descending=descending, stable=stable)
    return values, indices


@prim("sort", kind=Kind.SCAN, reference=_sort)
def sort(x: TensorMeta, dim: int, descending: bool, stable: bool) -> tuple[TensorMeta, TensorMeta]:
    """(values, int64 indices) sorted along dim; NaN is larger than any number."""
    return make(x.shape, x.dtype, x.device), make(x.shape, torch.int64, x.device)


def _topk(x: Tensor, k: int, dim: int, largest: bool, ordered: bool) -> tuple[Tensor, Tensor]:
    values, indices = torch.topk(x, k, dim, largest, ordered)
    return values, indices


@prim("topk", kind=Kind.SCAN, reference=_topk)
def topk(x: TensorMeta, k: int, dim: int, largest: bool, ordered: bool) -> tuple[TensorMeta, TensorMeta]:
    """(values, int64 indices) of the k largest (or smallest) along dim."""
    require(bool(x.shape) and 0 <= k <= x.shape[dim], f"prim topk: {k} of {x.shape} along {dim}")
    shape = x.shape[:dim] + (k,) + x.shape[dim + 1 :]
    return make(shape, x.dtype, x.device), make(shape, torch.int64, x.device)
