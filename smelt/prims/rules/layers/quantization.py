"""Fake quantization: values are rounded to the steps of an integer type but remain floating-point numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from smelt.prims.registry import Lowering, aten, decomposition, dtype_of, shape_of

_SUPPORTED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes of x that the rules support; they compute in float32, as eager does."""


def _fake_quantized(p: Lowering, x: Node, scale: Any, zero: Any, low: int, high: int) -> tuple[Node, Node]:
    """Returns (x quantized to the integers low to high and converted back, whether x was in their range), in
    float32.
    """
    step = p.add(p.round(p.mul(x, p.reciprocal(scale))), zero)
    inside = p.logical_and(p.ge(step, float(low)), p.le(step, float(high)))
    kept = p.minimum(p.where(p.ge(step, float(low)), step, float(low)), float(high))  # NaN becomes low
    return p.mul(p.sub(kept, zero), scale), inside


@decomposition(aten.fake_quantize_per_tensor_affine_cachemask.default)
def per_tensor(p: Lowering, x: Node, scale: float, zero: int, low: int, high: int) -> Any:
    if dtype_of(x) not in _SUPPORTED_DTYPES:
        return NotImplemented
    a = p.widen(x)
    value, inside = _fake_quantized(p, a, p.full_like(a, scale), p.full_like(a, zero), low, high)
    return p.convert(value, p.out.dtype), inside


@decomposition(aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default)
def per_tensor_of_tensors(p: Lowering, x: Node, scale: Node, zero: Node, enabled: Node, low: int, high: int) -> Any:
    numbers = (scale, zero, enabled)
    if dtype_of(x) not in _SUPPORTED_DTYPES or any(n.meta["val"].numel != 1 for n in numbers):
        return NotImplemented
    a, shape = p.widen(x), shape_of(x)
    scale, zero, on = (p.broadcast(p.reshape(p.convert(n, torch.float32), ()), shape) for n in numbers)
    value, inside = _fake_quantized(p, a, scale, zero, low, high)
    on = p.ne(on, 0.0)
    return p.convert(p.where(on, value, a), p.out.dtype), p.logical_or(p.logical_not(on), inside)


@decomposition(aten.fake_quantize_per_channel_affine_cachemask.default)
def per_channel(p: Lowering, x: Node, scale: Node, zero: Node, axis: int, low: int, high: int) -> Any:
    if dtype_of(x) not in _SUPPORTED_DTYPES or dtype_of(zero).is_floating_point:
        return NotImplemented
    shape = shape_of(x)
    scale, zero = (p.broadcast_in_dim(p.convert(v, torch.float32), shape, (axis % len(shape),)) for v in (scale, zero))
    value, inside = _fake_quantized(p, p.widen(x), scale, zero, low, high)
    return p.convert(value, p.out.dtype), inside
