"""Primitives that only move elements. Values are logical: the result of a view primitive never aliases its operand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from smelt.graph.ir.meta import TensorMeta
from smelt.prims.table import Facts, Kind, Number, Shape, make, pointwise_like, prim, require
from smelt.shapes.size import exact_quotient, hint, known_equal, same


def _view(x: TensorMeta, shape: Shape, stride: Shape) -> TensorMeta:
    return TensorMeta(shape, x.dtype, stride, x.device)


def reshaped_stride(shape: Shape, stride: Shape, new: Shape) -> Shape | None:
    """Returns the strides of a reshape that needs no copy, or None. Old dimensions are merged into contiguous runs, and
    these are split into the new dimensions.
    """
    runs: list[tuple[int, int]] = []  # (number of elements, innermost stride), outermost run first
    for size, step in zip(shape, stride, strict=True):
        if same(size, 1):
            continue
        if runs and known_equal(runs[-1][1], step * size):
            runs[-1] = (runs[-1][0] * size, step)
        else:
            runs.append((size, step))
    result: list[int] = []
    left, step = (1, 1) if not runs else runs.pop()
    for size in reversed(new):
        if same(size, 1):
            result.append(step * left if not result else result[-1])
            continue
        if known_equal(left, 1) and runs:
            left, step = runs.pop()
        rest = exact_quotient(left, size)
        if rest is None:
            return None
        result.append(step)
        left, step = rest, step * size  # type: ignore[assignment]
    return tuple(reversed(result))


@prim(
    "reshape", kind=Kind.VIEW, reference=lambda x, shape: x.reshape(shape), facts=Facts(moves=True, annihilated_by=(0,))
)
def reshape(x: TensorMeta, shape: Shape) -> TensorMeta:
    """The elements of x, in row-major order, in another shape of the same number of elements (no size is -1)."""
    require(math.prod(x.shape) == math.prod(shape), f"prim reshape: {x.shape} to {shape}")
    stride = None if any(same(n, 0) for n in shape) else reshaped_stride(x.shape, x.stride, shape)
    return make(shape, x.dtype, x.device) if stride is None else _view(x, shape, stride)


@prim(
    "permute", kind=Kind.VIEW, reference=lambda x, dims: x.permute(dims), facts=Facts(moves=True, annihilated_by=(0,))
)
def permute(x: TensorMeta, dims: Shape) -> TensorMeta:
    """Result dimension i is dimension dims[i] of x."""
    require(sorted(dims) == list(range(len(x.shape))), f"prim permute: {dims} of {x.shape}")
    return _view(x, tuple(x.shape[d] for d in dims), tuple(x.stride[d] for d in dims))


def _broadcast(x: Tensor, shape: Shape, dims: Shape) -> Tensor:
    sizes = [1] * len(shape)
    for d, n in zip(dims, x.shape, strict=True):
        sizes[d] = n
    return x.reshape(sizes).expand(shape)


@prim("broadcast_in_dim", kind=Kind.VIEW, reference=_broadcast, facts=Facts(moves=True, annihilated_by=(0,)))
def broadcast_in_dim(x: TensorMeta, shape: Shape, dims: Shape) -> TensorMeta:
    """Dimension i of x becomes dimension dims[i] of shape (dims are increasing). Dimensions of size 1, and those that x
    does not have, are repeated."""
    require(len(dims) == len(x.shape), f"prim broadcast_in_dim: {len(dims)} dims for {x.shape}")
    stride = [0] * len(shape)
    for i, d in enumerate(dims):
        kept = same(x.shape[i], shape[d]) or (not same(x.shape[i], 1) and x.shape[i] == shape[d])
        require(kept or x.shape[i] == 1, f"prim broadcast_in_dim: {x.shape} to {shape} by {dims}")
        stride[d] = x.stride[i] if kept else 0
    return _view(x, shape, tuple(stride))


def _slice(x: Tensor, starts: Shape, stops: Shape, steps: Shape) -> Tensor:
    return x[tuple(slice(a, b, s) for a, b, s in zip(starts, stops, steps, strict=True))]


@prim("slice", kind=Kind.VIEW, reference=_slice, facts=Facts(moves=True, annihilated_by=(0,)))
def slice_(x: TensorMeta, starts: Shape, stops: Shape, steps: Shape) -> TensorMeta:
    """x[a:b:s] per dimension, 0 <= a <= b <= size, s >= 1."""
    require(len(starts) == len(stops) == len(steps) == len(x.shape), f"prim slice: {starts} of {x.shape}")
    for a, b, s, n in zip(starts, stops, steps, x.shape, strict=True):
        require(0 <= hint(a) <= hint(b) <= hint(n) and s >= 1, f"prim slice: {a}:{b}:{s} of size {n}")
    shape = tuple((b - a + s - 1) // s for a, b, s in zip(starts, stops, steps, strict=True))
    return _view(x, shape, tuple(t * s for t, s in zip(x.stride, steps, strict=True)))


@prim("flip", kind=Kind.VIEW, reference=torch.flip, facts=Facts(moves=True, annihilated_by=(0,)))
def flip(x: TensorMeta, dims: Shape) -> TensorMeta:
    """x with the order of the elements along dims reversed."""
    return pointwise_like((x,), x.dtype)


def _pad(x: Tensor, low: Shape, high: Shape, value: Number) -> Tensor:
    amounts = [n for pair in zip(reversed(low), reversed(high), strict=True) for n in pair]
    return torch.constant_pad_nd(x, amounts, value)


@prim("pad", kind=Kind.COPY, reference=_pad, facts=Facts(moves=True, linear_in=(0, 3)))
def pad(x: TensorMeta, low: Shape, high: Shape, value: Number) -> TensorMeta:
    """x with low[d] elements of value before it and high[d] after it along each dimension d (both are non-negative)."""
    require(min(map(hint, (*low, *high)), default=0) >= 0, f"prim pad: negative amount in {low}, {high}")
    shape = tuple(a + n + b for a, n, b in zip(low, x.shape, high, strict=True))
    return make(shape, x.dtype, x.device)


@prim(
    "cat",
    kind=Kind.COPY,
    reference=lambda tensors, dim: torch.cat(list(tensors), dim),
    facts=Facts(moves=True, linear_in=(0,)),
)
def cat(tensors: Sequence[TensorMeta], dim: int) -> TensorMeta:
    """The tensors, concatenated along dim; their dtypes and their other sizes are equal."""
    first = tensors[0]
    for x in tensors:
        fits = x.dtype is first.dtype and len(x.shape) == len(first.shape)
        fits = fits and all(d == dim or a == b for d, (a, b) in enumerate(zip(x.shape, first.shape, strict=True)))
        require(fits, f"prim cat: {first.dtype} {first.shape} with {x.dtype} {x.shape} along {dim}")
    total = sum(x.shape[dim] for x in tensors)
    return make(first.shape[:dim] + (total,) + first.shape[dim + 1 :], first.dtype, first.device)
