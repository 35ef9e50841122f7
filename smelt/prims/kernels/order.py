"""Running maxima and minima, selection by rank, search in sorted values, histograms."""

from __future__ import annotations

import torch

from smelt.graph.ir.meta import TensorMeta
from smelt.prims.table import Number, Shape, kernel, make, require

aten = torch.ops.aten
Pair = tuple[TensorMeta, TensorMeta]


def _like(x: TensorMeta, dtype: torch.dtype | None = None) -> TensorMeta:
    return make(x.shape, dtype or x.dtype, x.device)


@kernel("cummax", aten.cummax.default)
def cummax(x: TensorMeta, dim: int) -> Pair:
    """(running maximum along dim, int64 position of its last occurrence)."""
    return _like(x), _like(x, torch.int64)


@kernel("cummin", aten.cummin.default)
def cummin(x: TensorMeta, dim: int) -> Pair:
    """(running minimum along dim, int64 position of its last occurrence)."""
    return _like(x), _like(x, torch.int64)


@kernel("logcumsumexp", aten.logcumsumexp.default)
def logcumsumexp(x: TensorMeta, dim: int) -> TensorMeta:
    """log of the running sum of exp along dim."""
    return _like(x)


def _reduced(x: TensorMeta, dim: int, keepdim: bool) -> Pair:
    if not x.shape:
        return _like(x), _like(x, torch.int64)
    dim %= len(x.shape)
    shape = x.shape[:dim] + ((1,) if keepdim else ()) + x.shape[dim + 1 :]
    return make(shape, x.dtype, x.device), make(shape, torch.int64, x.device)


@kernel("kthvalue", aten.kthvalue.default)
def kthvalue(x: TensorMeta, k: int, dim: int, keepdim: bool) -> Pair:
    """(k-th smallest element along dim, int64 position); k begins at 1."""
    return _reduced(x, dim, keepdim)


@kernel("mode", aten.mode.default)
def mode(x: TensorMeta, dim: int, keepdim: bool) -> Pair:
    """(most frequent element along dim, int64 position); of several the smallest."""
    return _reduced(x, dim, keepdim)


@kernel("median_dim", aten.median.dim)
def median_dim(x: TensorMeta, dim: int, keepdim: bool) -> Pair:
    """(lower median along dim, int64 position); NaN if there is any."""
    return _reduced(x, dim, keepdim)


@kernel("nanmedian_dim", aten.nanmedian.dim)
def nanmedian_dim(x: TensorMeta, dim: int, keepdim: bool) -> Pair:
    """(lower median along dim of the elements that are not NaN, int64 position)."""
    return _reduced(x, dim, keepdim)


@kernel("median", aten.median.default)
def median(x: TensorMeta) -> TensorMeta:
    """The lower median of all elements; NaN if there is any."""
    return make((), x.dtype, x.device)


@kernel("nanmedian", aten.nanmedian.default)
def nanmedian(x: TensorMeta) -> TensorMeta:
    """The lower median of all elements that are not NaN."""
    return make((), x.dtype, x.device)


def _index_dtype(narrow: bool) -> torch.dtype:
    return torch.int32 if narrow else torch.int64


@kernel("searchsorted", aten.searchsorted.Tensor)
def searchsorted(
    sequence: TensorMeta, x: TensorMeta, out_int32: bool, right: bool, side: str | None, sorter: TensorMeta | None
) -> TensorMeta:
    """For each element of x, its insertion index in the ascending last dimension of sequence."""
    require(len(sequence.shape) == 1 or sequence.shape[:-1] == x.shape[:-1], f"prim searchsorted: {x.shape}")
    return _like(x, _index_dtype(out_int32))


@kernel("searchsorted_number", aten.searchsorted.Scalar)
def searchsorted_number(
    sequence: TensorMeta, x: Number, out_int32: bool, right: bool, side: str | None, sorter: TensorMeta | None
) -> TensorMeta:
    """The insertion index of a number in the ascending vector."""
    require(len(sequence.shape) == 1, f"prim searchsorted_number: {sequence.shape}")
    return make((), _index_dtype(out_int32), sequence.device)


@kernel("bucketize", aten.bucketize.Tensor)
def bucketize(x: TensorMeta, boundaries: TensorMeta, out_int32: bool, right: bool) -> TensorMeta:
    """For each element, the index of its bucket between the ascending boundaries."""
    require(len(boundaries.shape) == 1, f"prim bucketize: {boundaries.shape}")
    return _like(x, _index_dtype(out_int32))


@kernel("histc", aten.histc.default)
def histc(x: TensorMeta, bins: int, low: Number, high: Number) -> TensorMeta:
    """The number of elements in each of `bins` bins of equal width from low to high; if low == high, from the minimum
    to the maximum of x."""
    return make((bins,), x.dtype, x.device)


@kernel("isin", aten.isin.Tensor_Tensor)
def isin(x: TensorMeta, tests: TensorMeta, assume_unique: bool, invert: bool) -> TensorMeta:
    """For each element, whether it is equal to an element of tests (with invert: to none)."""
    return _like(x, torch.bool)


@kernel("nonzero_static", aten.nonzero_static.default)
def nonzero_static(x: TensorMeta, size: int, fill_value: int) -> TensorMeta:
    """The indices of the elements that are not 0, as the first rows of a (size, rank) tensor whose other rows are
    fill_value."""
    return make((size, len(x.shape)), torch.int64, x.device)


@kernel("hash_tensor", aten.hash_tensor.default)
def hash_tensor(x: TensorMeta, dim: Shape, keepdim: bool, mode: int) -> TensorMeta:
    """The exclusive or of the bits of the elements over the dimensions `dim` (empty: all), as uint64."""
    rank = len(x.shape)
    over = {d % rank for d in dim} if dim and rank else set(range(rank))
    shape = tuple(1 if d in over else n for d, n in enumerate(x.shape) if keepdim or d not in over)
    return make(shape, torch.uint64, x.device)


def _triangle(rows: int, columns: int, offset: int) -> int:
    """Returns the number of positions (i, j) of a matrix with j - i <= offset."""
    return sum(min(max(i + offset + 1, 0), columns) for i in range(rows))


@kernel("tril_indices", aten.tril_indices.default)
def tril_indices(
    row: int, col: int, offset: int, dtype: torch.dtype, layout: torch.layout | None, device: torch.device
) -> TensorMeta:
    """The positions on and below a diagonal of a matrix, as a (2, count) tensor of row and column indices."""
    return make((2, _triangle(row, col, offset)), dtype, device)


@kernel("triu_indices", aten.triu_indices.default)
def triu_indices(
    row: int, col: int, offset: int, dtype: torch.dtype, layout: torch.layout | None, device: torch.device
) -> TensorMeta:
    """The positions on and above a diagonal of a matrix, as a (2, count) tensor of row and column indices."""
    return make((2, row * col - _triangle(row, col, offset - 1)), dtype, device)
