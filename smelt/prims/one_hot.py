"""Simplifies the sum of a one-hot row, `where(classes == index, value, 0)` summed over the classes, to its value.

The backward of a negative log likelihood returns a gradient of this form, and the backward of log softmax sums that
gradient over all scores of a row. The sum is the single value that is not zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from smelt.prims.ops import PRIMS
from smelt.prims.simplify import CONVERT, WHERE, constant_of, operands
from smelt.prims.table import Shape
from smelt.shapes.size import known_at_most, same

if TYPE_CHECKING:
    from smelt.prims.builder import Builder

BROADCAST, EQ, IOTA = (PRIMS[name] for name in ("broadcast_in_dim", "eq", "iota"))


def sum_of_one_hot(p: Builder, x: Node, dims: Shape) -> Any:
    """Returns `value` where its index is one of the classes, else 0; None if x is not of the form
    `where(classes == index, value, 0)` along the one dimension of `dims`.
    """
    if len(dims) != 1 or x.meta["val"].dtype is torch.bool:
        return None
    (dim,) = dims
    kinds: list[torch.dtype] = []
    while x.target is CONVERT:
        kinds.append(x.meta["val"].dtype)
        x = operands(x)[0]
    if x.target is not WHERE or x.meta["val"].dtype is torch.bool:
        return None
    hit, value, other = operands(x)
    index, row = _index(hit, dim), _row(p, x, value, dim)
    if index is None or row is None or isinstance(other, Node) or other != 0:
        return None
    if not _can_only_equal_classes(index.meta["val"].dtype, x.meta["val"].shape[dim]):
        return None
    inside = p.logical_and(p.ge(index, 0), p.lt(index, x.meta["val"].shape[dim]))
    found = p.where(inside, row, 0)
    for kind in reversed(kinds):
        found = p.convert(found, kind)
    return p.add(found, 0.0 if found.meta["val"].dtype.is_floating_point else 0)  # a sum is never -0.0


def _index(hit: Node, dim: int) -> Node | None:
    """Returns the index in `classes == index`, where classes are the numbers 0, 1, ... along dim and the index is
    constant along dim; None if `hit` is not such a comparison.
    """
    if hit.target is not EQ or not all(isinstance(x, Node) for x in operands(hit)):
        return None
    for classes, other in (operands(hit), operands(hit)[::-1]):
        if _is_position_along(classes, dim):
            return _repeated(other, dim)
    return None


def _is_position_along(x: Node, dim: int) -> bool:
    """Whether each element of x equals its position along dim."""
    if x.target is not BROADCAST or operands(x)[2] != (dim,) or operands(x)[0].target is not IOTA:
        return False
    length, start, step, *_ = operands(operands(x)[0])
    return same(start, 0) and same(step, 1) and same(length, x.meta["val"].shape[dim])


def _can_only_equal_classes(dtype: torch.dtype, count: int) -> bool:
    """Whether an index of this dtype equals a class exactly if it is in [0, count). False for floats (2.5) and for
    dtypes in which classes wrap around (class 257 of uint8 equals index 1)."""
    return not dtype.is_floating_point and known_at_most(count, torch.iinfo(dtype).max)


def _row(p: Builder, x: Node, value: Any, dim: int) -> Node | None:
    """Returns the selected values without dimension `dim`; None if they are not constant along it."""
    meta = x.meta["val"]
    number = constant_of(value)
    if number is not None:
        kept = tuple(n for d, n in enumerate(meta.shape) if d != dim)
        return p.full(kept, number, meta.dtype, meta.device)
    return _repeated(value, dim) if isinstance(value, Node) else None


def _repeated(x: Node, dim: int) -> Node | None:
    """Returns the operand of a broadcast that added exactly the dimension `dim`; None if x is not such a broadcast."""
    if x.target is not BROADCAST:
        return None
    source, shape, dims = operands(x)
    return source if dims == tuple(d for d in range(len(shape)) if d != dim) else None
