"""Rewrites of ATen calls to canonical functional form: no copies, one operator that fills, writes as plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import fx

from smelt.base.torch_private import OpOverload
from smelt.graph.ir.meta import TensorMeta
from smelt.graph.ir.storage_view import StorageView
from smelt.graph.trace.deterministic import fill_of_new_memory
from smelt.shapes.size import known_at_most, same, same_all

aten = torch.ops.aten


class Values(Protocol):
    """The recorder's methods that these rules use."""

    def value(self, view: StorageView) -> fx.Node:
        """Returns the current value of a view."""

    def emit(self, op: OpOverload, *args: Any, **kwargs: Any) -> fx.Node:
        """Append an operator."""

    def like(self, node: fx.Node, view: StorageView) -> fx.Node:
        """Returns `node` with the dtype, device and shape of `view`."""


def identity(op: OpOverload, args: Sequence[Any]) -> fx.Node | None:
    """Returns the argument itself if `op` would return an equal value, else None."""
    node = args[0] if args else None
    if type(node) is not fx.Node:
        return None
    val = node.meta["val"]
    if op is aten.view.default or op is aten.expand.default:
        return node if same_all(args[1], val.shape) else None
    if op is aten.permute.default:
        return node if list(args[1]) == list(range(val.ndim)) else None
    if op is aten.slice.Tensor:
        _, dim, start, end, step = args
        whole = same(start, 0) and same(step, 1) and known_at_most(val.shape[dim], end)
        return node if whole else None
    return None


def _same(rec: Values, args: Sequence[Any], kwargs: Mapping[str, Any], val: TensorMeta) -> fx.Node:
    return rec.value(args[0].storage_view)


def _cast(rec: Values, args: Sequence[Any], kwargs: Mapping[str, Any], val: TensorMeta) -> fx.Node:
    node = rec.value(args[0].storage_view)
    have = node.meta["val"]
    if have.device != val.device:
        return rec.emit(aten._to_copy.default, node, dtype=val.dtype, device=val.device)
    if have.dtype != val.dtype:
        return rec.emit(aten._to_copy.default, node, dtype=val.dtype)
    return node


def full(rec: Values, val: TensorMeta, value: Any) -> fx.Node:
    return rec.emit(aten.full.default, list(val.shape), value, dtype=val.dtype, device=val.device)


def _filled(position: int) -> Callable[..., fx.Node]:
    """Returns the rule of a creation operator whose value is the argument at `position`."""

    def rule(rec: Values, args: Sequence[Any], kwargs: Mapping[str, Any], val: TensorMeta) -> fx.Node:
        return full(rec, val, args[position])

    return rule


def _constant_fill(value: int) -> Callable[..., fx.Node]:
    """Returns the rule of a creation operator that always fills with `value`."""

    def rule(rec: Values, args: Sequence[Any], kwargs: Mapping[str, Any], val: TensorMeta) -> fx.Node:
        return full(rec, val, value)

    return rule


def _new_memory(rec: Values, args: Sequence[Any], kwargs: Mapping[str, Any], val: TensorMeta) -> fx.Node:
    return full(rec, val, fill_of_new_memory(val.dtype))


def _reshape(rec: Values, args: Sequence[Any], kwargs: Mapping[str, Any], val: TensorMeta) -> fx.Node:
    return rec.emit(aten.view.default, rec.value(args[0].storage_view), list(val.shape))


def _copy(rec: Values, args: Sequence[Any], kwargs: Mapping[str, Any], val: TensorMeta) -> fx.Node:
    return rec.like(rec.value(args[1].storage_view), args[0].storage_view)


PURE: dict[OpOverload, Callable[[Values, Sequence[Any], Mapping[str, Any], TensorMeta], fx.Node]] = {
    aten.clone.default: _same,
    aten._to_copy.default: _cast,
    aten._unsafe_view.default: _reshape,
    aten.copy.default: _copy,
    aten.full.default: _filled(1),
    aten.full_like.default: _filled(1),
    aten.new_full.default: _filled(2),
    aten.scalar_tensor.default: _filled(0),
    **{op: _constant_fill(1) for op in (aten.ones.default, aten.ones_like.default, aten.new_ones.default)},
    **{
        op: _constant_fill(0)
        for op in (
            aten.zeros.default,
            aten._efficientzerotensor.default,
            aten.zeros_like.default,
            aten.new_zeros.default,
        )
    },
    **{
        op: _new_memory
        for op in (
            aten.empty.memory_format,
            aten.empty_like.default,
            aten.empty_strided.default,
            aten.new_empty.default,
            aten.new_empty_strided.default,
            aten.empty_permuted.default,
        )
    },
}
"""Rules of pure operators that are recorded in a simpler form."""


def _write_copy(rec: Values, args: Sequence[Any], kwargs: Mapping[str, Any]) -> fx.Node:
    return rec.value(args[1].storage_view)


def _write_scalar(rec: Values, args: Sequence[Any], kwargs: Mapping[str, Any]) -> fx.Node:
    return full(rec, args[0].storage_view.layout.val, args[1])


def _write_zero(rec: Values, args: Sequence[Any], kwargs: Mapping[str, Any]) -> fx.Node:
    return full(rec, args[0].storage_view.layout.val, 0)


WRITES: dict[OpOverload, Callable[[Values, Sequence[Any], Mapping[str, Any]], fx.Node]] = {
    aten.copy_.default: _write_copy,
    aten.fill_.Tensor: _write_copy,
    aten.fill_.Scalar: _write_scalar,
    aten.zero_.default: _write_zero,
}
"""Rules of writes whose new value does not depend on the old value."""
