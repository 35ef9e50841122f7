"""Pads the operands of matrix products on a GPU so that each row begins at a multiple of 16 bytes.

The kernels of libraries load rows in words of 16 bytes. If the length of a row is not a multiple of 16 bytes (a
vocabulary of 50,257 entries, for example), libraries choose kernels that load one element at a time and are several
times slower. So the kernel that computes an operand also appends zeros to it, and a slice removes the extra rows and
columns of the product. torch.compile does the same.
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

WORD_BYTES = 16
"""Number of bytes that a library's kernel loads at once."""

MIN_PADDED_SIZE = 256
"""Minimum size of the dimensions of a padded product: for smaller ones, copying an operand would cost as much as it
saves.
"""


def aligned_mm(p: Builder, a: Node, b: Node) -> Node | None:
    """The simplification rule of the prim `mm`: (n, k) @ (k, m) as a slice of a padded product; None if the rows are
    aligned."""
    return _aligned(p, "mm", a, b, lambda n, m: ())


def aligned_addmm(p: Builder, a: Node, b: Node, x: Node, beta: float, alpha: float) -> Node | None:
    """The simplification rule of the prim `addmm`: pads the added term `x` together with the product; None if the rows
    are aligned."""

    def with_term(n: int, m: int) -> tuple[Any, ...]:
        shape = x.meta["val"].shape
        more = tuple(0 if size == 1 else lacks for size, lacks in zip(shape, (n, m)[-len(shape) :], strict=True))
        return p.pad(x, (0,) * len(shape), more, 0.0) if any(more) else x, beta, alpha

    return _aligned(p, "addmm", a, b, with_term)


def _aligned(p: Builder, prim: str, a: Node, b: Node, others: Callable[[int, int], tuple[Any, ...]]) -> Node | None:
    """Returns the padded product, sliced to the original shape; None if nothing has to be padded.

    Args:
        others: function from (rows, columns appended to the result) to the prim's arguments after `a` and `b`.
    """
    n, k, m = extra = _missing(a.meta["val"], b.meta["val"])
    if not any(extra):
        return None
    out: Node = p.unique(PRIMS[prim], (_padded(p, a, (n, k)), _padded(p, b, (k, m)), *others(n, m)))
    stops = a.meta["val"].shape[0], b.meta["val"].shape[1]
    return p.slice(out, (0, 0), stops, (1, 1)) if n or m else out


def step(x: TensorMeta) -> int:
    """Returns the number of elements of which the length of a row should be a multiple; 1 if rows of any length are
    fast.
    """
    if x.device.type != "cuda":
        return 1
    rounded = x.dtype is torch.float32 and products_round_to_tf32()
    return WORD_BYTES // x.dtype.itemsize if rounded or x.dtype in LOW_PRECISION else 1


def _missing(a: TensorMeta, b: TensorMeta) -> tuple[int, int, int]:
    """Returns the numbers of elements by which n, k and m are padded: 0 for a dimension that is not a misaligned row in
    memory.
    """
    sizes = (*a.shape, b.shape[1])
    one = step(a)
    if one == 1 or is_symbolic((*sizes, *a.stride, *b.stride)) or min(sizes) < MIN_PADDED_SIZE:
        return 0, 0, 0
    n, k, m = (-int(size) % one for size in sizes)
    return n if _is_misaligned(a, 0, one) else 0, k if _is_misaligned(a, 1, one) or _is_misaligned(b, 0, one) else 0, m


def _is_misaligned(x: TensorMeta, dim: int, one: int) -> bool:
    """Whether the matrix is contiguous along `dim` and its rows begin at addresses that are not multiples of `one`
    elements."""
    return x.stride[dim] == 1 and x.stride[1 - dim] % one != 0


def _padded(p: Builder, x: Node, extra: tuple[int, int]) -> Node:
    """Returns x with `extra` zeros appended to each dimension. For a transposed matrix its source is padded, so that
    other readers of the source share the padded copy.
    """
    if not any(extra):
        return x
    if x.target is PRIMS["permute"] and x.args[1] == (1, 0):
        source = x.args[0]
        assert isinstance(source, Node)
        transposed: Node = p.permute(_padded(p, source, (extra[1], extra[0])), (1, 0))
        return transposed
    padded: Node = p.pad(x, (0, 0), extra, 0.0)
    return padded
