"""Operators that create tensors: constants, ranges, identity matrices; also triangles and `diag_embed`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from smelt.prims.registry import Lowering, aten, decomposition, device_of, rank_of, shape_of
from smelt.shapes.size import Size, is_symbolic


def _constant(p: Lowering, value: Any) -> Node:
    return p.full(p.out.shape, value, p.out.dtype, p.out.device)


@decomposition(
    aten.zeros.default,
    aten.zeros_like.default,
    aten.new_zeros.default,
    # uninitialized memory: zeros are valid, and the same in each run
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.new_empty.default,
    aten.empty_strided.default,
    aten.new_empty_strided.default,
    aten.empty_permuted.default,
    aten._efficientzerotensor.default,
)
def zeros(p: Lowering, *args: Any, **options: Any) -> Node:
    return _constant(p, 0)


@decomposition(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(p: Lowering, *args: Any, **options: Any) -> Node:
    return _constant(p, 1)


@decomposition(aten.full.default, aten.full_like.default, aten.new_full.default, aten.fill.Scalar)
def full(p: Lowering, like: Any, *values: Any, **options: Any) -> Node:
    return _constant(p, values[-1])


@decomposition(aten.fill.Tensor)
def fill(p: Lowering, x: Node, value: Node) -> Node:
    return p.broadcast(p.convert(value, p.out.dtype), p.out.shape)


@decomposition(aten.arange.default)
def arange(p: Lowering, stop: Any, **options: Any) -> Node:
    return _range(p, 0, 1)


@decomposition(aten.arange.start)
def arange_start(p: Lowering, start: Any, stop: Any, **options: Any) -> Node:
    return _range(p, start, 1)


@decomposition(aten.arange.start_step)
def arange_step(p: Lowering, start: Any, stop: Any, step: Any = 1, **options: Any) -> Node:
    return _range(p, start, step)


def _range(p: Lowering, start: Any, step: Any) -> Node:
    kind = float if p.out.dtype.is_floating_point else int
    start, step = (n if isinstance(n, Size) else kind(n) for n in (start, step))
    return p.iota(p.out.shape[0], start, step, p.out.dtype, p.out.device)


@decomposition(aten.linspace.default)
def linspace(p: Lowering, start: float, stop: float, steps: int, **options: Any) -> Any:
    if not p.out.dtype.is_floating_point or is_symbolic((start, stop, steps)):
        return NotImplemented
    step = (stop - start) / (steps - 1) if steps > 1 else 0.0
    if steps < 2:
        return p.iota(steps, float(start), step, p.out.dtype, p.out.device)
    half = steps // 2  # computed from both ends, so that the last element is exactly stop
    front = p.iota(half, float(start), step, p.out.dtype, p.out.device)
    back = p.iota(steps - half, stop - step * (steps - 1 - half), step, p.out.dtype, p.out.device)
    return p.cat((front, back), 0)


@decomposition(aten.eye.default, aten.eye.m)
def eye(p: Lowering, *sizes: int, **options: Any) -> Node:
    diagonal = p.eq(*_row_and_column(p, p.out.shape, p.out.device))
    return p.convert(diagonal, p.out.dtype)


def _row_and_column(p: Lowering, shape: tuple[int, ...], device: torch.device) -> tuple[Node, Node]:
    """The row index and the column index of each element, as two matrices of `shape`."""
    rows = p.iota(shape[0], 0, 1, torch.int64, device)
    columns = p.iota(shape[1], 0, 1, torch.int64, device)
    return p.broadcast_in_dim(rows, shape, (0,)), p.broadcast_in_dim(columns, shape, (1,))


def _triangle(p: Lowering, x: Node, diagonal: int, upper: bool) -> Node:
    rank, shape = rank_of(x), shape_of(x)
    row, column = _row_and_column(p, shape[-2:], device_of(x))
    edge = p.add(row, diagonal)
    kept = p.ge(column, edge) if upper else p.le(column, edge)
    return p.where(p.broadcast_in_dim(kept, shape, (rank - 2, rank - 1)), x, p.full_like(x, 0))


@decomposition(aten.triu.default)
def triu(p: Lowering, x: Node, diagonal: int = 0) -> Node:
    return _triangle(p, x, diagonal, upper=True)


@decomposition(aten.tril.default)
def tril(p: Lowering, x: Node, diagonal: int = 0) -> Node:
    return _triangle(p, x, diagonal, upper=False)


@decomposition(aten.diag_embed.default)
def diag_embed(p: Lowering, x: Node, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Node:
    shape = p.out.shape
    rank = len(shape)
    dim1, dim2 = dim1 % rank, dim2 % rank
    size = shape[dim1]
    x = p.pad(x, (0,) * (rank - 1), (0,) * (rank - 2) + (abs(offset),), 0)
    front = tuple(d for d in range(rank) if d not in (dim1, dim2))
    lead = tuple(shape[d] for d in front)
    # element i goes to row i; if the diagonal is below the main one, to column i
    along = rank - 2 if offset >= 0 else rank - 1
    spread = p.broadcast_in_dim(x, (*lead, size, size), (*range(rank - 2), along))
    row, column = _row_and_column(p, (size, size), p.out.device)
    on = p.broadcast_in_dim(p.eq(column, p.add(row, offset)), (*lead, size, size), (rank - 2, rank - 1))
    order = (*front, dim1, dim2)
    matrix = p.where(on, spread, p.full_like(spread, 0))
    return p.permute(matrix, tuple(order.index(d) for d in range(rank)))


@decomposition(aten.logspace.default)
def logspace(p: Lowering, start: float, stop: float, steps: int, base: float = 10.0, **options: Any) -> Any:
    if p.out.dtype not in (torch.float32, torch.float64) or base <= 0 or is_symbolic((start, stop, steps)):
        return NotImplemented
    exponent = linspace(p, start, stop, steps)
    return p.exp(p.mul(exponent, math.log(base)))
