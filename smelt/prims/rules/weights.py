"""Weight normalization (`torch.nn.utils.weight_norm`) and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from smelt.prims.registry import Lowering, aten, decomposition, rank_of, shape_of


def _other_dims(x: Node, dim: int) -> tuple[int, ...]:
    return tuple(d for d in range(rank_of(x)) if d != dim)


def _broadcast_over(p: Lowering, value: Node, like: Node, dim: int) -> Node:
    """Returns a vector with one number per index of `dim`, broadcast to the shape of `like`."""
    shape: Sequence[int] = shape_of(like)
    return p.broadcast_in_dim(p.reshape(value, (shape[dim],)), shape, (dim,))


@decomposition(aten._weight_norm_interface.default)
def weight_norm(p: Lowering, v: Node, g: Node, dim: int = 0) -> Any:
    """Returns (v scaled to the norm g, norm of v). Norms are over all dimensions but `dim`."""
    if not 0 <= dim < rank_of(v):
        return NotImplemented
    weight, lengths = p.result
    a = p.widen(v)
    length = p.sqrt(p.sum(p.mul(a, a), _other_dims(v, dim)))
    ratio = p.div(p.reshape(p.widen(g), shape_of(length)), length)
    out = p.mul(a, _broadcast_over(p, ratio, a, dim))
    return p.convert(out, weight.dtype), p.convert(p.reshape(length, lengths.shape), lengths.dtype)


@decomposition(aten._weight_norm_interface_backward.default)
def weight_norm_backward(p: Lowering, grad: Node, v: Node, g: Node, lengths: Node, dim: int) -> Any:
    if not 0 <= dim < rank_of(v):
        return NotImplemented
    dv, dg = p.result
    out, a = p.widen(grad), p.widen(v)
    dot = p.sum(p.mul(out, a), _other_dims(v, dim))
    length = p.reshape(p.widen(lengths), shape_of(dot))
    ratio = p.div(p.reshape(p.widen(g), shape_of(dot)), length)
    along = p.mul(a, _broadcast_over(p, p.div(dot, p.mul(length, length)), a, dim))
    found = p.mul(_broadcast_over(p, ratio, a, dim), p.sub(out, along))
    return p.convert(found, dv.dtype), p.convert(p.reshape(p.div(dot, length), dg.shape), dg.dtype)
