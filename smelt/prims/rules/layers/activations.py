"""Activation functions and their derivatives. `g` is the gradient of the result."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from smelt.prims.dtypes import is_integral
from smelt.prims.registry import Lowering, aten, decomposition, dtype_of
from smelt.prims.simplify import rounded
from smelt.shapes.size import same_all

SQRT_HALF = math.sqrt(0.5)
TANH_SCALE = math.sqrt(2 / math.pi)
TANH_CUBE = 0.044715


@decomposition(aten.relu.default)
def relu(p: Lowering, x: Node) -> Node:
    return x if dtype_of(x) is torch.bool else p.pointwise(lambda a: p.maximum(a, 0), x)


@decomposition(aten.threshold.default)
def threshold(p: Lowering, x: Node, limit: float, value: float) -> Node:
    return p.pointwise(lambda a: p.where(p.le(a, limit), value, a), x, dtype=p.out.dtype)


@decomposition(aten.threshold_backward.default)
def threshold_backward(p: Lowering, g: Node, x: Node, limit: float) -> Node:
    return p.pointwise(lambda g, a: p.where(p.le(a, limit), 0.0, g), g, x)


@decomposition(aten.leaky_relu.default)
def leaky_relu(p: Lowering, x: Node, slope: float = 0.01) -> Node:
    return p.pointwise(lambda a: p.where(p.gt(a, 0), a, p.mul(a, slope)), x)


@decomposition(aten.leaky_relu_backward.default)
def leaky_relu_backward(p: Lowering, g: Node, x: Node, slope: float, of_result: bool) -> Node:
    return p.pointwise(lambda g, a: p.where(p.gt(a, 0), g, p.mul(g, slope)), g, x)


@decomposition(aten._prelu_kernel.default)
def prelu(p: Lowering, x: Node, weight: Node) -> Node:
    return p.pointwise(lambda a, w: p.where(p.gt(a, 0), a, p.mul(w, a)), x, weight)


@decomposition(aten._prelu_kernel_backward.default)
def prelu_backward(p: Lowering, g: Node, x: Node, weight: Node) -> tuple[Node, Node]:
    dx = p.pointwise(lambda g, a, w: p.where(p.gt(a, 0), g, p.mul(w, g)), g, x, weight)
    dw = p.pointwise(lambda g, a: p.where(p.gt(a, 0), 0.0, p.mul(a, g)), g, x)
    return dx, dw


@decomposition(aten.elu.default)
def elu(p: Lowering, x: Node, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Node:
    def compute(a: Node) -> Node:
        below = p.mul(p.expm1(p.mul(a, input_scale)), alpha if scale == 1.0 else alpha * scale)
        return p.where(p.le(a, 0), below, p.mul(a, scale))

    return p.pointwise(compute, x)


@decomposition(aten.celu.default)
def celu(p: Lowering, x: Node, alpha: float = 1.0) -> Node:
    return elu(p, x, alpha, 1.0, 1.0 / alpha)


@decomposition(aten.elu_backward.default)
def elu_backward(
    p: Lowering, g: Node, alpha: float, scale: float, input_scale: float, of_result: bool, x: Node
) -> Node:
    def compute(g: Node, a: Node) -> Node:
        if of_result:
            below = p.mul(p.mul(g, input_scale), p.add(a, alpha * scale))
        else:
            below = p.mul(p.mul(g, input_scale * alpha * scale), p.exp(p.mul(a, input_scale)))
        return p.where(p.le(a, 0), below, p.mul(g, scale))

    return p.pointwise(compute, g, x)


@decomposition(aten.gelu.default)
def gelu(p: Lowering, x: Node, *, approximate: str = "none") -> Node:
    def compute(a: Node) -> Node:
        inner = p.tanh(_tanh_argument(p, a)) if approximate == "tanh" else p.erf(p.mul(a, SQRT_HALF))
        return p.mul(p.mul(a, 0.5), p.add(inner, 1))

    return p.pointwise(compute, x)


def _tanh_argument(p: Lowering, a: Node) -> Node:
    cube = p.mul(p.mul(a, a), a)
    return p.mul(p.add(a, p.mul(cube, TANH_CUBE)), TANH_SCALE)


@decomposition(aten.gelu_backward.default)
def gelu_backward(p: Lowering, g: Node, x: Node, *, approximate: str = "none") -> Node:
    return p.pointwise(lambda g, a: p.mul(g, _gelu_slope(p, a, approximate)), g, x)


def _gelu_slope(p: Lowering, a: Node, approximate: str) -> Node:
    if approximate == "tanh":
        t = p.tanh(_tanh_argument(p, a))
        inner = p.mul(p.add(p.mul(p.mul(a, a), 3 * TANH_CUBE), 1), TANH_SCALE)
        left = p.mul(p.add(t, 1), 0.5)
        return p.add(left, p.mul(p.mul(p.mul(a, 0.5), p.sub(1.0, p.mul(t, t))), inner))
    cdf = p.mul(p.add(p.erf(p.mul(a, SQRT_HALF)), 1), 0.5)
    pdf = p.mul(p.exp(p.mul(p.mul(a, a), -0.5)), 1 / math.sqrt(2 * math.pi))
    return p.add(cdf, p.mul(a, pdf))


@decomposition(aten.silu.default)
def silu(p: Lowering, x: Node) -> Node:
    return p.pointwise(lambda a: p.mul(a, p.sigmoid(a)), x)


@decomposition(aten.silu_backward.default)
def silu_backward(p: Lowering, g: Node, x: Node) -> Node:
    def compute(g: Node, a: Node) -> Node:
        s = p.sigmoid(a)
        return p.mul(p.mul(g, s), p.add(p.mul(a, p.sub(1.0, s)), 1))

    return p.pointwise(compute, g, x)


@decomposition(aten.mish.default)
def mish(p: Lowering, x: Node) -> Node:
    return p.pointwise(lambda a: p.mul(a, p.tanh(_softplus(p, a, 1.0, 20.0))), x)


@decomposition(aten.mish_backward.default)
def mish_backward(p: Lowering, g: Node, x: Node) -> Node:
    def compute(g: Node, a: Node) -> Node:
        t = p.tanh(_softplus(p, a, 1.0, 20.0))
        inner = p.mul(p.mul(a, p.sigmoid(a)), p.sub(1.0, p.mul(t, t)))
        return p.mul(g, p.add(t, inner))

    return p.pointwise(compute, g, x)


@decomposition(aten.sigmoid_backward.default)
def sigmoid_backward(p: Lowering, g: Node, y: Node) -> Node:
    return p.pointwise(lambda g, y: p.mul(g, p.mul(p.sub(1.0, y), y)), g, y)


@decomposition(aten.tanh_backward.default)
def tanh_backward(p: Lowering, g: Node, y: Node) -> Node:
    return p.pointwise(lambda g, y: p.mul(g, p.sub(1.0, p.mul(y, y))), g, y)


@decomposition(aten.logit_backward.default)
def logit_backward(p: Lowering, g: Node, x: Node, eps: float | None = None) -> Node:
    def compute(g: Node, a: Node) -> Node:
        low, high = (0.0, 1.0) if eps is None else (eps, 1 - eps)
        outside = p.logical_or(p.lt(a, low), p.gt(a, high))  # false for NaN
        slope = p.div(g, p.mul(a, p.sub(1.0, a)))
        if not eps and p.out.device.type == "cpu":  # as eager does at 0 and 1; dividing by -0.0 would flip the sign
            slope = p.where(p.logical_or(p.eq(a, 0.0), p.eq(a, 1.0)), p.mul(g, math.inf), slope)
        return p.where(outside, math.nan if eps is None else 0.0, slope)

    return p.pointwise(compute, g, x)


@decomposition(aten.log_sigmoid_forward.default)
def log_sigmoid(p: Lowering, x: Node) -> tuple[Node, Node]:
    def compute(a: Node) -> Node:
        return p.sub(p.minimum(a, 0), p.log1p(p.exp(p.neg(p.abs(a)))))

    buffer_shape = p.result[1].shape
    buffer = p.pointwise(lambda a: p.exp(p.neg(p.abs(a))), x) if same_all(buffer_shape, p.out.shape) else None
    empty = p.full(buffer_shape, 0, p.out.dtype, p.out.device)
    return p.pointwise(compute, x), buffer if buffer is not None else empty


@decomposition(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(p: Lowering, g: Node, x: Node, buffer: Node) -> Node:
    return p.pointwise(lambda g, a: p.mul(g, p.sigmoid(p.neg(a))), g, x)


def _softplus(p: Lowering, a: Node, beta: float, limit: float) -> Node:
    scaled = p.mul(a, beta)
    return p.where(p.gt(scaled, limit), a, p.div(p.log1p(p.exp(scaled)), beta))


@decomposition(aten.softplus.default)
def softplus(p: Lowering, x: Node, beta: float = 1, threshold: float = 20) -> Node:
    return p.pointwise(lambda a: _softplus(p, a, beta, threshold), x)


@decomposition(aten.softplus_backward.default)
def softplus_backward(p: Lowering, g: Node, x: Node, beta: float, threshold: float) -> Node:
    def compute(g: Node, a: Node) -> Node:
        scaled = p.mul(a, beta)
        return p.where(p.gt(scaled, threshold), g, p.mul(g, p.sigmoid(scaled)))

    return p.pointwise(compute, g, x)


@decomposition(aten.hardtanh.default)
def hardtanh(p: Lowering, x: Node, low: Any = -1, high: Any = 1) -> Any:
    if is_integral(dtype_of(x)):
        return NotImplemented
    return p.pointwise(lambda a: p.minimum(p.maximum(a, low), high), x)


@decomposition(aten.hardtanh_backward.default)
def hardtanh_backward(p: Lowering, g: Node, x: Node, low: float, high: float) -> Node:
    def compute(g: Node, a: Node) -> Node:
        outside = p.logical_or(p.le(a, low), p.ge(a, high))
        return p.where(outside, 0.0, g)

    return p.pointwise(compute, g, x)


def _clamp6(p: Lowering, a: Node) -> Node:
    return p.minimum(p.maximum(p.add(a, 3.0), 0.0), 6.0)


@decomposition(aten.hardsigmoid.default)
def hardsigmoid(p: Lowering, x: Node) -> Node:
    return p.pointwise(lambda a: p.div(_clamp6(p, a), 6.0), x)


_ONE_SIXTH_FLOAT32 = 0.1666666716337204
"""1 / 6 rounded to float32. Eager uses this value for float64, too."""


@decomposition(aten.hardsigmoid_backward.default)
def hardsigmoid_backward(p: Lowering, g: Node, x: Node) -> Node:
    def compute(g: Node, a: Node) -> Node:
        inside = p.logical_and(p.gt(a, -3.0), p.lt(a, 3.0))
        return p.where(inside, p.mul(g, _ONE_SIXTH_FLOAT32), 0.0)

    return p.pointwise(compute, g, x)


@decomposition(aten.hardswish.default)
def hardswish(p: Lowering, x: Node) -> Node:
    return p.pointwise(lambda a: p.div(p.mul(a, _clamp6(p, a)), 6.0), x)


@decomposition(aten.hardswish_backward.default)
def hardswish_backward(p: Lowering, g: Node, x: Node) -> Node:
    def compute(g: Node, a: Node) -> Node:
        slope = p.mul(g, p.add(p.div(a, 3.0), 0.5))
        return p.where(p.le(a, -3.0), 0.0, p.where(p.lt(a, 3.0), slope, g))

    return p.pointwise(compute, g, x)


@decomposition(aten.hardshrink.default)
def hardshrink(p: Lowering, x: Node, limit: float = 0.5) -> Node:
    limit = rounded(limit, dtype_of(x))

    def compute(a: Node) -> Node:
        return p.where(p.logical_and(p.ge(a, -limit), p.le(a, limit)), 0.0, a)

    return p.pointwise(compute, x)


@decomposition(aten.softshrink.default)
def softshrink(p: Lowering, x: Node, limit: float = 0.5) -> Node:
    def compute(a: Node) -> Node:
        below = p.where(p.lt(a, -limit), p.add(a, limit), p.mul(a, 0.0))
        return p.where(p.gt(a, limit), p.sub(a, limit), below)

    return p.pointwise(compute, x)


@decomposition(aten.hardshrink_backward.default, aten.softshrink_backward.default)
def shrink_backward(p: Lowering, g: Node, x: Node, limit: float) -> Node:
    limit = rounded(limit, dtype_of(x))

    def compute(g: Node, a: Node) -> Node:
        return p.where(p.logical_and(p.ge(a, -limit), p.le(a, limit)), 0.0, g)

    return p.pointwise(compute, g, x)


@decomposition(aten.glu.default)
def glu(p: Lowering, x: Node, dim: int = -1) -> Node:
    a, b = _halves(p, x, dim)
    return p.pointwise(lambda a, b: p.mul(a, p.sigmoid(b)), a, b)


@decomposition(aten.glu_backward.default)
def glu_backward(p: Lowering, g: Node, x: Node, dim: int) -> Node:
    a, b, g = *(p.widen(v) for v in _halves(p, x, dim)), p.widen(g)
    s = p.sigmoid(b)
    da = p.mul(g, s)
    db = p.mul(p.mul(da, a), p.sub(1.0, s))
    out = [p.convert(v, p.out.dtype) for v in (da, db)]
    return p.cat(tuple(out), dim % len(p.out.shape))


@decomposition(aten.glu_jvp.default)
def glu_jvp(p: Lowering, glu: Node, x: Node, dx: Node, dim: int) -> Node:
    """The forward-mode derivative of a * sigmoid(b); `glu` is this product, x is a and b concatenated."""
    _, b = _halves(p, x, dim)
    da, db = _halves(p, dx, dim)

    def compute(glu: Node, b: Node, da: Node, db: Node) -> Node:
        s = p.sigmoid(b)
        return p.add(p.mul(da, s), p.mul(p.mul(db, p.sub(1.0, s)), glu))

    return p.pointwise(compute, glu, b, da, db)


def _halves(p: Lowering, x: Node, dim: int) -> tuple[Node, Node]:
    shape = x.meta["val"].shape
    dim %= len(shape)
    middle = tuple(n // 2 if d == dim else n for d, n in enumerate(shape))
    start = tuple(n // 2 if d == dim else 0 for d, n in enumerate(shape))
    ones = (1,) * len(shape)
    return p.slice(x, (0,) * len(shape), middle, ones), p.slice(x, start, shape, ones)
