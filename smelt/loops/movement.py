"""Lowerings of prims that only move elements: views are index remaps, cat and pad are masked loads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from smelt.graph.ir.meta import TensorMeta, contiguous_stride
from smelt.loops.ir import Condition, Extern, Index, Ops, Pointwise, Ref, Scatter, Value
from smelt.loops.registry import Operand, lowering, pointwise, view
from smelt.shapes.expr import ZERO, reshape_index
from smelt.shapes.size import IntLike, same, same_all


@lowering("reshape")
def reshape(name: str, meta: TensorMeta, x: Operand, shape: Any) -> Pointwise:
    old, new = x.shape, meta.shape
    if same(meta.numel, 0):
        return view(name, meta, x, lambda index: (ZERO,) * len(old), "reshape")
    return view(name, meta, x, lambda index: reshape_index(index, new, old), "reshape")


@lowering("permute")
def permute(name: str, meta: TensorMeta, x: Operand, dims: Sequence[int]) -> Pointwise:
    inverse = sorted(range(len(dims)), key=dims.__getitem__)
    return view(name, meta, x, lambda index: tuple(index[d] for d in inverse), "permute")


@lowering("broadcast_in_dim")
def broadcast_in_dim(name: str, meta: TensorMeta, x: Operand, shape: Any, dims: Sequence[int]) -> Pointwise:
    sizes = x.shape
    return view(
        name,
        meta,
        x,
        lambda index: tuple(ZERO if same(n, 1) else index[d] for n, d in zip(sizes, dims, strict=True)),
        "broadcast_in_dim",
    )


@lowering("slice")
def slice_(name: str, meta: TensorMeta, x: Operand, starts: Any, stops: Any, steps: Any) -> Pointwise:
    return view(
        name,
        meta,
        x,
        lambda index: tuple(i * s + a for i, s, a in zip(index, steps, starts, strict=True)),
        "slice",
    )


@lowering("flip")
def flip(name: str, meta: TensorMeta, x: Operand, dims: Sequence[int]) -> Pointwise:
    sizes = meta.shape
    return view(
        name,
        meta,
        x,
        lambda index: tuple(sizes[d] - 1 - i if d in dims else i for d, i in enumerate(index)),
        "flip",
    )


@lowering("pad")
def pad(name: str, meta: TensorMeta, x: Operand, low: Sequence[int], high: Any, value: Any) -> Pointwise:
    sizes = x.shape

    def body(ops: Ops, index: Index) -> Value:
        moved = tuple(i - a for i, a in zip(index, low, strict=True))
        inside = [Condition(i, 0, n) for i, n in zip(moved, sizes, strict=True)]
        return ops.masked(inside, lambda: ops.load(x.name, moved), ops.constant(value, meta.dtype))

    return pointwise(name, meta, [x], body, "pad")


MAX_LOOP_OPERANDS = 64
"""Maximum number of operands of a concatenation, or of consecutive slice writes, that one loop computes: each element
searches all of them.
"""


@lowering("cat")
def cat(name: str, meta: TensorMeta, tensors: Sequence[Operand], dim: int) -> Pointwise | Extern:
    nonempty = [x for x in tensors if not same(x.shape[dim], 0)]
    in_rows = all(same_all(x.meta.stride, contiguous_stride(x.meta.shape)) for x in nonempty)
    if len(nonempty) > MAX_LOOP_OPERANDS and (
        in_rows or len(meta.shape) < 4
        # the library would return the concatenation of channels-last images as channels-last, independent of `meta`
    ):
        inputs = tuple(dict.fromkeys(x.name for x in nonempty))
        return Extern(name, meta, inputs, torch.ops.aten.cat.default, ([Ref(x.name) for x in nonempty], dim))
    segments: list[tuple[Operand, IntLike, IntLike]] = []
    end: IntLike = 0
    for x in nonempty:
        begin, end = end, end + x.shape[dim]
        segments.append((x, begin, end))

    def body(ops: Ops, index: Index) -> Value:
        result = None
        for x, begin, _ in reversed(segments):
            moved = (*index[:dim], index[dim] - begin, *index[dim + 1 :])
            below = [Condition(index[dim], begin, begin + x.shape[dim])]
            other = ops.constant(0, meta.dtype) if result is None else result
            result = ops.masked(below, partial(ops.load, x.name, moved), other)
        return ops.constant(0, meta.dtype) if result is None else result

    return pointwise(name, meta, [x for x, _, _ in segments], body, "cat")


@lowering("slice_scatter")
def slice_scatter(
    name: str, meta: TensorMeta, x: Operand, src: Operand, starts: Any, stops: Any, steps: Any
) -> Pointwise:
    sizes = x.shape

    def body(ops: Ops, index: Index) -> Value:
        inside = [
            Condition(i, a, b, s)
            for i, a, b, s, n in zip(index, starts, stops, steps, sizes, strict=True)
            if not (same(a, 0) and same(b, n) and same(s, 1))
        ]
        moved = tuple((i - a) // s for i, a, s in zip(index, starts, steps, strict=True))
        return ops.masked(inside, lambda: ops.load(src.name, moved), ops.load(x.name, index))

    return pointwise(name, meta, [x, src], body, "slice_scatter")


def write_slice(
    name: str, meta: TensorMeta, x: Operand, src: Operand, starts: Any, stops: Any, steps: Any
) -> Pointwise | Scatter:
    """Returns a slice_scatter as a write to the memory of x if possible: with many writes, a loop would search all
    slices.
    """
    if same(src.meta.numel, 0):
        return view(name, meta, x, lambda index: index, "slice_scatter")

    def target(ops: Ops, index: Index) -> Index:
        return tuple(i * s + a for i, a, s in zip(index, starts, steps, strict=True))

    return Scatter(
        name,
        meta,
        tuple(dict.fromkeys((x.name, src.name))),
        lambda ops, index: ops.load(x.name, index),
        src.shape,
        lambda ops, index: ops.load(src.name, index),
        target,
        accumulate=False,
        parallel=tuple(range(len(src.shape))),
    )
