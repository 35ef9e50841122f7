"""Gives the operands of operators of a user's library eager's storage offsets, which the kernels may read."""

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
"""Namespaces of operators that do not depend on storage offsets, which are torch's own."""


def with_recorded_strides(p: Lowering, node: Node, args: tuple[Any, ...], values: dict[Node, Any]) -> tuple[Any, ...]:
    """Returns the operands `args` of a node; for an operator of a user's library, with the strides and storage offsets
    that they have in eager.
    """
    target = node.target
    if not isinstance(target, OpOverload) or target.namespace in _NOT_OF_A_USER:
        return args
    if not depends_on_strides(target) or shared_arguments(target):
        return args
    return tuple(_with_strides_of(p, *each, values) for each in zip(node.args, args, strict=True))


def _with_strides_of(p: Lowering, recorded: Any, own: Any, values: dict[Node, Any]) -> Any:
    """Returns an operand (`own`) of an operator of a user's library, with the storage offset and gaps of the joint
    graph's value (`recorded`).

    This applies only to a view of a value that the graph computes: the value is copied to memory with eager's layout,
    and the operand is a view of the copy.
    """
    if isinstance(recorded, (list, tuple)):
        return tuple(_with_strides_of(p, *each, values) for each in zip(recorded, own, strict=True))
    found = _base_and_offset(recorded) if isinstance(recorded, Node) and is_strided(recorded.meta["val"]) else None
    if found is None:
        return own
    base, offset = found
    if not isinstance(values[base], Node):
        return own
    meta, val = base.meta["val"], recorded.meta["val"]
    memory = p.eager_copies.get(base)
    if memory is None:
        value = p.call(PRIMS["clone"], (values[base],), {}, replace(values[base].meta["val"], stride=meta.stride))
        memory = p.eager_copies[base] = p.call(aten.clone.default, (value,), {}, value.meta["val"])
    shown = replace(values[base].meta["val"], shape=val.shape, stride=val.stride)
    return p.call(aten.as_strided.default, (memory, val.shape, val.stride, offset), {}, shown)


def _base_and_offset(view: Node) -> tuple[Node, int] | None:
    """Returns the value of the joint graph of which `view` is a view, and the view's storage offset in elements; None
    if the view covers the whole value, or cannot be expressed as strides over it.
    """
    path = [view]
    while _is_view(path[-1]):
        path.append(path[-1].all_input_nodes[0])
    base = path.pop()
    meta, val = base.meta["val"], view.meta["val"]
    if not path or base.op != "call_function" or meta.symbolic or val.symbolic or meta.dtype is not val.dtype:
        return None
    if 0 in val.shape or not is_dense(meta.shape, meta.stride):
        return None
    layout = _layout_of_view(meta, path)
    if layout is None or layout.val.stride != val.stride:
        return None
    return (base, layout.offset) if layout.offset or not is_dense(val.shape, val.stride) else None


def _layout_of_view(meta: TensorMeta, path: Sequence[Node]) -> Layout | None:
    """Returns the layout of the view that the nodes of `path` (the last step first) take of a tensor with metadata
    `meta`; None if one of them is a copy.
    """
    made: Any = TraceTensor(StorageView(layout_for(meta.shape, meta.dtype, meta.stride, meta.device)))
    try:
        for step in reversed(path):
            if step.target is operator.getitem:
                made = made[step.args[1]]
            else:
                made = propagate(step.target, (made, *step.args[1:]), step.kwargs, None)  # type: ignore[arg-type]
    except RuntimeError:  # a step was a copy in the program, and no view of these strides exists
        return None
    layout: Layout = made.storage_view.layout
    return layout


def _is_view(node: Node) -> bool:
    """Whether the node is a view of its operand, or one item of an operator that returns several views."""
    if node.target is operator.getitem:
        return _is_view(node.all_input_nodes[0])
    return isinstance(node.target, OpOverload) and op_info(node.target).kind is Kind.VIEW


def is_strided(meta: Any) -> bool:
    """Whether this is the metadata of a strided tensor (neither sparse nor quantized)."""
    return isinstance(meta, TensorMeta) and not isinstance(meta, OpaqueMeta)
