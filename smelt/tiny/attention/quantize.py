"""Rules that convert attention, layer norm and functions of one value to records of an int8 graph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import numpy as np
import torch
from torch import fx

from smelt.tiny.captured.views import View, heads, rows
from smelt.tiny.graph import HIGH, LOW, Attention, LayerNorm, Lookup, Parameter
from smelt.tiny.graph_builder import GraphBuilder, arguments, operator_name, rule

aten = torch.ops.aten
TABLES = (
    *(aten.gelu.default, aten.silu.default, aten.sigmoid.default, aten.tanh.default, aten.hardswish.default),
    *(aten.hardsigmoid.default, aten.leaky_relu.default, aten.elu.default),
)
"""Functions of one value, which become tables of 256 results."""


@dataclass(frozen=True)
class Scores:
    """Products of queries and keys, an intermediate result that becomes part of an attention operator.

    Attributes:
        q, k: views of shape (batch * heads, positions, width).
        heads: the number of heads of one example.
        factor: the factor of the products.
        weights: whether the softmax has been applied.
    """

    what: ClassVar[str] = "products of attention"
    q: View
    k: View
    heads: int
    factor: float = 1.0
    weights: bool = False

    def through(self, before: tuple[int, ...], after: tuple[int, ...]) -> Scores | None:
        """Unchanged, if only the axes of examples and heads are reshaped."""
        return self if prod(before) == prod(after) and before[-2:] == after[-2:] else None


@rule(aten.div.Tensor)
def scale_by_number(builder: GraphBuilder, node: fx.Node) -> None:
    """Multiply or divide queries, keys or their products by a number, as a part of attention."""
    a, b = arguments(node)[:2]
    a, b = (b, a) if isinstance(b, fx.Node) and not builder.is_parameter(b) else (a, b)
    number = builder.value(b)
    if isinstance(number, torch.Tensor):
        number = number.item() if number.numel() == 1 else 0.0
    if not isinstance(number, (int, float)) or not 0 < number < float("inf"):
        raise builder.lacks(node, f"the target lacks {operator_name(node)} by anything but a number above 0")
    number = float(number) if node.target is aten.mul.Tensor else 1.0 / number
    scores = _scores(builder, a)
    if scores is not None and not scores.weights:
        builder.partial[node] = replace(scores, factor=scores.factor * number)
        return
    view = builder.source(a, node, scaled=True)
    builder.views[node] = View(view.name, view.index, view.factor * number)


@rule(*TABLES)
def lookup(builder: GraphBuilder, node: fx.Node) -> None:
    view = builder.full_tensor(arguments(node)[0], node)
    x = builder.tensors[view.name]
    y = builder.tensor(node, x.shape)
    builder.views[node] = View(y, view.index)
    steps = ((torch.arange(-128, 128).double() - x.zero) * x.scale).requires_grad_()
    made = node.target(steps, *arguments(node)[1:], **node.kwargs)  # type: ignore[operator]
    (slopes,) = torch.autograd.grad(made.sum(), steps)
    to, least = builder.tensors[y], LOW - builder.tensors[y].zero
    scaled = made.detach() / to.scale
    inside = (scaled >= least) & (scaled <= HIGH - to.zero)
    table = (scaled.round() + to.zero).clamp(LOW, HIGH).to(torch.int8).numpy()
    of_steps = torch.where(inside, slopes * (x.scale / to.scale), 0.0).float().numpy()
    kept = (Parameter(f"{node.name}.table", table), Parameter(f"{node.name}.slopes", of_steps))
    builder.operators.append(Lookup(node.name, view.name, y, *kept))


@rule(aten.native_layer_norm.default)
def layer_norm(builder: GraphBuilder, node: fx.Node) -> None:
    x_node, shape, gain, shift, epsilon = arguments(node)
    view, channels = builder.full_tensor(x_node, node), prod(shape)
    found = rows(view.index.reshape(-1, channels))
    if len(shape) != 1 or found is None or not torch.equal(found[1], torch.arange(channels)):
        raise builder.lacks(node, "the target lacks layer norms but those over the channels of each position")
    end = builder.only_first(node)
    x = builder.positions(view, channels)
    name = builder.path(*(one for one in (gain, shift) if one is not None), node)
    y = builder.tensor(end, builder.tensors[x].shape)
    builder.views[end] = View(y, view.index)
    pair = [
        np.full(channels, default, np.float32) if one is None else builder.value(one).float().numpy().copy()
        for one, default in ((gain, 1.0), (shift, 0.0))
    ]
    kept = [Parameter(f"{name}.{kind}", one) for kind, one in zip(("gain", "shift"), pair, strict=True)]
    builder.operators.append(LayerNorm(name, x, y, kept[0], kept[1], float(epsilon)))


@rule(aten._scaled_dot_product_flash_attention_for_cpu.default)
def fused_attention(builder: GraphBuilder, node: fx.Node) -> None:
    q, k, v = (builder.source(one, node, scaled=True) for one in arguments(node)[:3])
    if any(arguments(node)[3:5]) or node.kwargs.get("attn_mask") is not None:
        raise builder.lacks(node, "the target lacks attention with a mask or with dropout")
    scale: Any = node.kwargs.get("scale")
    factor: float = q.index.shape[-1] ** -0.5 if scale is None else scale
    q, k, v = (View(one.name, one.index.flatten(0, 1), one.factor) for one in (q, k, v))
    count = len(q.index) // builder.batch
    _attention(builder, node, builder.only_first(node), Scores(q, k, count, factor, True), v)


@rule(aten.bmm.default)
def products(builder: GraphBuilder, node: fx.Node) -> None:
    """The product of queries and keys, or of attention weights and values."""
    a, b = arguments(node)
    scores = _scores(builder, a)
    if scores is not None and scores.weights:
        _attention(builder, node, node, scores, builder.source(b, node, scaled=True))
        return
    q, k = (builder.source(one, node, scaled=True) for one in (a, b))
    count = len(q.index) // builder.batch
    builder.partial[node] = Scores(q, View(k.name, k.index.transpose(1, 2), k.factor), count)


@rule(aten._softmax.default)
def softmax(builder: GraphBuilder, node: fx.Node) -> None:
    x, axis, _ = arguments(node)
    scores = _scores(builder, x)
    if scores is None or axis % x.meta["val"].ndim != x.meta["val"].ndim - 1:
        raise builder.lacks(node, "the target lacks softmax but that of attention, over its keys")
    builder.partial[node] = replace(scores, weights=True)


def _attention(builder: GraphBuilder, node: fx.Node, end: fx.Node, scores: Scores, v: View) -> None:
    operands, found = (scores.q, scores.k, v), []
    names = [builder.positions(one, builder.tensors[one.name].channels) for one in operands]
    for name, one in zip(names, operands, strict=True):
        x = builder.tensors[name]
        where = heads(one, x.elements, x.channels, scores.heads)
        if where is None:
            raise builder.lacks(node, "the target lacks attention whose heads are not channels behind each other")
        found.append(where)
    starts, width = (found[0][0], found[1][0], found[2][0]), found[0][1]
    wide, shape = found[2][1], builder.tensors[names[0]].shape
    channels = scores.heads * wide
    index = torch.arange(builder.batch * shape[0] * shape[1] * channels)
    index = index.reshape(builder.batch, -1, scores.heads, wide).transpose(1, 2)
    y = builder.tensor(end, (*shape[:2], channels))
    builder.views[end] = View(y, index.reshape(end.meta["val"].shape), v.factor)
    factor = scores.factor * scores.q.factor * scores.k.factor
    q, k, v_name = names
    builder.operators.append(Attention(end.name, q, k, v_name, y, starts, scores.heads, width, factor))


def _scores(builder: GraphBuilder, node: Any) -> Scores | None:
    """The products of queries and keys that a node is; None if it is something else."""
    found = builder.partial.get(node)
    return found if isinstance(found, Scores) else None
