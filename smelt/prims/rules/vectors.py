"""Vector operators: `cross`, `dist`, `renorm` and `_trilinear`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from smelt.prims.registry import Lowering, aten, common_shape, decomposition, is_empty, rank_of, shape_of
from smelt.prims.rules.reductions import norm_of
from smelt.prims.rules.views import cut


@decomposition(aten.linalg_cross.default)
def cross(p: Lowering, x: Node, y: Node, *, dim: int = -1) -> Node:
    dim %= len(p.out.shape)

    def compute(a: Node, b: Node) -> Node:
        u, v = ([cut(p, w, dim, i, i + 1) for i in range(3)] for w in (a, b))
        turns = ((1, 2), (2, 0), (0, 1))
        return p.cat(tuple(minus(p.mul(u[j], v[i]), u[i], v[j]) for i, j in turns), dim)

    def minus(second: Node, one: Node, other: Node) -> Node:
        """Returns one * other - second, rounded once as in eager's kernels (so cross(v, v) need not be 0)."""
        if p.out.dtype.is_floating_point:
            return p.fma(one, other, p.neg(second))
        return p.sub(p.mul(one, other), second)

    return p.pointwise(compute, x, y)


@decomposition(aten.dist.default)
def dist(p: Lowering, x: Node, y: Node, order: Any = 2) -> Any:
    shape = common_shape(x, y)
    if is_empty(shape):
        return p.full((), 0.0, p.out.dtype, p.out.device)
    off = p.sub(*(p.broadcast(p.convert(p.widen(v), p.widen(x).meta["val"].dtype), shape) for v in (x, y)))
    return p.convert(norm_of(p, off, float(order), tuple(range(len(shape))), False), p.out.dtype)


@decomposition(aten.renorm.default)
def renorm(p: Lowering, x: Node, order: Any, dim: int, limit: Any) -> Node:
    """Returns x, with each slice along dim whose norm exceeds the limit scaled down to the limit."""
    dim %= rank_of(x)
    a, shape = p.widen(x), shape_of(x)
    others = tuple(d for d in range(rank_of(x)) if d != dim)
    norm = norm_of(p, a, float(order), others, False)
    scale = p.where(p.gt(norm, float(limit)), p.div(float(limit), p.add(norm, 1e-7)), 1.0)
    return p.convert(p.mul(a, p.broadcast_in_dim(scale, shape, (dim,))), p.out.dtype)


@decomposition(aten._trilinear.default)
def trilinear(
    p: Lowering,
    x: Node,
    y: Node,
    z: Node,
    new_x: Sequence[int],
    new_y: Sequence[int],
    new_z: Sequence[int],
    summed: Sequence[int],
    unrolled: int = 1,
) -> Node:
    """Returns x * y * z, summed over the dimensions `summed`.

    Args:
        new_x, new_y, new_z: positions at which each operand first gets new dimensions of size 1.
    """
    spread = [p.keep(p.widen(v), tuple(at)) for v, at in ((x, new_x), (y, new_y), (z, new_z))]
    shape = common_shape(*spread)
    a, b, c = (p.broadcast(v, shape) for v in spread)
    dims = tuple(sorted(d % len(shape) for d in summed))
    return p.convert(p.sum(p.mul(p.mul(a, b), c), dims), p.out.dtype)
