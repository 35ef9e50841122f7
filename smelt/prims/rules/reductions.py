"""Reductions, norms, scans, `sort` and `topk`. Sums of bfloat16 and float16 accumulate in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from smelt.prims.dtypes import compute_dtype
from smelt.prims.ops import PRIMS
from smelt.prims.registry import Lowering, as_float, aten, decomposition, dtype_of, is_empty, rank_of, shape_of
from smelt.prims.rules.elementwise import inverse, on_gpu, truth
from smelt.shapes.size import Size, larger, same, smaller

Dims = Sequence[int] | int | None


def count_over(x: Node, dims: Sequence[int]) -> int:
    """Returns the number of elements of x that a reduction over dims combines into each result."""
    return math.prod(shape_of(x)[d] for d in dims)


def reduce(p: Lowering, name: str, x: Node, dims: Sequence[int], keep: bool) -> Node:
    """Apply the reduction prim `name`; with `keep` the reduced dimensions remain, with size 1."""
    result = p.emit(PRIMS[name], x, tuple(dims))
    return p.keep(result, dims) if keep and dims else result


def mean_of(p: Lowering, x: Node, dims: Sequence[int], keep: bool = False) -> Node:
    """Returns the mean over dims, in the dtype of x; NaN if there are no elements."""
    total, count = reduce(p, "sum", x, dims, keep), count_over(x, dims)
    return p.full_like(total, math.nan) if same(count, 0) else p.div(total, as_float(count))


def _accumulation_operand(p: Lowering, x: Node) -> Node:
    """Returns x rounded to the dtype of the result, then converted to the dtype in which it is accumulated."""
    return p.convert(p.convert(x, p.out.dtype), compute_dtype(p.out.dtype))


@decomposition(aten.sum.default, aten.sum.dim_IntList)
def sum_(p: Lowering, x: Node, dims: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Node:
    return p.convert(reduce(p, "sum", _accumulation_operand(p, x), p.dims_of(x, dims), keepdim), p.out.dtype)


@decomposition(aten.mean.default, aten.mean.dim)
def mean(p: Lowering, x: Node, dims: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Node:
    """Compute the mean, rounded as in eager: a CPU divides the sum by the count, a GPU multiplies the sum by the
    rounded inverse.
    """
    x, dims = _accumulation_operand(p, x), p.dims_of(x, dims)
    count = count_over(x, dims)
    if not on_gpu(p) or same(count, 0):
        return p.convert(mean_of(p, x, dims, keepdim), p.out.dtype)
    total = reduce(p, "sum", x, dims, keepdim)
    dtype = dtype_of(total).to_real() if dtype_of(total).is_complex else dtype_of(total)
    return p.convert(p.mul(total, inverse(p, count, dtype)), p.out.dtype)


@decomposition(aten.prod.default, aten.prod.dim_int)
def prod(p: Lowering, x: Node, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Node:
    return p.convert(reduce(p, "prod", _accumulation_operand(p, x), p.dims_of(x, dim), keepdim), p.out.dtype)


def _extreme(name: str, low: bool) -> Callable[..., Any]:
    def rule(p: Lowering, x: Node, dims: Dims = None, keepdim: bool = False) -> Any:
        dims = p.dims_of(x, dims)
        if same(count_over(x, dims), 0):
            return NotImplemented
        if dtype_of(x) is torch.bool:
            return reduce(p, "all" if low else "any", x, dims, keepdim)
        return p.convert(reduce(p, name, p.widen(x), dims, keepdim), p.out.dtype)

    return rule


amax, amin = _extreme("amax", low=False), _extreme("amin", low=True)
decomposition(aten.amax.default, aten.max.default)(amax)
decomposition(aten.amin.default, aten.min.default)(amin)


@decomposition(aten.aminmax.default)
def aminmax(p: Lowering, x: Node, *, dim: int | None = None, keepdim: bool = False) -> Any:
    low = amin(p, x, dim, keepdim)
    return low if low is NotImplemented else (low, amax(p, x, dim, keepdim))


def _comparable(p: Lowering, x: Node) -> Node:
    """Returns x in a dtype that the prims `argmax` and `argmin` take: bool as uint8, low precision as float32."""
    return p.convert(x, torch.uint8) if dtype_of(x) is torch.bool else p.widen(x)


def _arg(name: str) -> Callable[..., Any]:
    def rule(p: Lowering, x: Node, dim: int | None = None, keepdim: bool = False) -> Any:
        if not rank_of(x):
            return p.full((), 0, torch.int64, p.out.device)
        if is_empty(shape_of(x)):
            return NotImplemented
        if dim is None:
            position = p.emit(PRIMS[name], p.reshape(_comparable(p, x), (math.prod(shape_of(x)),)), 0)
            return p.reshape(position, p.out.shape)
        dim %= rank_of(x)
        position = p.emit(PRIMS[name], _comparable(p, x), dim)
        return p.keep(position, (dim,)) if keepdim else position

    return rule


decomposition(aten.argmax.default)(_arg("argmax"))
decomposition(aten.argmin.default)(_arg("argmin"))


def _with_index(name: str, low: bool) -> Callable[..., Any]:
    extreme, position = (amin, _arg("argmin")) if low else (amax, _arg("argmax"))

    def rule(p: Lowering, x: Node, dim: int, keepdim: bool = False) -> Any:
        if not rank_of(x):
            return x, p.full((), 0, torch.int64, p.out.device)
        if is_empty(shape_of(x)):
            return NotImplemented
        return extreme(p, x, dim, keepdim), position(p, x, dim, keepdim)

    return rule


decomposition(aten.max.dim)(_with_index("amax", low=False))
decomposition(aten.min.dim)(_with_index("amin", low=True))


def _any_or_all(name: str) -> Callable[..., Any]:
    def rule(p: Lowering, x: Node, dims: Dims = None, keepdim: bool = False) -> Node:
        everything = isinstance(dims, (tuple, list)) and not dims
        value = reduce(p, name, truth(p, x), () if everything else p.dims_of(x, dims), keepdim)
        return p.convert(value, p.out.dtype)

    return rule


decomposition(aten.any.default, aten.any.dim, aten.any.dims)(_any_or_all("any"))
decomposition(aten.all.default, aten.all.dim, aten.all.dims)(_any_or_all("all"))


@decomposition(aten.count_nonzero.dim_IntList, aten.count_nonzero.default)
def count_nonzero(p: Lowering, x: Node, dims: Dims = None) -> Node:
    return p.sum(p.convert(truth(p, x), torch.int64), p.dims_of(x, dims))


def moments(p: Lowering, x: Node, dims: Sequence[int]) -> tuple[Node, Node]:
    """Returns (variance, mean) over dims, which remain with size 1.

    It uses the corrected two-pass algorithm of Chan, Golub and LeVeque (1983): the mean first, then the deviations from
    it. Far from zero, the rounding error of the mean may exceed the distances between the values. The deviations from
    the exact mean sum to zero, so the sum of the computed ones measures this error; both results are corrected by it.
    """
    middle, count = mean_of(p, x, dims, keep=True), count_over(x, dims)
    if same(count, 0) or not dims:
        return _variance(p, p.mul(p.sub(x, middle), p.sub(x, middle)), x, dims, 0), middle
    off = p.sub(x, p.broadcast(middle, shape_of(x)))
    rest = reduce(p, "sum", off, dims, keep=True)
    squares = reduce(p, "sum", p.mul(off, off), dims, keep=True)
    missing = p.div(rest, as_float(count))
    total = p.maximum(p.sub(squares, p.mul(rest, missing)), 0.0)
    return p.div(total, as_float(count)), p.add(middle, missing)


def _variance(p: Lowering, squares: Node, x: Node, dims: Sequence[int], correction: float) -> Node:
    """Returns the sum of the squared deviations, divided by the number of elements less the correction."""
    total, count = reduce(p, "sum", squares, dims, keep=True), count_over(x, dims)
    if isinstance(count, Size) and correction != int(correction):
        rest = p.sub(p.full_like(total, count), float(correction))
        return p.div(total, p.maximum(rest, 0.0))
    freedom: Any = larger(count - int(correction), 0) if isinstance(count, Size) else max(count - correction, 0)
    if not isinstance(freedom, Size) and freedom == 0:
        return p.div(total, p.full_like(total, 0.0)) if dims else p.full_like(total, math.nan)
    return p.div(total, as_float(freedom))


def shifted_moments(p: Lowering, x: Node, dims: Sequence[int]) -> tuple[Node, Node]:
    """Returns (variance, mean) over dims, which remain with size 1, from two sums that need only one pass over memory.

    It uses the shifted-data algorithm of Chan, Golub and LeVeque (1983): the first element is subtracted before
    summing, which avoids cancellation if the mean is far from zero. x must not be empty.
    """
    shape = shape_of(x)
    stops = tuple(1 if d in dims else n for d, n in enumerate(shape))
    first = p.slice(x, (0,) * len(shape), stops, (1,) * len(shape))
    off = p.sub(x, p.broadcast(first, shape))
    count = as_float(count_over(x, dims))
    near = p.div(reduce(p, "sum", off, dims, keep=True), count)
    squares = p.div(reduce(p, "sum", p.mul(off, off), dims, keep=True), count)
    return p.maximum(p.sub(squares, p.mul(near, near)), 0.0), p.add(first, near)


def _var_mean(p: Lowering, x: Node, dims: Dims, correction: Any, keepdim: bool) -> tuple[Node, Node]:
    """Returns (variance, mean) over dims, not yet rounded to the result's dtype; on a CPU they are float64, as in
    eager.

    The first pass subtracts the first element, the second one the mean of these differences. This avoids cancellation
    far from zero, and the variance of equal elements is exactly 0. On a GPU float32 squares of 1e20 overflow, as in
    eager.
    """
    dims, shape = p.dims_of(x, dims), shape_of(x)
    a = p.convert(x, torch.float64) if p.out.device.type == "cpu" else p.widen(x)
    correction = 1 if correction is None else correction
    if is_empty(shape) or not dims:
        middle = mean_of(p, a, dims, keep=True)
        off = p.sub(a, p.broadcast(middle, shape))
    else:
        first = p.slice(
            a, (0,) * len(shape), tuple(1 if d in dims else n for d, n in enumerate(shape)), (1,) * len(shape)
        )
        away = p.sub(a, p.broadcast(first, shape))
        near = mean_of(p, away, dims, keep=True)
        off, middle = p.sub(away, p.broadcast(near, shape)), p.add(first, near)
    spread = _variance(p, p.mul(off, off), x, dims, correction)
    if not keepdim:
        kept = tuple(n for d, n in enumerate(shape_of(x)) if d not in dims)
        spread, middle = p.reshape(spread, kept), p.reshape(middle, kept)
    return spread, middle


@decomposition(aten.var.correction)
def var(p: Lowering, x: Node, dims: Dims = None, *, correction: Any = None, keepdim: bool = False) -> Node:
    return p.convert(_var_mean(p, x, dims, correction, keepdim)[0], p.out.dtype)


@decomposition(aten.std.correction)
def std(p: Lowering, x: Node, dims: Dims = None, *, correction: Any = None, keepdim: bool = False) -> Node:
    return p.convert(p.sqrt(_var_mean(p, x, dims, correction, keepdim)[0]), p.out.dtype)


@decomposition(aten.var_mean.correction)
def var_mean(
    p: Lowering, x: Node, dims: Dims = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Node, Node]:
    spread, middle = _var_mean(p, x, dims, correction, keepdim)
    return p.convert(spread, p.out.dtype), p.convert(middle, p.out.dtype)


@decomposition(aten.std_mean.correction)
def std_mean(
    p: Lowering, x: Node, dims: Dims = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Node, Node]:
    spread, middle = _var_mean(p, x, dims, correction, keepdim)
    return p.convert(p.sqrt(spread), p.out.dtype), p.convert(middle, p.out.dtype)


@decomposition(aten.var.default, aten.var.dim)
def var_unbiased(p: Lowering, x: Node, dims: Any = None, unbiased: bool = True, keepdim: bool = False) -> Node:
    if isinstance(dims, bool):
        dims, unbiased = None, dims
    return var(p, x, dims, correction=int(unbiased), keepdim=keepdim)


@decomposition(aten.logsumexp.default)
def logsumexp(p: Lowering, x: Node, dims: Dims, keepdim: bool = False) -> Any:
    dims = p.dims_of(x, dims)
    if same(count_over(x, dims), 0):
        return p.full(p.out.shape, -math.inf, p.out.dtype, p.out.device)
    a = p.convert(x, compute_dtype(p.out.dtype))
    top = reduce(p, "amax", a, dims, keep=True)
    top = p.where(p.eq(p.abs(top), math.inf), 0.0, top)
    total = reduce(p, "sum", p.exp(p.sub(a, p.broadcast(top, shape_of(a)))), dims, keep=True)
    result = p.add(p.log(total), top)
    return p.convert(result if keepdim else p.reshape(result, p.out.shape), p.out.dtype)


@decomposition(aten.linalg_vector_norm.default)
def vector_norm(
    p: Lowering, x: Node, order: float = 2, dims: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    dims = p.dims_of(x, dims)
    a = _accumulation_operand(p, x)
    if same(count_over(x, dims), 0) and (math.isinf(order) or order < 0):
        return NotImplemented
    return p.convert(norm_of(p, a, order, dims, keepdim), p.out.dtype)


def norm_of(p: Lowering, a: Node, order: float, dims: Sequence[int], keep: bool) -> Node:
    """Returns the vector norm over dims, in the dtype of a."""
    size = p.abs(a)
    if order == math.inf:
        return reduce(p, "amax", size, dims, keep)
    if order == -math.inf:
        return reduce(p, "amin", size, dims, keep)
    if order == 0:
        return reduce(p, "sum", p.convert(p.ne(a, 0), dtype_of(a)), dims, keep)
    if order == 1:
        return reduce(p, "sum", size, dims, keep)
    if order == 2:
        return p.sqrt(reduce(p, "sum", p.mul(a, a), dims, keep))
    return p.pow(reduce(p, "sum", p.pow(size, float(order)), dims, keep), 1 / order)


@decomposition(aten.norm.Scalar, aten.norm.ScalarOpt_dim, aten.norm.ScalarOpt_dim_dtype, aten.norm.ScalarOpt_dtype)
def norm(p: Lowering, x: Node, order: Any = 2, dims: Dims = None, keepdim: bool = False, **options: Any) -> Any:
    return vector_norm(p, x, 2 if order is None else order, dims, keepdim)


@decomposition(aten.cumsum.default)
def cumsum(p: Lowering, x: Node, dim: int, *, dtype: Any = None) -> Node:
    return _scan(p, "cumsum", x, dim)


@decomposition(aten.cumprod.default)
def cumprod(p: Lowering, x: Node, dim: int, *, dtype: Any = None) -> Node:
    return _scan(p, "cumprod", x, dim)


def _scan(p: Lowering, name: str, x: Node, dim: int) -> Node:
    if not rank_of(x):
        return p.convert(x, p.out.dtype)
    a = p.convert(p.convert(x, p.out.dtype), compute_dtype(p.out.dtype))
    return p.convert(p.emit(PRIMS[name], a, dim % rank_of(x)), p.out.dtype)


@decomposition(aten.sort.default, aten.sort.stable)
def sort(p: Lowering, x: Node, dim: Any = -1, descending: bool = False, *, stable: bool | None = None) -> Any:
    if not rank_of(x):
        return x, p.full((), 0, torch.int64, p.out.device)
    values, indices = p.sort(x, dim % rank_of(x), descending, bool(stable))
    return values, indices


@decomposition(aten.topk.default)
def topk(p: Lowering, x: Node, k: int, dim: int = -1, largest: bool = True, ordered: bool = True) -> Any:
    if not rank_of(x):
        return (x, p.full((), 0, torch.int64, p.out.device)) if k == 1 else NotImplemented
    return p.topk(x, k, dim % rank_of(x), largest, ordered)


@decomposition(aten.std.default, aten.std.dim)
def std_unbiased(p: Lowering, x: Node, dims: Any = None, unbiased: bool = True, keepdim: bool = False) -> Node:
    if isinstance(dims, bool):
        dims, unbiased = None, dims
    return std(p, x, dims, correction=int(unbiased), keepdim=keepdim)


@decomposition(aten.nansum.default)
def nansum(p: Lowering, x: Node, dims: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Node:
    a = _accumulation_operand(p, x)
    if dtype_of(x).is_floating_point:
        a = p.where(p.isnan(a), 0.0, a)
    return p.convert(reduce(p, "sum", a, p.dims_of(x, dims), keepdim), p.out.dtype)


@decomposition(aten.trace.default)
def trace(p: Lowering, x: Node) -> Node:
    rows, columns = shape_of(x)
    size = smaller(rows, columns)
    flat = p.reshape(x, (rows * columns,))
    line = p.slice(flat, (0,), (larger(size - 1, 0) * (columns + 1) + (not same(size, 0)),), (columns + 1,))
    return p.convert(p.sum(p.convert(line, compute_dtype(p.out.dtype)), (0,)), p.out.dtype)
