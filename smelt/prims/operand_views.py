"""Operands of a user's library as views of memory like eager's: kernels may read a tensor's storage offset."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from smelt.abi.fake_kernels import OF_TORCH
from smelt.base.torch_private import OpOverload
from smelt.graph.ir.aliasing import shared_arguments
from smelt.graph.ir.meta import OpaqueMeta, TensorMeta, is_dense
from smelt.graph.ir.schema import COLLECTIVES, Kind, depends_on_strides, op_info
from smelt.graph.ir.storage_view import Layout, StorageView, layout_for
from smelt.graph.trace.trace import TraceTensor, propagate
from smelt.prims.registry import Lowering
from smelt.prims.table import PRIMS

aten = torch.ops.aten


_NOT_OF_A_USER = OF_TORCH | {*COLLECTIVES}
"""Namespaces of operators that do not read storage offsets."""


def with_recorded_strides(p: Lowering, node: Node, args: tuple[Any, ...], values: dict[Node, Any]) -> tuple[Any, ...]:
    """The operands of a node; those of an operator of a user's library, or of its form on copies, as eager has them."""
    target = node.target
    if not isinstance(target, OpOverload) or target.namespace in _NOT_OF_A_USER:
        return args
    if not depends_on_strides(target) or shared_arguments(target):
        return args
    return tuple(_with_strides_of(p, *each, values) for each in zip(node.args, args, strict=True))


def _with_strides_of(p: Lowering, told: Any, own: Any, values: dict[Node, Any]) -> Any:
    """An operand of an operator of a user's library with eager's storage offset and gaps.

    Where it is a view of what the graph makes: such memory is made, by the library, and the view is taken of it.
    """
    if isinstance(told, (list, tuple)):
        return tuple(_with_strides_of(p, *each, values) for each in zip(told, own, strict=True))
    found = _base_and_offset(told) if isinstance(told, Node) and is_strided(told.meta["val"]) else None
    if found is None:
        return own
    base, offset = found
    if not isinstance(values[base], Node):
        return own
    meta, val = base.meta["val"], told.meta["val"]
    memory = p.memories.get(base)
    if memory is None:
        value = p.call(PRIMS["clone"], (values[base],), {}, replace(values[base].meta["val"], stride=meta.stride))
        memory = p.memories[base] = p.call(aten.clone.default, (value,), {}, value.meta["val"])
    shown = replace(values[base].meta["val"], shape=val.shape, stride=val.stride)
    return p.call(aten.as_strided.default, (memory, val.shape, val.stride, offset), {}, shown)


def _base_and_offset(view: Node) -> tuple[Node, int] | None:
    """The value of the joint graph whose memory a view shows, and the element that it begins at; None: it shows all."""
    path = [view]
    while _is_view(path[-1]):
        path.append(path[-1].all_input_nodes[0])
    base = path.pop()
    meta, val = base.meta["val"], view.meta["val"]
    if not path or base.op != "call_function" or meta.symbolic or val.symbolic or meta.dtype is not val.dtype:
        return None
    if 0 in val.shape or not is_dense(meta.shape, meta.stride):
        return None
    layout = _taken(meta, path)
    if layout is None or layout.val.stride != val.stride:
        return None
    return (base, layout.offset) if layout.offset or not is_dense(val.shape, val.stride) else None


def _taken(meta: TensorMeta, path: Sequence[Node]) -> Layout | None:
    """Where a view of such memory lies; `path`: its steps, the last one first."""
    made: Any = TraceTensor(StorageView(layout_for(meta.shape, meta.dtype, meta.stride, meta.device)))
    try:
        for step in reversed(path):
            if step.target is operator.getitem:
                made = made[step.args[1]]
            else:
                made = propagate(step.target, (made, *step.args[1:]), step.kwargs, None)  # type: ignore[arg-type]
    except RuntimeError:  # a view of what was a copy in the program
        return None
    layout: Layout = made.storage_view.layout
    return layout


def _is_view(node: Node) -> bool:
    """Whether it shows the memory of its operand, or is one of several that do."""
    if node.target is operator.getitem:
        return _is_view(node.all_input_nodes[0])
    return isinstance(node.target, OpOverload) and op_info(node.target).kind is Kind.VIEW


def is_strided(meta: Any) -> bool:
    """Whether it is of a tensor that strides describe."""
    return isinstance(meta, TensorMeta) and not isinstance(meta, OpaqueMeta)
