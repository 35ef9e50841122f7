"""Matrix products whose rows begin where tensor cores can load them: operands are padded where they do not.

Libraries load rows of a matrix in pieces of 16 bytes. Where a row is no whole number of these (a vocabulary of 50,257
words), they take kernels that load element by element and are several times slower. The kernel that computes the
operand also pads it with zeros, and a view cuts the extra columns off. The same is done by torch.compile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from smelt.base.precision import products_round_to_tf32
from smelt.graph.ir.meta import TensorMeta
from smelt.prims.dtypes import LOW_PRECISION
from smelt.prims.ops import PRIMS
from smelt.shapes.size import is_symbolic

if TYPE_CHECKING:
    from smelt.prims.builder import Builder

PIECE = 16
"""Bytes of one load."""

MIN_PADDED_SIZE = 256
"""Sizes below which the copy of an operand costs as much as it saves."""


def aligned_mm(p: Builder, a: Node, b: Node) -> Node | None:
    """The rule of the prim `mm`: (n, k) @ (k, m) by a larger product; None where it is right as it is."""
    return _aligned(p, "mm", a, b, lambda n, m: ())


def aligned_addmm(p: Builder, a: Node, b: Node, x: Node, beta: float, alpha: float) -> Node | None:
    """The rule of the prim `addmm`: the same with a term."""

    def with_term(n: int, m: int) -> tuple[Any, ...]:
        shape = x.meta["val"].shape
        more = tuple(0 if size == 1 else lacks for size, lacks in zip(shape, (n, m)[-len(shape) :], strict=True))
        return p.pad(x, (0,) * len(shape), more, 0.0) if any(more) else x, beta, alpha

    return _aligned(p, "addmm", a, b, with_term)


def _aligned(p: Builder, prim: str, a: Node, b: Node, others: Callable[[int, int], tuple[Any, ...]]) -> Node | None:
    """The larger product, cut; `others`: further arguments, given how many rows and columns the result lacks."""
    n, k, m = extra = _missing(a.meta["val"], b.meta["val"])
    if not any(extra):
        return None
    out: Node = p.unique(PRIMS[prim], (_padded(p, a, (n, k)), _padded(p, b, (k, m)), *others(n, m)))
    stops = a.meta["val"].shape[0], b.meta["val"].shape[1]
    return p.slice(out, (0, 0), stops, (1, 1)) if n or m else out


def step(x: TensorMeta) -> int:
    """Elements of which a row should hold a multiple; 1: any number will do."""
    if x.device.type != "cuda":
        return 1
    rounded = x.dtype is torch.float32 and products_round_to_tf32()
    return PIECE // x.dtype.itemsize if rounded or x.dtype in LOW_PRECISION else 1


def _missing(a: TensorMeta, b: TensorMeta) -> tuple[int, int, int]:
    """How many elements n, k and m lack, where they are the length of a row in an operand or the result."""
    sizes = (*a.shape, b.shape[1])
    one = step(a)
    if one == 1 or is_symbolic((*sizes, *a.stride, *b.stride)) or min(sizes) < MIN_PADDED_SIZE:
        return 0, 0, 0
    n, k, m = (-int(size) % one for size in sizes)
    return n if _crooked(a, 0, one) else 0, k if _crooked(a, 1, one) or _crooked(b, 0, one) else 0, m


def _crooked(x: TensorMeta, dim: int, one: int) -> bool:
    """The matrix has its rows along this dimension in memory, and they begin anywhere."""
    return x.stride[dim] == 1 and x.stride[1 - dim] % one != 0


def _padded(p: Builder, x: Node, extra: tuple[int, int]) -> Node:
    """x with so many zeros behind each dimension. What is behind a transposition is padded: others use it, too."""
    if not any(extra):
        return x
    if x.target is PRIMS["permute"] and x.args[1] == (1, 0):
        source = x.args[0]
        assert isinstance(source, Node)
        turned: Node = p.permute(_padded(p, source, (extra[1], extra[0])), (1, 0))
        return turned
    padded: Node = p.pad(x, (0, 0), extra, 0.0)
    return padded
