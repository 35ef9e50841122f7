"""Conversions of dtype and device, copies, and operators that return their operand's values unchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from smelt.graph.ir.meta import same_steps
from smelt.prims.ops import PRIMS
from smelt.prims.registry import Lowering, aten, decomposition, device_of


@decomposition(aten._to_copy.default)
def to_copy(p: Lowering, x: Node, **options: Any) -> Any:
    if p.out.device == device_of(x):
        return p.convert(x, p.out.dtype)
    if device_of(x).type == "cpu":  # the GPU converts, in both directions
        return p.convert(p.to_device(x, p.out.device), p.out.dtype)
    return p.to_device(p.convert(x, p.out.dtype), p.out.device)


def _identity(p: Lowering, x: Node, *args: Any, **kwargs: Any) -> Node:
    """x itself: in a functional graph a copy or an alias of a value is the value."""
    return x


@decomposition(aten.clone.default)
def clone(p: Lowering, x: Node, *, memory_format: torch.memory_format | None = None) -> Node:
    """x itself, or a copy where a requested memory format changes the strides."""
    own = x.meta["val"]
    if memory_format is None or same_steps(own.shape, own.stride, p.out.stride):
        return x
    return p.call(PRIMS["clone"], (x,), {}, replace(own, stride=p.out.stride))


decomposition(
    aten.alias.default,
    aten.alias_copy.default,
    aten.detach.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
    aten.contiguous.default,
    aten.positive.default,
    aten.lift.default,
)(_identity)


@decomposition(aten._autocast_to_reduced_precision.default, aten._autocast_to_full_precision.default)
def autocast_to(p: Lowering, x: Node, *options: Any) -> Node:
    return p.convert(x, p.out.dtype)


@decomposition(aten.copy.default)
def copy(p: Lowering, x: Node, source: Node, non_blocking: bool = False) -> Any:
    if device_of(source) != device_of(x):
        return NotImplemented
    return p.broadcast(p.convert(source, p.out.dtype), p.out.shape)


@decomposition(aten.conj.default, aten.resolve_conj.default, aten.resolve_neg.default)
def conj(p: Lowering, x: Node) -> Node:
    """Real numbers are their own conjugates."""
    return x


@decomposition(aten.scalar_tensor.default)
def scalar_tensor(p: Lowering, value: Any, **options: Any) -> Node:
    return p.full((), value, p.out.dtype, p.out.device)
