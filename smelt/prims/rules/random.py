"""Random operators as functions of the graph's seed and a stream number, so that backward can draw the same numbers.

With the option `eager_rng`, or in a graph without a seed, the ATen operator remains and draws from torch's generator.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from smelt.abi.faults import NO_PROBABILITY
from smelt.prims.dtypes import compute_dtype
from smelt.prims.registry import Lowering, as_float, aten, decomposition, dtype_of, shape_of


def uniform01(p: Lowering, shape: tuple[int, ...]) -> Node | None:
    """Returns uniform float32 values in [0, 1) from a new stream; None if random operators draw from torch's
    generator.
    """
    seed = p.seeds.get(p.out.device)
    return None if seed is None or p.eager_rng else p.random(seed, p.next_stream(), shape)


@decomposition(aten.native_dropout.default)
def dropout(p: Lowering, x: Node, rate: float, train: bool | None) -> Any:
    if train is False or rate == 0:
        return x, p.full(shape_of(x), True, torch.bool, p.out.device)
    if rate == 1:
        return p.convert(p.mul(p.widen(x), 0.0), p.out.dtype), p.full(shape_of(x), False, torch.bool, p.out.device)
    chance = uniform01(p, shape_of(x))
    if chance is None:
        return NotImplemented
    keep = p.lt(chance, 1 - rate)
    return _scaled(p, x, keep, 1 / (1 - rate)), keep


def _scaled(p: Lowering, x: Node, keep: Node, scale: float) -> Node:
    """Returns x * scale where `keep` is true, else x * 0, which leaves NaN as eager does."""
    a = p.convert(x, compute_dtype(p.out.dtype))
    factor = p.where(keep, p.full_like(a, scale), 0.0)
    return p.convert(p.mul(a, factor), p.out.dtype)


@decomposition(aten.native_dropout_backward.default)
def dropout_backward(p: Lowering, g: Node, mask: Node, scale: float) -> Node:
    return _scaled(p, g, mask, scale)


@decomposition(aten.bernoulli.p)
def bernoulli_p(p: Lowering, x: Node, chance: float = 0.5, *, generator: Any = None) -> Any:
    drawn = uniform01(p, shape_of(x)) if generator is None else None
    return NotImplemented if drawn is None else p.convert(p.lt(drawn, chance), p.out.dtype)


@decomposition(aten.bernoulli.default)
def bernoulli(p: Lowering, x: Node, *, generator: Any = None) -> Any:
    drawn = uniform01(p, shape_of(x)) if generator is None else None
    if drawn is None:
        return NotImplemented
    chance = p.within(p.widen(x), 0.0, 1.0, NO_PROBABILITY)
    return p.convert(p.lt(p.convert(drawn, dtype_of(chance)), chance), p.out.dtype)


@decomposition(aten.rand.default, aten.rand_like.default)
def rand(p: Lowering, *args: Any, **options: Any) -> Any:
    return _uniform(p, 0.0, 1.0)


def _uniform(p: Lowering, low: float, high: float) -> Any:
    drawn = uniform01(p, p.out.shape)
    if drawn is None:
        return NotImplemented
    # use at most as many bits as the dtype has: rounding up must not reach 1
    if p.out.dtype in (torch.bfloat16, torch.float16):
        digits = 256.0 if p.out.dtype is torch.bfloat16 else 2048.0
        drawn = p.div(p.floor(p.mul(drawn, digits)), digits)
    drawn = p.convert(drawn, compute_dtype(p.out.dtype))
    return p.convert(p.add(p.mul(drawn, high - low), low), p.out.dtype)


@decomposition(aten.uniform.default)
def uniform(p: Lowering, x: Node, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Any:
    return _uniform(p, low, high) if generator is None else NotImplemented


@decomposition(aten.randn.default, aten.randn_like.default)
def randn(p: Lowering, *args: Any, **options: Any) -> Any:
    drawn = normal01(p, p.out.shape)
    return NotImplemented if drawn is None else p.convert(drawn, p.out.dtype)


def normal01(p: Lowering, shape: tuple[int, ...]) -> Node | None:
    """Returns standard normal float32 values by the Box-Muller transform, sqrt(-2 log(1 - u)) cos(2 pi v), with u and v
    uniform.

    The result is None if random operators draw from torch's generator.
    """
    u, v = uniform01(p, shape), uniform01(p, shape)
    if u is None or v is None:
        return None
    radius = p.sqrt(p.mul(p.log(p.sub(1.0, u)), -2.0))
    return p.mul(radius, p.cos(p.mul(v, 2 * math.pi)))


@decomposition(aten.normal_functional.default)
def normal(p: Lowering, x: Node, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Any:
    drawn = normal01(p, shape_of(x)) if generator is None else None
    return NotImplemented if drawn is None else p.convert(p.add(p.mul(drawn, std), mean), p.out.dtype)


@decomposition(aten.exponential.default)
def exponential(p: Lowering, x: Node, rate: float = 1.0, *, generator: Any = None) -> Any:
    drawn = uniform01(p, shape_of(x)) if generator is None else None
    if drawn is None:
        return NotImplemented
    time = p.maximum(p.neg(p.log(p.sub(1.0, drawn))), 2.0**-25)  # never 0: programs take its logarithm
    return p.convert(p.div(time, rate), p.out.dtype)


@decomposition(aten.randint.default, aten.randint_like.default)
def randint(p: Lowering, *args: Any, **options: Any) -> Any:
    return _integers(p, 0, args[1] if isinstance(args[0], Node) else args[0])


@decomposition(aten.randint.low, aten.randint_like.low_dtype)
def randint_low(p: Lowering, *args: Any, **options: Any) -> Any:
    low, high = args[1:3] if isinstance(args[0], Node) else args[0:2]
    return _integers(p, low, high)


def _integers(p: Lowering, low: int, high: int) -> Any:
    if high - low > 2**24:  # a random number has 24 bits
        return NotImplemented
    drawn = uniform01(p, p.out.shape)
    if drawn is None:
        return NotImplemented
    number = p.convert(p.floor(p.mul(p.convert(drawn, torch.float64), as_float(high - low))), torch.int64)
    return p.convert(p.add(number, low), p.out.dtype)
