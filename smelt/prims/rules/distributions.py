"""Random numbers of further distributions, computed from uniform and normal ones."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from smelt.abi.faults import ALL_WEIGHTS_ZERO, NEGATIVE_DEVIATION, NO_WEIGHTS
from smelt.prims.dtypes import compute_dtype
from smelt.prims.registry import Lowering, aten, decomposition, dtype_of, is_empty, rank_of, shape_of
from smelt.prims.rules.random import normal01, uniform01
from smelt.shapes.size import known_at_most


@decomposition(aten.cauchy.default)
def cauchy(p: Lowering, x: Node, median: float = 0.0, sigma: float = 1.0, *, generator: Any = None) -> Any:
    drawn = uniform01(p, shape_of(x)) if generator is None else None
    if drawn is None:
        return NotImplemented
    slope = p.tan(p.mul(p.sub(drawn, 0.5), math.pi))
    return p.convert(p.add(p.mul(slope, sigma), median), p.out.dtype)


@decomposition(aten.geometric.default)
def geometric(p: Lowering, x: Node, chance: float, *, generator: Any = None) -> Any:
    """The number of trials up to the first success: ceil(log(1 - u) / log(1 - chance))."""
    drawn = uniform01(p, shape_of(x)) if generator is None else None
    if drawn is None:
        return NotImplemented
    if chance == 1:
        return p.full(shape_of(x), 1, p.out.dtype, p.out.device)
    trials = p.ceil(p.div(p.log(p.sub(1.0, drawn)), math.log1p(-chance)))
    return p.convert(p.maximum(trials, 1.0), p.out.dtype)


@decomposition(aten.log_normal.default)
def log_normal(p: Lowering, x: Node, mean: float = 1.0, std: float = 2.0, *, generator: Any = None) -> Any:
    drawn = normal01(p, shape_of(x)) if generator is None else None
    return NotImplemented if drawn is None else p.convert(p.exp(p.add(p.mul(drawn, std), mean)), p.out.dtype)


@decomposition(aten.normal.Tensor_Tensor, aten.normal.Tensor_float, aten.normal.float_Tensor, aten.normal.float_float)
def normal(p: Lowering, mean: Any, std: Any = 1.0, size: Any = None, *, generator: Any = None, **options: Any) -> Any:
    drawn = normal01(p, p.out.shape) if generator is None else None
    if drawn is None:
        return NotImplemented
    wide = compute_dtype(p.out.dtype)
    if isinstance(std, Node):
        seen = p.checked_operands(aten.normal.float_Tensor, (mean, std))[1]
        std = p.within(p.convert(std, wide), 0.0, None, NEGATIVE_DEVIATION) if seen is std else seen
    mean, std = (p.broadcast(p.convert(v, wide), p.out.shape) if isinstance(v, Node) else v for v in (mean, std))
    return p.convert(p.add(p.mul(p.convert(drawn, wide), std), mean), p.out.dtype)


_MIN_REFUSED_CATEGORIES = 2**24 + 1
"""Minimum number of categories for which eager's multinomial raises an error."""


@decomposition(aten.multinomial.default)
def multinomial(p: Lowering, x: Node, count: int, replacement: bool = False, *, generator: Any = None) -> Any:
    """Draw by exponential times: each category gets a time with its weight as the rate, and the category with the
    minimum is drawn.

    Thus a category is drawn with a probability proportional to its weight. Without replacement, the `count` categories
    with the smallest times are drawn; with replacement, each draw gets new times. The code compares `speed`, 1 / time.
    """
    if generator is not None or is_empty(shape_of(x)) or known_at_most(_MIN_REFUSED_CATEGORIES, shape_of(x)[-1]):
        return NotImplemented
    a, last = p.widen(x), rank_of(x) - 1
    a = p.refuse(a, p.logical_not(p.logical_and(p.ge(a, 0.0), p.lt(a, math.inf))), NO_WEIGHTS)
    none = p.spread(p.eq(p.sum(a, (last,)), 0.0), shape_of(a), (last,))
    a = p.refuse(a, none, ALL_WEIGHTS_ZERO)
    if replacement:
        shape = (*shape_of(x)[:-1], count, shape_of(x)[-1])
        a = p.broadcast_in_dim(a, shape, (*range(last), last + 1))
    drawn = uniform01(p, shape_of(a))
    if drawn is None:
        return NotImplemented
    drawn = p.convert(drawn, dtype_of(a))
    time = p.neg(p.log(p.sub(1.0, drawn)))
    speed = p.div(a, p.maximum(time, torch.finfo(torch.float32).tiny))
    if replacement:
        return p.argmax(speed, last + 1)
    if count == 1:
        return p.keep(p.argmax(speed, last), (last,))
    return p.topk(speed, count, last, True, True)[1]
