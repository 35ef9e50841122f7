"""Reads and writes at indices given as tensors: `index`, `gather`, `scatter`, `index_put`, `masked_scatter`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from smelt.abi.faults import TOO_FEW
from smelt.prims.registry import (
    Lowering,
    aten,
    common_shape,
    decomposition,
    device_of,
    dtype_of,
    is_empty,
    rank_of,
    shape_of,
)
from smelt.prims.rules.elementwise import select
from smelt.shapes.size import Size, lowest, same, same_all

Indices = Sequence[Node | None]


def _aligned(p: Lowering, x: Node, indices: Indices) -> tuple[Node | None, ...] | None:
    """One entry per dimension of x: an index tensor, all broadcast to one shape, or None for the whole dimension.

    Returns None if there is no index tensor or one of them is a mask.
    """
    found = [i for i in indices if i is not None]
    if not found or any(dtype_of(i) in (torch.bool, torch.uint8) for i in found):
        return None
    shape = common_shape(*found)
    aligned = [None if i is None else p.broadcast(_as_indices(p, i), shape) for i in indices]
    return (*aligned, *(None,) * (rank_of(x) - len(aligned)))


def _as_indices(p: Lowering, index: Node) -> Node:
    return index if dtype_of(index) is torch.int32 else p.convert(index, torch.int64)


@decomposition(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(p: Lowering, x: Node, indices: Indices) -> Any:
    return read_at(p, x, indices)


def read_at(p: Lowering, x: Node, indices: Indices) -> Any:
    """x[indices]; NotImplemented if an index is a mask or x is empty."""
    aligned = _aligned(p, x, indices)
    if aligned is None or is_empty(shape_of(x)):
        return NotImplemented
    found = [i for i in aligned if i is not None]
    if len({dtype_of(i) for i in found}) > 1:
        aligned = tuple(None if i is None else p.convert(i, torch.int64) for i in aligned)
    return p.index(x, aligned)


@decomposition(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(p: Lowering, x: Node, indices: Indices, values: Node, accumulate: bool = False) -> Any:
    masked = _masked_put(p, x, indices, values, accumulate)
    if masked is not None:
        return masked
    return put_at(p, x, indices, values, accumulate)


def put_at(p: Lowering, x: Node, indices: Indices, values: Node, accumulate: bool) -> Any:
    """x after `x[indices] = values`, or `+=` if `accumulate`; NotImplemented if an index is a mask or x is empty."""
    aligned = _aligned(p, x, indices)
    if aligned is None or is_empty(shape_of(x)):
        return NotImplemented
    aligned = tuple(None if i is None else p.convert(i, torch.int64) for i in aligned)
    shape = _target_shape(x, aligned)
    values = p.broadcast(p.convert(values, dtype_of(x)), shape)
    return p.index_put(x, aligned, values, accumulate)


def _target_shape(x: Node, indices: Indices) -> tuple[int, ...]:
    """Returns the shape of x[indices]."""
    indexed_dims = [d for d, i in enumerate(indices) if i is not None]
    kept = [n for d, n in enumerate(shape_of(x)) if indices[d] is None]
    at = indexed_dims[0] if indexed_dims[-1] - indexed_dims[0] + 1 == len(indexed_dims) else 0
    first = indices[indexed_dims[0]]
    assert first is not None
    return (*kept[:at], *shape_of(first), *kept[at:])


def _masked_put(p: Lowering, x: Node, indices: Indices, values: Node, accumulate: bool) -> Node | None:
    """x after `x[mask] = number`, as a `where`; None for other calls."""
    if len(indices) != 1 or indices[0] is None or accumulate or not same(math.prod(shape_of(values)), 1):
        return None
    mask = indices[0]
    if dtype_of(mask) is not torch.bool:
        return None
    spread = p.broadcast_in_dim(mask, shape_of(x), tuple(range(rank_of(mask))))
    return select(p, spread, p.reshape(values, ()), x)


def _as_vector(p: Lowering, x: Node) -> Node:
    return x if rank_of(x) else p.reshape(x, (1,))


@decomposition(aten.gather.default)
def gather(p: Lowering, x: Node, dim: int, index: Node, *, sparse_grad: bool = False) -> Any:
    x, index = _as_vector(p, x), _as_vector(p, _as_indices(p, index))
    if rank_of(x) != rank_of(index):  # eager accepts an empty index of any rank
        return NotImplemented
    return p.reshape(p.gather(x, dim % rank_of(x), index), p.out.shape)


@decomposition(aten.index_select.default)
def index_select(p: Lowering, x: Node, dim: int, index: Node) -> Node:
    x = _as_vector(p, x)
    return p.reshape(p.index_select(x, dim % rank_of(x), _as_vector(p, _as_indices(p, index))), p.out.shape)


@decomposition(aten.take.default)
def take(p: Lowering, x: Node, index: Node) -> Any:
    size = math.prod(shape_of(x))
    return p.index(p.reshape(x, (size,)), (_as_indices(p, index),)) if not same(size, 0) else NotImplemented


def _scattered(p: Lowering, name: str, x: Node, dim: int, index: Node, src: Node) -> Node:
    index, x = _as_vector(p, _as_indices(p, index)), _as_vector(p, x)
    src = _as_vector(p, src)
    if not same_all(shape_of(src), shape_of(index)):  # src may be larger than index; only its leading elements are read
        src = p.slice(src, (0,) * rank_of(src), shape_of(index), (1,) * rank_of(src))
    args = (x, dim % rank_of(x), index, src)
    return p.reshape(p.scatter_add(*args) if name == "add" else p.scatter(*args), p.out.shape)


@decomposition(aten.scatter.src)
def scatter(p: Lowering, x: Node, dim: int, index: Node, src: Node) -> Node:
    return _scattered(p, "set", x, dim, index, src)


@decomposition(aten.scatter.value)
def scatter_value(p: Lowering, x: Node, dim: int, index: Node, value: Any) -> Node:
    return _scattered(p, "set", x, dim, index, p.full(shape_of(index), value, dtype_of(x), device_of(x)))


@decomposition(aten.scatter_add.default)
def scatter_add(p: Lowering, x: Node, dim: int, index: Node, src: Node) -> Node:
    return _scattered(p, "add", x, dim, index, src)


def _put_slices(
    p: Lowering, x: Node, dim: int, index: Node, values: Node, accumulate: bool, wrap: bool = False
) -> Node:
    x = _as_vector(p, x)
    dim %= rank_of(x)
    index = p.convert(_as_vector(p, index), torch.int64)
    shape = shape_of(x)[:dim] + shape_of(index) + shape_of(x)[dim + 1 :]
    values = p.broadcast(values, shape) if rank_of(values) <= len(shape) else values
    indices = tuple(index if d == dim else None for d in range(rank_of(x)))
    return p.reshape(p.index_put(x, indices, values, accumulate, wrap), p.out.shape)


@decomposition(aten.index_add.default)
def index_add(p: Lowering, x: Node, dim: int, index: Node, source: Node, *, alpha: Any = 1) -> Any:
    if dtype_of(x) is torch.bool:
        return NotImplemented
    if alpha != 1:
        source = p.convert(p.mul(p.widen(source), alpha), dtype_of(source))
    return _put_slices(p, x, dim, index, source, True)


@decomposition(aten.index_copy.default)
def index_copy(p: Lowering, x: Node, dim: int, index: Node, source: Node) -> Node:
    return _put_slices(p, x, dim, index, source, False)


@decomposition(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(p: Lowering, x: Node, dim: int, index: Node, value: Any) -> Node:
    if not isinstance(value, Node):
        value = p.full((), value, dtype_of(x), device_of(x))
    return _put_slices(p, x, dim, index, p.convert(value, dtype_of(x)), False, wrap=True)


@decomposition(aten.put.default)
def put(p: Lowering, x: Node, index: Node, source: Node, accumulate: bool = False) -> Any:
    size = math.prod(shape_of(x))
    if not size:
        return NotImplemented
    flat = p.reshape(x, (size,))
    index = p.convert(index, torch.int64)
    return p.reshape(p.index_put(flat, (index,), p.reshape(source, shape_of(index)), accumulate), shape_of(x))


@decomposition(aten.masked_scatter.default)
def masked_scatter(p: Lowering, x: Node, mask: Node, source: Node) -> Any:
    """The n-th element of x at which the mask is true becomes the n-th element of source; a cumulative sum gives n."""
    size, available = math.prod(p.out.shape), math.prod(shape_of(source))
    if same(size, 0) or same(available, 0):
        return NotImplemented
    count = available
    # `p.index` below reads an element even where the mask is false, so source must not be empty
    if isinstance(available, Size) and lowest(available) == 0:
        source = p.cat((p.reshape(source, (available,)), p.full((1,), 0, dtype_of(source), device_of(source))), 0)
        available = available + 1
    x, mask = p.broadcast(x, p.out.shape), p.reshape(p.broadcast(mask, p.out.shape), (size,))
    position = p.sub(p.cumsum(p.convert(mask, torch.int64), 0), 1)
    mask = p.refuse(mask, p.logical_and(mask, p.ge(position, count)), TOO_FEW)
    position = p.minimum(p.maximum(position, 0), available - 1)
    picked = p.index(p.reshape(source, (available,)), (position,))
    return p.reshape(p.where(mask, picked, p.reshape(x, (size,))), p.out.shape)


@decomposition(aten.scatter_reduce.two)
def scatter_reduce(
    p: Lowering, x: Node, dim: int, index: Node, src: Node, reduce: str, *, include_self: bool = True
) -> Any:
    """A sum that includes x is a `scatter_add`, which fuses; a library kernel computes other reductions."""
    if reduce == "sum" and include_self and dtype_of(x) is not torch.bool:
        return _scattered(p, "add", x, dim, index, src)
    return p.scatter_reduce(x, dim, index, src, reduce, include_self)
