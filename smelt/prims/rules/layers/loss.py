"""Losses and their gradients. Reductions have ATen's numbers: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from smelt.abi.faults import NOT_IN_UNIT, TARGET_NOT_IN_UNIT
from smelt.prims.dtypes import compute_dtype, result_dtype
from smelt.prims.registry import Lowering, aten, common_shape, decomposition, device_of, dtype_of, rank_of, shape_of
from smelt.prims.rules.reductions import mean_of
from smelt.shapes.size import Size, same

NONE, MEAN, SUM = 0, 1, 2


# -- negative log likelihood: the dimension of the classes is 1, or 0 without a batch


def _valid_targets(
    p: Lowering, target: Node, weight: Node | None, ignored: int, dtype: torch.dtype
) -> tuple[Node, Node, Any]:
    """Returns (whether each target is not `ignored`, the targets with 0 for ignored ones, the class weight of each or
    None).
    """
    target = p.convert(target, torch.int64)
    valid = p.ne(target, ignored)
    safe = p.where(valid, target, 0)
    if weight is None:
        return valid, safe, None
    each = p.index(p.convert(weight, dtype), (safe,))
    return valid, safe, each


@decomposition(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss(
    p: Lowering, x: Node, target: Node, weight: Node | None, reduction: int, ignored: int
) -> tuple[Node, Node]:
    wide = compute_dtype(dtype_of(x))
    dim = 1 if rank_of(x) > 1 else 0
    valid, safe, each = _valid_targets(p, target, weight, ignored, wide)
    at = p.keep(safe, (dim,))
    picked = p.reshape(p.convert(p.gather(x, dim, at), wide), shape_of(safe))
    loss = p.neg(picked if each is None else p.mul(picked, each))
    loss = p.where(valid, loss, 0.0)
    dims = tuple(range(rank_of(safe)))
    share = p.convert(valid, wide) if each is None else p.where(valid, each, 0.0)
    total = p.sum(share, dims)
    meta, total_meta = p.result
    if reduction == NONE and rank_of(x) > 1:
        return p.convert(p.reshape(loss, meta.shape), meta.dtype), p.full((), 0, total_meta.dtype, total_meta.device)
    loss = p.sum(loss, dims)  # without a batch the result is a single number for every reduction
    loss = p.div(loss, total) if reduction == MEAN else loss
    return p.convert(loss, meta.dtype), p.convert(total, total_meta.dtype)


@decomposition(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    p: Lowering,
    g: Node,
    x: Node,
    target: Node,
    weight: Node | None,
    reduction: int,
    ignored: int,
    total: Node,
) -> Node:
    """Compute the gradient by a comparison of class numbers with the targets: unlike a scatter, this fuses with readers
    of the gradient.
    """
    shape, wide = shape_of(x), compute_dtype(dtype_of(x))
    dim = 1 if len(shape) > 1 else 0
    valid, safe, each = _valid_targets(p, target, weight, ignored, wide)
    g = p.convert(g, wide)
    g = p.div(g, p.convert(total, wide)) if reduction == MEAN else g
    row = p.neg(p.broadcast(g, shape_of(safe)))
    row = row if each is None else p.mul(row, each)
    row = p.where(valid, row, 0.0)
    classes = p.broadcast_in_dim(p.iota(shape[dim], 0, 1, torch.int64, device_of(x)), shape, (dim,))
    hit = p.eq(classes, p.spread(safe, shape, (dim,)))
    return p.convert(p.where(hit, p.spread(row, shape, (dim,)), 0.0), p.out.dtype)


# -- elementwise losses: a loss of (x, target), then a reduction


def _reduced(p: Lowering, loss: Node, reduction: int) -> Node:
    dims = tuple(range(rank_of(loss)))
    if reduction == MEAN:
        loss = mean_of(p, loss, dims)
    elif reduction == SUM:
        loss = p.sum(loss, dims)
    return p.convert(loss, p.out.dtype)


def _loss(p: Lowering, compute: Callable[..., Node], reduction: int, *operands: Node) -> Node:
    wide = compute_dtype(result_dtype(*(x.meta["val"] for x in operands)))
    shape = common_shape(*operands)
    ready = [p.broadcast(p.convert(x, wide), shape) for x in operands]
    return _reduced(p, compute(*ready), reduction)


def _gradient(p: Lowering, compute: Callable[..., Node], reduction: int, g: Node, *operands: Node) -> Node:
    """Returns g * compute(operands), divided by the number of elements if the reduction is a mean."""

    def each(g: Node, *ready: Node) -> Node:
        size = math.prod(shape_of(ready[0]))
        slope = compute(*ready)
        if reduction == MEAN and not same(size, 0):
            slope = p.div(slope, size) if isinstance(size, Size) else p.mul(slope, 1 / size)
        return p.mul(slope, g)

    return p.pointwise(each, g, *operands, dtype=p.out.dtype)


@decomposition(aten.mse_loss.default)
def mse_loss(p: Lowering, x: Node, target: Node, reduction: int = MEAN) -> Node:
    def compute(a: Node, t: Node) -> Node:
        off = p.sub(a, t)
        return p.mul(off, off)

    return _loss(p, compute, reduction, x, target)


@decomposition(aten.mse_loss_backward.default)
def mse_loss_backward(p: Lowering, g: Node, x: Node, target: Node, reduction: int) -> Node:
    return _gradient(p, lambda a, t: p.mul(p.sub(a, t), 2.0), reduction, g, x, target)


@decomposition(aten.smooth_l1_loss.default)
def smooth_l1_loss(p: Lowering, x: Node, target: Node, reduction: int = MEAN, beta: float = 1.0) -> Node:
    def compute(a: Node, t: Node) -> Node:
        off = p.abs(p.sub(a, t))
        if beta == 0:
            return off
        return p.where(p.lt(off, beta), p.div(p.mul(p.mul(off, off), 0.5), beta), p.sub(off, 0.5 * beta))

    return _loss(p, compute, reduction, x, target)


@decomposition(aten.smooth_l1_loss_backward.default)
def smooth_l1_loss_backward(p: Lowering, g: Node, x: Node, target: Node, reduction: int, beta: float) -> Node:
    def compute(a: Node, t: Node) -> Node:
        off = p.sub(a, t)
        inside = p.where(p.ge(off, beta), 1.0, p.div(off, beta))  # NaN fails both comparisons and remains
        return p.where(p.le(off, -beta), -1.0, inside)

    return _gradient(p, compute, reduction, g, x, target)


@decomposition(aten.huber_loss.default)
def huber_loss(p: Lowering, x: Node, target: Node, reduction: int = MEAN, delta: float = 1.0) -> Node:
    def compute(a: Node, t: Node) -> Node:
        off = p.abs(p.sub(a, t))
        return p.where(p.lt(off, delta), p.mul(p.mul(off, off), 0.5), p.mul(p.sub(off, 0.5 * delta), delta))

    return _loss(p, compute, reduction, x, target)


@decomposition(aten.huber_loss_backward.default)
def huber_loss_backward(p: Lowering, g: Node, x: Node, target: Node, reduction: int, delta: float) -> Node:
    def compute(a: Node, t: Node) -> Node:
        return p.minimum(p.maximum(p.sub(a, t), -delta), delta)

    return _gradient(p, compute, reduction, g, x, target)


@decomposition(aten.binary_cross_entropy.default)
def binary_cross_entropy(p: Lowering, x: Node, target: Node, weight: Node | None = None, reduction: int = MEAN) -> Node:
    def compute(a: Node, t: Node, *w: Node) -> Node:
        a = p.within(a, 0.0, 1.0, NOT_IN_UNIT)
        t = p.within(t, 0.0, 1.0, TARGET_NOT_IN_UNIT)
        # as eager does, limit the logarithms to at least -100
        left = p.mul(p.sub(t, 1), p.maximum(p.log1p(p.neg(a)), -100.0))
        loss = p.sub(left, p.mul(t, p.maximum(p.log(a), -100.0)))
        return p.mul(loss, w[0]) if w else loss

    return _loss(p, compute, reduction, x, target, *([] if weight is None else [weight]))


@decomposition(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(
    p: Lowering, g: Node, x: Node, target: Node, weight: Node | None = None, reduction: int = MEAN
) -> Node:
    def compute(a: Node, t: Node, *w: Node) -> Node:
        slope = p.div(p.sub(a, t), p.maximum(p.mul(p.sub(1.0, a), a), 1e-12))
        return p.mul(slope, w[0]) if w else slope

    return _gradient(p, compute, reduction, g, x, target, *([] if weight is None else [weight]))


@decomposition(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(
    p: Lowering,
    x: Node,
    target: Node,
    weight: Node | None = None,
    positive: Node | None = None,
    reduction: int = MEAN,
) -> Node:
    extra = [v for v in (weight, positive) if v is not None]

    def compute(a: Node, t: Node, *rest: Node) -> Node:
        log_sigmoid = p.sub(p.minimum(a, 0), p.log1p(p.exp(p.neg(p.abs(a)))))
        if positive is not None:
            log_weight = p.add(p.mul(p.sub(rest[-1], 1), t), 1)
            log_sigmoid = p.mul(log_sigmoid, log_weight)
        loss = p.sub(p.mul(p.sub(1.0, t), a), log_sigmoid)
        return p.mul(loss, rest[0]) if weight is not None else loss

    return _loss(p, compute, reduction, x, target, *extra)


@decomposition(aten.soft_margin_loss.default)
def soft_margin_loss(p: Lowering, x: Node, target: Node, reduction: int = MEAN) -> Node:
    return _loss(p, lambda a, t: p.log1p(p.exp(p.mul(p.neg(a), t))), reduction, x, target)


@decomposition(aten.soft_margin_loss_backward.default)
def soft_margin_loss_backward(p: Lowering, g: Node, x: Node, target: Node, reduction: int) -> Node:
    def compute(a: Node, t: Node) -> Node:
        return p.neg(p.mul(t, p.sigmoid(p.mul(p.neg(a), t))))

    return _gradient(p, compute, reduction, g, x, target)
