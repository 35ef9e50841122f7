"""Normalizations, softmax and their gradients. Statistics are computed in float32 or float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from smelt.prims.dtypes import compute_dtype
from smelt.prims.registry import (
    Lowering,
    as_float,
    aten,
    decomposition,
    device_of,
    dtype_of,
    is_empty,
    rank_of,
    shape_of,
)
from smelt.prims.rules.reductions import count_over, mean_of, moments, shifted_moments
from smelt.shapes.size import Size, same, same_all

Optional = Node | None


def _wide(p: Lowering, *values: Optional) -> list[Any]:
    """Returns the operands in the widest compute dtype among them."""
    dtypes = {compute_dtype(dtype_of(v)) for v in values if v is not None}
    wide = max(dtypes, key=lambda d: d.itemsize)
    return [None if v is None else p.convert(v, wide) for v in values]


def _to_result(p: Lowering, value: Optional, result: Any) -> Any:
    """Returns the value in the dtype and shape of the meta `result`; None for a result that is not requested."""
    if result is None or value is None:
        return None
    return p.convert(p.reshape(value, result.shape), result.dtype)


def _requested_gradients(p: Lowering, values: Sequence[Optional], mask: Sequence[bool]) -> tuple[Any, ...]:
    picked = (v if wanted else None for v, wanted in zip(values, mask, strict=True))
    return tuple(_to_result(p, v, meta) for v, meta in zip(picked, p.result, strict=True))


# -- layer norm


@decomposition(aten.native_layer_norm.default)
def layer_norm(
    p: Lowering, x: Node, sizes: Sequence[int], weight: Optional, bias: Optional, eps: float
) -> tuple[Node, ...]:
    rank = rank_of(x)
    dims = tuple(range(rank - len(sizes), rank))
    a, w, b = _wide(p, x, weight, bias)
    spread, middle = moments(p, a, dims)
    rstd = p.rsqrt(p.add(spread, eps))
    y = p.mul(p.sub(a, p.broadcast(middle, shape_of(a))), p.broadcast(rstd, shape_of(a)))
    y = y if w is None else p.mul(y, p.broadcast(w, shape_of(a)))
    y = y if b is None else p.add(y, p.broadcast(b, shape_of(a)))
    return tuple(_to_result(p, v, meta) for v, meta in zip((y, middle, rstd), p.result, strict=True))


def _gradient_through_normalization(p: Lowering, g: Node, normal: Node, rstd: Node, dims: Sequence[int]) -> Node:
    """Returns rstd * (g - mean(g) - normal * mean(g * normal)): the gradient through (x - mean) * rstd."""
    shape = shape_of(g)
    g_mean = p.broadcast(mean_of(p, g, dims, keep=True), shape)
    dot = p.broadcast(mean_of(p, p.mul(g, normal), dims, keep=True), shape)
    return p.mul(p.broadcast(rstd, shape), p.sub(p.sub(g, g_mean), p.mul(normal, dot)))


@decomposition(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    p: Lowering,
    g: Node,
    x: Node,
    sizes: Sequence[int],
    mean: Node,
    rstd: Node,
    weight: Optional,
    bias: Optional,
    mask: Sequence[bool],
) -> tuple[Any, ...]:
    shape, split = shape_of(x), rank_of(x) - len(sizes)
    outer, inner = tuple(range(split)), tuple(range(split, rank_of(x)))
    g, a, mean, rstd, w = _wide(p, g, x, mean, rstd, weight)
    normal = p.mul(p.sub(a, p.broadcast(mean, shape)), p.broadcast(rstd, shape))
    scaled = g if w is None else p.mul(g, p.broadcast(w, shape))
    dx = _gradient_through_normalization(p, scaled, normal, rstd, inner) if mask[0] else None
    dw = p.sum(p.mul(g, normal), outer) if mask[1] and p.result[1] is not None else None
    db = p.sum(g, outer) if mask[2] and p.result[2] is not None else None
    return _requested_gradients(p, (dx, dw, db), mask)


@decomposition(aten._fused_rms_norm.default)
def rms_norm(p: Lowering, x: Node, sizes: Sequence[int], weight: Optional, eps: float | None) -> tuple[Node, ...]:
    eps = _epsilon(dtype_of(x)) if eps is None else eps
    rank, shape = rank_of(x), shape_of(x)
    dims = tuple(range(rank - len(sizes), rank))
    a, w = _wide(p, x, weight)
    rstd = p.rsqrt(p.add(mean_of(p, p.mul(a, a), dims, keep=True), eps))
    y = p.mul(a, p.broadcast(rstd, shape))
    y = y if w is None else p.mul(y, p.broadcast(w, shape))
    return tuple(_to_result(p, v, meta) for v, meta in zip((y, rstd), p.result, strict=True))


def _epsilon(dtype: Any) -> float:
    return 2.0**-52 if compute_dtype(dtype).itemsize == 8 else 2.0**-23


@decomposition(aten._fused_rms_norm_backward.default)
def rms_norm_backward(
    p: Lowering, g: Node, x: Node, sizes: Sequence[int], rstd: Node, weight: Optional, mask: Sequence[bool]
) -> tuple[Any, ...]:
    shape, split = shape_of(x), rank_of(x) - len(sizes)
    outer, inner = tuple(range(split)), tuple(range(split, rank_of(x)))
    g, a, rstd, w = _wide(p, g, x, rstd, weight)
    normal = p.mul(a, p.broadcast(rstd, shape))
    scaled = g if w is None else p.mul(g, p.broadcast(w, shape))
    dot = p.broadcast(mean_of(p, p.mul(scaled, normal), inner, keep=True), shape)
    dx = p.mul(p.broadcast(rstd, shape), p.sub(scaled, p.mul(normal, dot)))
    dw = p.sum(p.mul(g, normal), outer) if mask[1] and p.result[1] is not None else None
    return _requested_gradients(p, (dx, dw), mask)


# -- group norm


@decomposition(aten.native_group_norm.default)
def group_norm(
    p: Lowering,
    x: Node,
    weight: Optional,
    bias: Optional,
    batch: int,
    channels: int,
    space: int,
    groups: int,
    eps: float,
) -> Any:
    if is_empty((batch, channels, space)):
        return NotImplemented
    a, w, b = _wide(p, x, weight, bias)
    grouped = (batch, groups, channels // groups, space)
    a = p.reshape(a, grouped)
    spread, middle = moments(p, a, (2, 3))
    rstd = p.rsqrt(p.add(spread, eps))
    y = p.mul(p.sub(a, p.broadcast(middle, grouped)), p.broadcast(rstd, grouped))
    y = y if w is None else p.mul(y, _by_channel(p, w, grouped))
    y = y if b is None else p.add(y, _by_channel(p, b, grouped))
    return tuple(_to_result(p, v, meta) for v, meta in zip((y, middle, rstd), p.result, strict=True))


def _by_channel(p: Lowering, w: Node, grouped: tuple[int, ...]) -> Node:
    return p.broadcast_in_dim(p.reshape(w, grouped[1:3]), grouped, (1, 2))


@decomposition(aten.native_group_norm_backward.default)
def group_norm_backward(
    p: Lowering,
    g: Node,
    x: Node,
    mean: Node,
    rstd: Node,
    weight: Optional,
    batch: int,
    channels: int,
    space: int,
    groups: int,
    mask: Sequence[bool],
) -> Any:
    if is_empty((batch, channels, space)):
        return tuple(None if m is None else p.full(m.shape, 0, m.dtype, m.device) for m in p.result)
    g, a, mean, rstd, w = _wide(p, g, x, mean, rstd, weight)
    grouped, stats = (batch, groups, channels // groups, space), (batch, groups, 1, 1)
    g, a, mean, rstd = p.reshape(g, grouped), p.reshape(a, grouped), p.reshape(mean, stats), p.reshape(rstd, stats)
    normal = p.mul(p.sub(a, p.broadcast(mean, grouped)), p.broadcast(rstd, grouped))
    scaled = g if w is None else p.mul(g, _by_channel(p, w, grouped))
    dx = _gradient_through_normalization(p, scaled, normal, rstd, (2, 3)) if mask[0] else None
    dw = p.sum(p.mul(g, normal), (0, 3)) if mask[1] else None
    db = p.sum(g, (0, 3)) if mask[2] else None
    return _requested_gradients(p, (dx, dw, db), mask)


# -- batch norm


def _channelwise(p: Lowering, v: Node, shape: tuple[int, ...]) -> Node:
    return p.broadcast_in_dim(v, shape, (1,))


def _batch_norm(
    p: Lowering,
    x: Node,
    weight: Optional,
    bias: Optional,
    running_mean: Optional,
    running_var: Optional,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    """Returns (out, mean, 1 / standard deviation, new running mean, new running variance), all in the compute dtype."""
    shape = shape_of(x)
    dims = tuple(d for d in range(len(shape)) if d != 1)
    a, w, b, old_mean, old_var = _wide(p, x, weight, bias, running_mean, running_var)
    new_mean, new_var = old_mean, old_var
    if training:
        spread, middle = _statistics(p, a, dims)
        spread, middle = p.reshape(spread, (shape[1],)), p.reshape(middle, (shape[1],))
        if old_mean is not None:
            unbiased = _unbiased(p, spread, count_over(x, dims))
            new_mean = p.add(p.mul(middle, momentum), p.mul(old_mean, 1 - momentum))
            new_var = p.add(p.mul(unbiased, momentum), p.mul(old_var, 1 - momentum))
    else:
        middle, spread = old_mean, old_var
    rstd = p.rsqrt(p.add(spread, eps))
    scale = rstd if w is None else p.mul(rstd, w)
    y = p.mul(p.sub(a, _channelwise(p, middle, shape)), _channelwise(p, scale, shape))
    y = y if b is None else p.add(y, _channelwise(p, b, shape))
    return y, middle, rstd, new_mean, new_var


def _statistics(p: Lowering, a: Node, dims: Sequence[int]) -> tuple[Node, Node]:
    """Returns (variance, mean): in one pass on a GPU; in two passes on a CPU, where the second reads from the cache."""
    return shifted_moments(p, a, dims) if device_of(a).type == "cuda" else moments(p, a, dims)


def _unbiased(p: Lowering, variance: Node, count: int) -> Node:
    if isinstance(count, Size):
        return p.mul(variance, p.div(p.full_like(variance, count), count - 1))
    return p.mul(variance, count / (count - 1)) if count > 1 else p.full_like(variance, math.nan)


def _results(p: Lowering, values: Sequence[Any], training: bool) -> tuple[Any, ...]:
    """Returns the values in the dtypes of the results. In evaluation, statistics that eager does not save are empty
    tensors.
    """
    done = []
    for i, (value, meta) in enumerate(zip(values, p.result, strict=False)):
        if i in (1, 2) and not training and same_all(meta.shape, (0,)):
            value = p.full((0,), 0, meta.dtype, meta.device)
        done.append(_to_result(p, value, meta))
    return tuple(done)


@decomposition(
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit_functional.default,
)
def batch_norm(
    p: Lowering,
    x: Node,
    weight: Optional,
    bias: Optional,
    running_mean: Optional,
    running_var: Optional,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if training and is_empty(shape_of(x)):
        return NotImplemented
    values = _batch_norm(p, x, weight, bias, running_mean, running_var, training, momentum, eps)
    return _results(p, values, training)


@decomposition(aten._native_batch_norm_legit_no_training.default)
def batch_norm_evaluation(p: Lowering, x: Node, *options: Any) -> Any:
    weight, bias, running_mean, running_var, momentum, eps = options
    return batch_norm(p, x, weight, bias, running_mean, running_var, False, momentum, eps)


@decomposition(aten._native_batch_norm_legit.no_stats)
def batch_norm_without_stats(
    p: Lowering, x: Node, weight: Optional, bias: Optional, training: bool, momentum: float, eps: float
) -> Any:
    return batch_norm(p, x, weight, bias, None, None, True, momentum, eps)


@decomposition(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    p: Lowering,
    g: Node,
    x: Node,
    weight: Optional,
    running_mean: Optional,
    running_var: Optional,
    mean: Optional,
    rstd: Optional,
    training: bool,
    eps: float,
    mask: Sequence[bool],
) -> Any:
    shape = shape_of(x)
    dims = tuple(d for d in range(len(shape)) if d != 1)
    count = count_over(x, dims)
    if same(count, 0):
        return NotImplemented
    g, a, w, old_mean, old_var, mean, rstd = _wide(p, g, x, weight, running_mean, running_var, mean, rstd)
    if not training:
        mean, rstd = old_mean, p.rsqrt(p.add(old_var, eps))
    off = p.sub(a, _channelwise(p, mean, shape))
    total = p.sum(g, dims)
    dot = p.sum(p.mul(g, off), dims)
    scale = rstd if w is None else p.mul(rstd, w)
    if training:
        slope = p.mul(p.div(dot, as_float(count)), p.mul(rstd, rstd))
        centred = p.sub(g, _channelwise(p, p.div(total, as_float(count)), shape))
        inner = p.sub(centred, p.mul(off, _channelwise(p, slope, shape)))
    else:
        inner = g
    dx = p.mul(inner, _channelwise(p, scale, shape))
    return _requested_gradients(p, (dx, p.mul(dot, rstd), total), mask)


# -- softmax


def _shifted_and_sum(p: Lowering, a: Node, dim: int) -> tuple[Node, Node]:
    """Returns (a - max, sum of exp(a - max)), both along dim. The sum lacks this dimension."""
    shape = shape_of(a)
    shifted = p.sub(a, p.spread(p.amax(a, (dim,)), shape, (dim,)))
    return shifted, p.sum(p.exp(shifted), (dim,))


def _softmax(p: Lowering, a: Node, dim: int) -> Node:
    shifted, total = _shifted_and_sum(p, a, dim)
    return p.mul(p.exp(shifted), p.spread(p.reciprocal(total), shape_of(a), (dim,)))


@decomposition(aten._softmax.default)
def softmax(p: Lowering, x: Node, dim: int, half_to_float: bool) -> Any:
    return _over_dim(p, x, dim, _softmax)


@decomposition(aten._log_softmax.default)
def log_softmax(p: Lowering, x: Node, dim: int, half_to_float: bool) -> Any:
    def compute(p: Lowering, a: Node, dim: int) -> Node:
        shifted, total = _shifted_and_sum(p, a, dim)
        return p.sub(shifted, p.spread(p.log(total), shape_of(a), (dim,)))

    return _over_dim(p, x, dim, compute)


def _over_dim(p: Lowering, x: Node, dim: int, compute: Any) -> Any:
    if is_empty(shape_of(x)):
        return p.full(p.out.shape, 0, p.out.dtype, p.out.device)
    if not rank_of(x):
        one = compute(p, p.reshape(p.widen(x), (1,)), 0)
        return p.convert(p.reshape(one, ()), p.out.dtype)
    a = p.convert(x, compute_dtype(p.out.dtype))
    return p.convert(compute(p, a, dim % rank_of(x)), p.out.dtype)


@decomposition(aten._safe_softmax.default)
def safe_softmax(p: Lowering, x: Node, dim: int, dtype: Any = None) -> Any:
    def compute(p: Lowering, a: Node, dim: int) -> Node:
        hidden = p.eq(p.amax(a, (dim,)), -math.inf)  # whether all scores of the row are -inf
        return p.where(p.spread(hidden, shape_of(a), (dim,)), 0.0, _softmax(p, a, dim))

    return _over_dim(p, x, dim, compute)


@decomposition(aten._softmax_backward_data.default)
def softmax_backward(p: Lowering, g: Node, y: Node, dim: int, dtype: Any) -> Any:
    def compute(p: Lowering, g: Node, y: Node, dim: int) -> Node:
        gy = p.mul(g, y)
        return p.sub(gy, p.mul(y, p.spread(p.sum(gy, (dim,)), shape_of(y), (dim,))))

    return _back_over_dim(p, g, y, dim, compute)


@decomposition(aten._log_softmax_backward_data.default)
def log_softmax_backward(p: Lowering, g: Node, y: Node, dim: int, dtype: Any) -> Any:
    def compute(p: Lowering, g: Node, y: Node, dim: int) -> Node:
        return p.sub(g, p.mul(p.exp(y), p.spread(p.sum(g, (dim,)), shape_of(y), (dim,))))

    return _back_over_dim(p, g, y, dim, compute)


def _back_over_dim(p: Lowering, g: Node, y: Node, dim: int, compute: Any) -> Any:
    """Apply `compute` along dim. A tensor without dimensions is a row of one element: as in eager, its gradient is 0,
    or NaN for NaN and infinity.
    """
    g, y = _wide(p, g, y)
    if not rank_of(y):
        return p.convert(p.reshape(compute(p, p.reshape(g, (1,)), p.reshape(y, (1,)), 0), ()), p.out.dtype)
    return p.convert(compute(p, g, y, dim % rank_of(y)), p.out.dtype)
