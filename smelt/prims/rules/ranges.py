"""`linspace` and `logspace` whose start or stop is a tensor."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from smelt.prims.registry import Lowering, aten, decomposition


def _endpoint(p: Lowering, value: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Node:
    if not isinstance(value, Node):
        return p.full(shape, value, dtype, p.out.device)
    return p.broadcast(p.reshape(p.convert(value, dtype), ()), shape)


def _spaced(p: Lowering, start: Any, stop: Any, steps: int, dtype: torch.dtype) -> Node:
    """Returns `steps` evenly spaced numbers, computed from both ends, so that the last one is exactly stop."""
    shape = (steps,)
    first, last = _endpoint(p, start, shape, dtype), _endpoint(p, stop, shape, dtype)
    if steps < 2:
        return first
    position = p.iota(steps, 0, 1, dtype, p.out.device)
    step = p.div(p.sub(last, first), float(steps - 1))
    near = p.lt(position, float(steps // 2))
    from_end = p.sub(last, p.mul(p.sub(float(steps - 1), position), step))
    return p.where(near, p.add(first, p.mul(position, step)), from_end)


@decomposition(aten.linspace.Tensor_Tensor, aten.linspace.Tensor_Scalar, aten.linspace.Scalar_Tensor)
def linspace(p: Lowering, start: Any, stop: Any, steps: int, **options: Any) -> Any:
    if p.out.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    return _spaced(p, start, stop, steps, p.out.dtype)


@decomposition(aten.logspace.Tensor_Tensor, aten.logspace.Tensor_Scalar, aten.logspace.Scalar_Tensor)
def logspace(p: Lowering, start: Any, stop: Any, steps: int, base: float = 10.0, **options: Any) -> Any:
    if p.out.dtype not in (torch.float32, torch.float64) or base <= 0:
        return NotImplemented
    return p.exp(p.mul(_spaced(p, start, stop, steps, p.out.dtype), math.log(base)))
