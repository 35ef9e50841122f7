"""Lowerings of pointwise, creation and random prims."""

from __future__ import annotations

from typing import Any

import torch

from smelt.graph.ir.meta import TensorMeta, contiguous_stride
from smelt.loops.ir import REFUSE, Index, Ops, Pointwise, Value
from smelt.loops.registry import LOWERINGS, Operand, lowering, pointwise, view
from smelt.prims.ops import PRIMS
from smelt.prims.table import Kind
from smelt.shapes.expr import flat_index
from smelt.shapes.size import IntLike, Size


def _plain(op: str) -> Any:
    def lower(name: str, meta: TensorMeta, *args: Any) -> Pointwise:
        dtype = next(x.meta.dtype for x in args if isinstance(x, Operand))

        def body(ops: Ops, index: Index) -> Value:
            values = [ops.load(x.name, index) if isinstance(x, Operand) else ops.constant(x, dtype) for x in args]
            return ops.apply(op, dtype, *values)

        return pointwise(name, meta, [x for x in args if isinstance(x, Operand)], body, op)

    return lower


@lowering("where")
def where(name: str, meta: TensorMeta, condition: Operand, a: Any, b: Any) -> Pointwise:
    dtype = meta.dtype

    def body(ops: Ops, index: Index) -> Value:
        test = ops.load(condition.name, index)
        values = [ops.load(x.name, index) if isinstance(x, Operand) else ops.constant(x, dtype) for x in (a, b)]
        return ops.apply("where", dtype, test, *values)

    return pointwise(name, meta, [condition, *(x for x in (a, b) if isinstance(x, Operand))], body, "where")


@lowering("convert")
def convert(name: str, meta: TensorMeta, x: Operand, dtype: torch.dtype) -> Pointwise:
    source = x.meta.dtype
    if source is dtype:
        return view(name, meta, x, lambda index: index, "convert")
    return pointwise(name, meta, [x], lambda ops, index: ops.convert(ops.load(x.name, index), source, dtype), "convert")


@lowering("refuse")
def refuse(name: str, meta: TensorMeta, x: Operand, wrong: Operand, fault: int) -> Pointwise:
    op = f"{REFUSE}{fault}"

    def body(ops: Ops, index: Index) -> Value:
        return ops.apply(op, meta.dtype, ops.load(x.name, index), ops.load(wrong.name, index))

    return pointwise(name, meta, [x, wrong], body, op)


@lowering("clone")
def clone(name: str, meta: TensorMeta, x: Operand) -> Pointwise:
    return view(name, meta, x, lambda index: index, "clone")


@lowering("full")
def full(name: str, meta: TensorMeta, shape: Any, value: Any, dtype: torch.dtype, device: Any) -> Pointwise:
    return pointwise(name, meta, [], lambda ops, index: ops.constant(value, meta.dtype), "full")


def _whole(value: Any) -> IntLike:
    return value if isinstance(value, Size) else int(value)


@lowering("iota")
def iota(name: str, meta: TensorMeta, length: int, start: Any, step: Any, dtype: torch.dtype, device: Any) -> Pointwise:
    wide = torch.float64 if dtype.is_floating_point else torch.int64

    def body(ops: Ops, index: Index) -> Value:
        if wide is torch.int64:
            return ops.convert(ops.integer(index[0] * _whole(step) + _whole(start), wide), wide, dtype)
        position = ops.convert(ops.integer(index[0], torch.int64), torch.int64, wide)
        scaled = ops.apply("mul", wide, position, ops.constant(step, wide))
        return ops.convert(ops.apply("add", wide, scaled, ops.constant(start, wide)), wide, dtype)

    return pointwise(name, meta, [], body, "iota")


@lowering("random")
def random(name: str, meta: TensorMeta, seed: Operand, stream: int, shape: Any) -> Pointwise:
    strides = contiguous_stride(meta.shape)
    count = meta.numel

    def body(ops: Ops, index: Index) -> Value:
        return ops.random(ops.load(seed.name, ()), stream, flat_index(index, strides), count)

    return pointwise(name, meta, [seed], body, "random")


PLAIN = [name for name, prim in PRIMS.items() if prim.kind is Kind.POINTWISE and name not in LOWERINGS]
"""Names of the prims that a handler applies elementwise under their own name: pointwise prims without a lowering in
this module.
"""

LOWERINGS.update({name: _plain(name) for name in PLAIN})
