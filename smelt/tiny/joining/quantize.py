"""Rules that convert max pooling, products of activations and concatenation to records of an int8 graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from smelt.tiny.attention.quantize import scale_by_number
from smelt.tiny.captured.views import View
from smelt.tiny.graph import Concat, MaxPool, Multiply
from smelt.tiny.graph_builder import GraphBuilder, arguments, operator_name, rule

aten = torch.ops.aten
_POOL_DEFAULTS: tuple[Any, ...] = (None, None, (), 0, 1, False)


@rule(aten.max_pool2d.default)
@rule(aten.max_pool2d_with_indices.default)
def max_pool(builder: GraphBuilder, node: fx.Node) -> None:
    x_node, kernel, stride, padding, dilation, ceil = (*arguments(node), *_POOL_DEFAULTS[len(arguments(node)) :])
    x = builder.images(x_node, node)
    if set(_pair(dilation)) != {1} or ceil:
        raise builder.lacks(node, "the target lacks max pooling with dilation or ceil_mode")
    several = node.target is aten.max_pool2d_with_indices.default
    end = builder.only_first(node) if several else node
    _add_max_pool(builder, end, x, _pair(kernel), _pair(stride) if stride else None, _pair(padding))


@rule(aten.adaptive_max_pool2d.default)
def adaptive_max_pool(builder: GraphBuilder, node: fx.Node) -> None:
    x_node, extents = arguments(node)
    x, end = builder.images(x_node, node), builder.only_first(node)
    extent = builder.tensors[x].shape[:2]
    if any(have % wanted for have, wanted in zip(extent, extents, strict=True)):
        raise builder.lacks(
            node, f"the target lacks max pooling of {extent} to {tuple(extents)}, which do not divide it"
        )
    _add_max_pool(builder, end, x, (extent[0] // extents[0], extent[1] // extents[1]))


def _add_max_pool(
    builder: GraphBuilder,
    node: fx.Node,
    x: str,
    kernel: tuple[int, int],
    stride: tuple[int, int] | None = None,
    padding: tuple[int, int] = (0, 0),
) -> None:
    """Add a max pooling whose result is that of a node; the default stride is the window."""
    shape, index = builder.images_of(node)
    y = builder.tensor(node, shape, like=x)
    builder.views[node] = View(y, index)
    builder.operators.append(MaxPool(node.name, x, y, kernel, stride or kernel, padding))


def _pair(value: Any) -> tuple[int, int]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values[0], values[-1]


@rule(aten.mul.Tensor)
def multiply(builder: GraphBuilder, node: fx.Node) -> None:
    a, b = arguments(node)[:2]
    if builder.is_constant(a) or builder.is_constant(b) or a in builder.partial or b in builder.partial:
        scale_by_number(builder, node)
        return
    one, other = builder.full_tensor(a, node), builder.full_tensor(b, node)
    if one.index.shape != node.meta["val"].shape:
        a, b, one, other = b, a, other, one
    if one.index.shape == other.index.shape:
        if not torch.equal(one.index, other.index):
            raise builder.lacks(node, "the target lacks products of tensors in different orders")
        shape, index = builder.tensors[one.name].shape, one.index
        x, gate = one.name, builder.as_shape(other.name, shape)
    else:
        x, gate = builder.images(a, node), builder.images(b, node)
        shape = builder.tensors[x].shape
        if builder.tensors[gate].shape != (1, 1, shape[2]):
            raise builder.lacks(
                node,
                f"the target lacks {operator_name(node)} of tensors of different shapes but by one number a channel",
            )
        index = one.index
    y, low, high = builder.result(node, shape, index)
    builder.operators.append(Multiply(node.name, x, gate, y, low, high))


@rule(aten.cat.default)
def concat(builder: GraphBuilder, node: fx.Node) -> None:
    nodes, axis = (*arguments(node), 0)[:2]
    xs = tuple(builder.images(one, node) for one in nodes)
    if axis % node.meta["val"].ndim != 1 or len(set(xs)) != len(xs):
        raise builder.lacks(node, f"the target lacks {operator_name(node)} but along channels, each tensor once")
    y, low, high = builder.result(node, *builder.images_of(node))
    builder.operators.append(Concat(node.name, xs, y, low, high))
