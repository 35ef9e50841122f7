"""Views, copies that rearrange elements, and their gradients: all become prims that only remap indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from smelt.base.errors import CompileError
from smelt.base.torch_private import OpOverload
from smelt.graph.ir.meta import contiguous_stride, is_dense
from smelt.graph.ir.schema import Kind, op_info
from smelt.prims.registry import Lowering, aten, decomposition, dtype_of, is_empty, rank_of, shape_of
from smelt.shapes.size import hint, known_at_most, larger, same, same_all, smaller


@decomposition(
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.view_copy.default,
    aten._reshape_alias.default,
)
def view(p: Lowering, x: Node, *sizes: Any) -> Node:
    return p.reshape(x, p.out.shape)


@decomposition(
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten._reshape_copy.default,
    aten.squeeze_copy.default,
    aten.squeeze_copy.dim,
    aten.squeeze_copy.dims,
    aten.unsqueeze_copy.default,
)
def same_elements(p: Lowering, x: Node, *options: Any) -> Node:
    return p.reshape(x, p.out.shape)


@decomposition(aten.expand.default, aten.expand_copy.default)
def expand(p: Lowering, x: Node, sizes: Sequence[int], *, implicit: bool = False) -> Node:
    return p.broadcast(x, p.out.shape)


@decomposition(aten.permute.default, aten.permute_copy.default)
def permute(p: Lowering, x: Node, dims: Sequence[int]) -> Node:
    return p.permute(x, tuple(d % rank_of(x) for d in dims))


@decomposition(aten.transpose.int, aten.transpose_copy.int)
def transpose(p: Lowering, x: Node, a: int, b: int) -> Node:
    order = list(range(rank_of(x)))
    if order:
        a, b = a % len(order), b % len(order)
        order[a], order[b] = b, a
    return p.permute(x, tuple(order))


@decomposition(aten.t.default, aten.t_copy.default)
def t(p: Lowering, x: Node) -> Node:
    return p.permute(x, tuple(reversed(range(rank_of(x)))))


def cut(p: Lowering, x: Node, dim: int, start: int, stop: int, step: int = 1) -> Node:
    """Returns x[..., start:stop:step, ...] along dim, for 0 <= start <= stop <= size."""
    shape = shape_of(x)
    starts = tuple(start if d == dim else 0 for d in range(len(shape)))
    stops = tuple(stop if d == dim else n for d, n in enumerate(shape))
    steps = tuple(step if d == dim else 1 for d in range(len(shape)))
    return p.slice(x, starts, stops, steps)


def bounds(size: int, start: int | None, stop: int | None) -> tuple[int, int]:
    """Returns Python's slice bounds, clamped to 0 <= start <= stop <= size."""
    start = 0 if start is None else start
    stop = size if stop is None else stop
    start = larger(start + size, 0) if start < 0 else smaller(start, size)  # type: ignore[assignment]
    stop = larger(stop + size, 0) if stop < 0 else smaller(stop, size)  # type: ignore[assignment]
    return start, larger(start, stop)  # type: ignore[return-value]


@decomposition(aten.slice.Tensor, aten.slice_copy.Tensor)
def slice_(p: Lowering, x: Node, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Node:
    dim %= rank_of(x)
    first, stop = bounds(shape_of(x)[dim], start, end)
    size = p.out.shape[dim]
    # the size may be equal but have another expression, such as `s // 2` for an odd s
    if step == 1 and not same(stop - first, size):
        stop = first + size
    return cut(p, x, dim, first, stop, step)


@decomposition(aten.narrow.default, aten.narrow_copy.default)
def narrow(p: Lowering, x: Node, dim: int, start: int, length: int) -> Node:
    dim %= rank_of(x)
    start = start + shape_of(x)[dim] if start < 0 else start
    return cut(p, x, dim, start, start + length)


@decomposition(aten.select.int, aten.select_copy.int)
def select(p: Lowering, x: Node, dim: int, index: int) -> Node:
    dim %= rank_of(x)
    index %= shape_of(x)[dim]
    return p.reshape(cut(p, x, dim, index, index + 1), p.out.shape)


@decomposition(aten.unbind.int, aten.unbind_copy.int)
def unbind(p: Lowering, x: Node, dim: int = 0) -> tuple[Node, ...]:
    dim %= rank_of(x)
    size = shape_of(x)[dim]
    rest = tuple(n for d, n in enumerate(shape_of(x)) if d != dim)
    return tuple(p.reshape(cut(p, x, dim, i, i + 1), rest) for i in range(size))


def _split(p: Lowering, x: Node, dim: int) -> tuple[Node, ...]:
    """Returns x split along dim; the sizes are those of the ATen node's results."""
    dim %= rank_of(x)
    pieces, at = [], 0
    for meta in p.result:
        pieces.append(cut(p, x, dim, at, at + meta.shape[dim]))
        at += meta.shape[dim]
    return tuple(pieces)


@decomposition(
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.split_copy.Tensor,
    aten.split_with_sizes_copy.default,
    aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default,
    aten.chunk.default,
    aten.unsafe_chunk.default,
)
def split(p: Lowering, x: Node, sizes: Any, dim: int = 0) -> tuple[Node, ...]:
    return _split(p, x, dim)


@decomposition(aten.diagonal.default, aten.diagonal_copy.default)
def diagonal(p: Lowering, x: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    rank = rank_of(x)
    dim1, dim2 = dim1 % rank, dim2 % rank
    front = tuple(d for d in range(rank) if d not in (dim1, dim2))
    x = p.permute(x, (*front, dim1, dim2))
    *lead, rows, columns = shape_of(x)
    length = p.out.shape[-1]
    if same(length, 0):
        return p.full(p.out.shape, 0, p.out.dtype, p.out.device)
    flat = p.reshape(x, (*lead, rows * columns))
    first = offset if offset >= 0 else -offset * columns
    last = first + (length - 1) * (columns + 1) + 1
    return cut(p, flat, len(lead), first, last, columns + 1)


@decomposition(aten.cat.default)
def cat(p: Lowering, tensors: Sequence[Node], dim: int = 0) -> Node:
    # as eager does, ignore empty tensors of shape (0,) among tensors of other ranks
    nonempty = [x for x in tensors if not same_all(shape_of(x), (0,))] or list(tensors)[:1]
    return p.cat(tuple(p.convert(x, p.out.dtype) for x in nonempty), dim % max(len(p.out.shape), 1))


@decomposition(aten.stack.default)
def stack(p: Lowering, tensors: Sequence[Node], dim: int = 0) -> Node:
    dim %= len(p.out.shape)
    return p.cat(tuple(p.keep(p.convert(x, p.out.dtype), (dim,)) for x in tensors), dim)


@decomposition(aten.repeat.default)
def repeat(p: Lowering, x: Node, repeats: Sequence[int]) -> Node:
    lead = len(repeats) - rank_of(x)
    own = (1,) * lead + shape_of(x)
    spread = tuple(n for pair in zip(repeats, own, strict=True) for n in pair)
    source_dims = tuple(2 * d + 1 for d in range(lead, len(own)))
    return p.reshape(p.broadcast_in_dim(x, spread, source_dims), p.out.shape)


@decomposition(aten.flip.default)
def flip(p: Lowering, x: Node, dims: Sequence[int]) -> Node:
    return p.flip(x, tuple(sorted(d % rank_of(x) for d in dims))) if rank_of(x) else x


@decomposition(aten.roll.default)
def roll(p: Lowering, x: Node, shifts: Sequence[int] | int, dims: Sequence[int] | int = ()) -> Node:
    shifts = (shifts,) if isinstance(shifts, int) else shifts
    dims = (dims,) if isinstance(dims, int) else dims
    if is_empty(shape_of(x)):
        return x
    if not dims:
        return p.reshape(_rolled(p, p.reshape(x, (math.prod(shape_of(x)),)), shifts[0], 0), p.out.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        x = _rolled(p, x, shift, dim % rank_of(x))
    return x


def _rolled(p: Lowering, x: Node, shift: int, dim: int) -> Node:
    size = shape_of(x)[dim]
    at = (size - shift) % size
    return p.cat((cut(p, x, dim, at, size), cut(p, x, dim, 0, at)), dim) if not same(at, 0) else x


@decomposition(aten.constant_pad_nd.default)
def constant_pad(p: Lowering, x: Node, amounts: Sequence[int], value: Any = 0) -> Node:
    rank = rank_of(x)
    low, high = [0] * rank, [0] * rank
    for i in range(len(amounts) // 2):
        low[rank - 1 - i], high[rank - 1 - i] = amounts[2 * i], amounts[2 * i + 1]
    starts = tuple(larger(-n, 0) for n in low)
    stops = tuple(n - larger(-h, 0) for n, h in zip(shape_of(x), high, strict=True))
    if any(not known_at_most(a, b) and b < a for a, b in zip(starts, stops, strict=True)):
        return p.full(p.out.shape, value, p.out.dtype, p.out.device)
    x = p.slice(x, starts, stops, (1,) * rank)
    kind = float if dtype_of(x).is_floating_point else int
    return p.pad(x, tuple(larger(n, 0) for n in low), tuple(larger(n, 0) for n in high), kind(value))


# -- gradients of views


@decomposition(aten.slice_backward.default)
def slice_backward(
    p: Lowering, g: Node, sizes: Sequence[int], dim: int, start: int | None, end: int | None, step: int
) -> Node:
    dim %= len(sizes)
    start, end = bounds(sizes[dim], start, end)
    return _zeros_with_slice(p, g, sizes, dim, start, step)


def _zeros_with_slice(p: Lowering, g: Node, sizes: Sequence[int], dim: int, start: int, step: int) -> Node:
    """Returns a tensor of zeros of shape `sizes`, after `zeros[..., start::step, ...] = g` along dim."""
    count = shape_of(g)[dim]
    rank = len(sizes)
    if step == 1 or same(count, 0) or same(count, 1):
        low = tuple(start if d == dim else 0 for d in range(rank))
        high = tuple(sizes[d] - start - count if d == dim else 0 for d in range(rank))
        return p.pad(g, low, high, 0) if not same(count, 0) else p.full(tuple(sizes), 0, dtype_of(g), p.out.device)
    zeros = p.full(tuple(sizes), 0, dtype_of(g), p.out.device)
    starts = tuple(start if d == dim else 0 for d in range(rank))
    stops = tuple(start + (count - 1) * step + 1 if d == dim else n for d, n in enumerate(sizes))
    return p.slice_scatter(zeros, g, starts, stops, tuple(step if d == dim else 1 for d in range(rank)))


@decomposition(aten.select_backward.default)
def select_backward(p: Lowering, g: Node, sizes: Sequence[int], dim: int, index: int) -> Node:
    dim %= len(sizes)
    return _zeros_with_slice(p, p.keep(g, (dim,)), sizes, dim, index % sizes[dim], 1)


@decomposition(aten.diagonal_backward.default)
def diagonal_backward(p: Lowering, g: Node, sizes: Sequence[int], offset: int, dim1: int, dim2: int) -> Any:
    zeros = p.full(tuple(sizes), 0, dtype_of(g), p.out.device)
    return _scatter_diagonal(p, zeros, g, offset, dim1, dim2)


@decomposition(aten.diagonal_scatter.default)
def diagonal_scatter(p: Lowering, x: Node, src: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    return _scatter_diagonal(p, x, src, offset, dim1, dim2)


def _scatter_diagonal(p: Lowering, x: Node, src: Node, offset: int, dim1: int, dim2: int) -> Node:
    rank, length = rank_of(x), shape_of(src)[-1]
    if is_empty(shape_of(src)):
        return x
    dim1, dim2 = dim1 % rank, dim2 % rank
    order = (*(d for d in range(rank) if d not in (dim1, dim2)), dim1, dim2)
    x = p.permute(x, order)
    *lead, rows, columns = shape_of(x)
    flat = p.reshape(x, (*lead, rows * columns))
    first = offset if offset >= 0 else -offset * columns
    last = first + (length - 1) * (columns + 1) + 1
    zero, one = (0,) * len(lead), (1,) * len(lead)
    flat = p.slice_scatter(flat, src, (*zero, first), (*lead, last), (*one, columns + 1))
    back = tuple(order.index(d) for d in range(rank))
    return p.permute(p.reshape(flat, (*lead, rows, columns)), back)


@decomposition(aten.slice_scatter.default)
def slice_scatter(
    p: Lowering,
    x: Node,
    src: Node,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Node:
    dim %= rank_of(x)
    shape = shape_of(x)
    start, end = bounds(shape[dim], start, end)
    return put(p, x, src, dim, start, end, step)


def put(p: Lowering, x: Node, src: Node, dim: int, start: int, stop: int, step: int = 1) -> Node:
    """Returns x after `x[..., start:stop:step, ...] = src` along dim; src is converted and broadcast."""
    shape = shape_of(x)
    starts = tuple(start if d == dim else 0 for d in range(len(shape)))
    stops = tuple(stop if d == dim else n for d, n in enumerate(shape))
    steps = tuple(step if d == dim else 1 for d in range(len(shape)))
    sizes = tuple((b - a + s - 1) // s for a, b, s in zip(starts, stops, steps, strict=True))
    src = p.broadcast(p.convert(src, dtype_of(x)), sizes)
    return src if same_all(sizes, shape) else p.slice_scatter(x, src, starts, stops, steps)


@decomposition(aten.select_scatter.default)
def select_scatter(p: Lowering, x: Node, src: Node, dim: int, index: int) -> Node:
    dim %= rank_of(x)
    index %= shape_of(x)[dim]
    return put(p, x, p.keep(src, (dim,)), dim, index, index + 1)


@decomposition(aten.rot90.default)
def rot90(p: Lowering, x: Node, k: int = 1, dims: Sequence[int] = (0, 1)) -> Node:
    a, b = (d % rank_of(x) for d in dims)
    match k % 4:
        case 0:
            return x
        case 2:
            return p.flip(x, tuple(sorted((a, b))))
        case turns:
            transposed = transpose(p, x, a, b)
            return p.flip(transposed, (a if turns == 1 else b,))


def _view_base(node: Node) -> Node:
    """Returns the node at the start of a chain of ATen views, whose memory they share."""
    while isinstance(node.target, OpOverload) and op_info(node.target).kind is Kind.VIEW:
        node = node.all_input_nodes[0]
    return node


@decomposition(aten.as_strided.default, aten.as_strided_copy.default)
def as_strided(p: Lowering, x: Node, sizes: Sequence[int], strides: Sequence[int], offset: int | None = None) -> Any:
    """Returns the operand flattened in memory order, read at the offsets that the sizes and strides describe.

    The result is NotImplemented for inputs and views of them: they may share a larger storage, which only the ATen
    operator can read.

    Raises:
        CompileError: the operand does not contain all elements of its storage.
    """
    assert p.node is not None
    source: Node = p.node.all_input_nodes[0]
    meta, count = source.meta["val"], math.prod(shape_of(x))
    if _view_base(source).op == "placeholder" or is_empty(sizes):
        return NotImplemented
    if not is_dense(meta.shape, meta.stride) or _view_base(source).meta["val"].numel != count:
        raise CompileError("as_strided of a tensor that shows only part of its memory", at=p.node.name)
    order = sorted(range(len(meta.shape)), key=lambda d: (-hint(meta.stride[d]), d))
    flat = p.reshape(p.permute(x, tuple(order)), (count,))
    if same_all(strides, contiguous_stride(tuple(sizes))):
        start = offset or 0
        return p.reshape(cut(p, flat, 0, start, start + math.prod(sizes)), tuple(sizes))
    offsets = p.full(tuple(sizes), offset or 0, torch.int64, p.out.device)
    for d, (size, step) in enumerate(zip(sizes, strides, strict=True)):
        line = p.iota(size, 0, step, torch.int64, p.out.device)
        offsets = p.add(offsets, p.broadcast_in_dim(line, tuple(sizes), (d,)))
    return p.index(flat, (offsets,))
