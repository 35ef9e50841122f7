"""Converts a PyTorch model to an int8 graph, with ranges measured on calibration images: the rules of its layers.

Weights are int8, symmetric, with a scale for each output channel. Activations are int8, with scale and zero from their
range over the calibration images. Biases are int32. BatchNorm is folded into the convolution before it, and a ReLU or
ReLU6 into the operator before it. The model is captured like other models of smelt, so its module classes do not
matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
import torch
from torch import fx, nn

from smelt.tiny.captured.capture import capture, chain
from smelt.tiny.captured.views import VIEWS, View, rows
from smelt.tiny.graph import (
    HIGH,
    MAX_TAPS,
    Add,
    AddConstant,
    AveragePool,
    Clamp,
    Conv,
    Head,
    Int8Graph,
    Linear,
    Parameter,
    Tensor,
)
from smelt.tiny.graph_builder import BOUNDS, GraphBuilder, arguments, getitem, operator_name, rule, scale_and_zero

aten = torch.ops.aten
NORMS = (aten._native_batch_norm_legit_no_training.default,)
_POOL_DEFAULTS: tuple[Any, ...] = (None, None, (), 0, False, True, None)


def quantize(model: nn.Module, calibration_data: Any, *, name: str | None = None, float_head: bool = True) -> Int8Graph:
    """An int8 graph of a model that consists of convolutions, BatchNorm, linear layers, attention, and the operators
    that usually come with these.

    Args:
        model: takes a batch of images (n, channels, height, width) and returns logits (n, classes).
        calibration_data: float images as the model takes them, or batches of them, such as a loader.
        name: the name of the graph; None: that of the model's class.
        float_head: keep the last linear layer in float32, which is needed for training; else it becomes int8.

    Raises:
        QuantizeError: no calibration data, or an operator that the target lacks: named with the line that calls it.
        Unsupported: the model is not one graph.
    """
    captured = capture(model, calibration_data)
    made = GraphBuilder(captured, model, float_head).graph(name or type(model).__name__)
    made.verify()
    return made


@dataclass(frozen=True)
class Padded:
    """A batch of images between zeros, which becomes part of the convolutions that read it.

    Attributes:
        x: the node of the images.
        start, end: rows and columns of zeros before and after them.
    """

    what: ClassVar[str] = "a padded tensor, which only convolutions take"
    x: fx.Node
    start: tuple[int, int]
    end: tuple[int, int]

    def through(self, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        """No view of it is supported."""


@rule(aten.constant_pad_nd.default)
def pad(builder: GraphBuilder, node: fx.Node) -> None:
    x, sides, value = (*arguments(node), 0)[:3]
    (left, right), (top, bottom), *rest = ((*sides, 0, 0)[i : i + 2] for i in range(0, max(4, len(sides)), 2))
    rest += [(top, bottom)] if node.meta["val"].ndim == 3 else []  # of a sequence: channels
    if value != 0 or any(map(any, rest)) or min(left, right, top, bottom) < 0:
        raise builder.lacks(node, "the target lacks padding but by zeros, of rows and columns")
    inner = builder.partial.get(x)
    start, end = (inner.start, inner.end) if isinstance(inner, Padded) else ((0, 0), (0, 0))
    x = inner.x if isinstance(inner, Padded) else x
    builder.images(x, node)
    builder.partial[node] = Padded(x, (start[0] + top, start[1] + left), (end[0] + bottom, end[1] + right))


@rule(aten.convolution.default)
def convolution(builder: GraphBuilder, node: fx.Node) -> None:
    x_node, weight_node, bias_node, stride, padding, dilation, transposed, _, groups = arguments(node)
    before = after = _pair(padding)
    padded = builder.partial.get(x_node)
    if isinstance(padded, Padded):
        x_node = padded.x
        before, after = ((a + before[0], b + before[1]) for a, b in (padded.start, padded.end))
    x, weight = builder.images(x_node, node), builder.array(weight_node)
    assert weight is not None
    if weight.ndim == 3:  # of sequences: a kernel of one row
        weight, before, after = weight[:, :, None], (0, before[1]), (0, after[1])
    depthwise = groups != 1
    if transposed or set(dilation) != {1} or len(set(stride)) != 1:
        raise builder.lacks(node, "the target lacks convolutions that are transposed, dilated or of unequal strides")
    if depthwise:
        _check_depthwise(builder, node, builder.tensors[x].channels, weight)
    bias = builder.array(bias_node)
    bias = np.zeros(len(weight)) if bias is None else bias
    end, weight, bias = _with_norm(builder, node, weight, bias)
    name = builder.path(weight_node)
    whole = not any((*before, *after)) and weight.shape[2:] == builder.tensors[x].shape[:2]
    if whole and not depthwise and _is_classifier(builder, node):
        features = builder.as_shape(x, (builder.tensors[x].elements,))
        result = View(features, torch.arange(builder.batch * len(weight)).reshape(node.meta["val"].shape))
        _head(builder, node, name, result, weight.transpose(0, 2, 3, 1).reshape(len(weight), -1), bias)
        return
    parameters = builder.weights(node, name, x, weight, bias)
    laid_out = parameters[0].data.transpose(0, 2, 3, 1)
    laid_out = laid_out[..., 0].transpose(1, 2, 0) if depthwise else laid_out
    kernel = Parameter(parameters[0].name, np.ascontiguousarray(laid_out), parameters[0].scales)
    y, low, high = _images_of(builder, end)
    size = (weight.shape[2], weight.shape[3])
    builder.operators.append(
        Conv(name, x, y, kernel, parameters[1], size, stride[0], before, depthwise, low, high, after)
    )


def _check_depthwise(builder: GraphBuilder, node: fx.Node, channels: int, weight: np.ndarray) -> None:
    groups = arguments(node)[8]
    if not (groups == channels == len(weight)):
        raise builder.lacks(node, f"the target lacks convolutions in {groups} groups of {channels} channels")
    if max(weight.shape[2:]) > MAX_TAPS:
        raise builder.lacks(node, f"the target lacks depthwise kernels of more than {MAX_TAPS} rows or columns")


def _images_of(builder: GraphBuilder, node: fx.Node) -> tuple[str, int, int]:
    """Add the tensor of an operator's result that is a batch of images: (its name, low, high)."""
    return builder.result(node, *builder.images_of(node))


def _with_norm(
    builder: GraphBuilder, node: fx.Node, weight: np.ndarray, bias: np.ndarray
) -> tuple[fx.Node, np.ndarray, np.ndarray]:
    """The node of a layer's result, its weight (outputs first) and its bias, all with the BatchNorm that follows it, if
    there is one.
    """
    norm = chain(node, NORMS)
    if norm is None:
        return node, weight, bias
    end = builder.only_first(norm)
    builder.skipped.add(norm)
    return end, *_folded(builder, norm, weight, bias)


def _folded(
    builder: GraphBuilder, norm: fx.Node, weight: np.ndarray, bias: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Weight (outputs first) and bias of a layer with the BatchNorm that follows it."""
    gain, shift, mean, variance = (builder.array(one) for one in arguments(norm)[1:5])
    assert mean is not None and variance is not None
    factor = (1.0 if gain is None else gain) / np.sqrt(variance + arguments(norm)[6])
    scaled = weight * factor.reshape(-1, *[1] * (weight.ndim - 1))
    return scaled, (bias - mean) * factor + (0.0 if shift is None else shift)


@rule(*NORMS)
def norm(builder: GraphBuilder, node: fx.Node) -> None:
    """A BatchNorm that follows no layer is a depthwise convolution of single elements."""
    x, end = builder.images(arguments(node)[0], node), builder.only_first(node)
    channels = builder.tensors[x].channels
    name = builder.path(node, *(given for given in arguments(node)[1:3] if given is not None))
    folded = _folded(builder, node, np.ones((channels, 1)), np.zeros(channels))
    kernel, shift = builder.weights(node, name, x, *folded)
    kernel = Parameter(kernel.name, np.ascontiguousarray(kernel.data.reshape(1, 1, channels)), kernel.scales)
    y, low, high = _images_of(builder, end)
    builder.operators.append(Conv(name, x, y, kernel, shift, (1, 1), 1, (0, 0), True, low, high))


@rule(aten.addmm.default, aten.mm.default)
def linear(builder: GraphBuilder, node: fx.Node) -> None:
    bias_node, x_node, weight_node = arguments(node) if node.target is aten.addmm.default else (None, *arguments(node))
    view, weight, bias = builder.full_tensor(x_node, node), builder.array(weight_node), builder.array(bias_node)
    assert weight is not None
    found = rows(view.index)
    if found is None:
        raise builder.lacks(node, f"{operator_name(node)} of rows whose elements do not lie together")
    begin, order = found
    columns, weight = torch.argsort(order).numpy(), weight.T
    weight = np.ascontiguousarray(weight[:, columns])
    outputs, inputs = weight.shape
    bias = np.zeros(outputs) if bias is None else bias
    name = builder.path(*weight_node.all_input_nodes, weight_node)
    builder.check_finite(node, name, weight, bias)
    index = begin // inputs * outputs + torch.arange(outputs)
    each = len(begin) == builder.batch
    x = builder.as_shape(view.name, (inputs,)) if each else builder.positions(view, inputs)
    if each and _is_classifier(builder, node):
        _head(builder, node, name, View(x, index), weight, bias)
        return
    end, weight, bias = _with_norm(builder, node, weight, bias) if each else (node, weight, bias)
    kernel, shift = builder.weights(node, name, x, weight, bias)
    y, low, high = builder.result(end, (outputs,) if each else (*builder.tensors[x].shape[:2], outputs), index)
    if each:
        builder.operators.append(Linear(name, x, y, kernel, shift, low, high))
        return
    kernel = Parameter(kernel.name, np.ascontiguousarray(kernel.data[:, None, None]), kernel.scales)
    builder.operators.append(Conv(name, x, y, kernel, shift, (1, 1), 1, (0, 0), False, low, high))


def _is_classifier(builder: GraphBuilder, node: fx.Node) -> bool:
    """Whether a layer stays in float32 because its result, or a view of it, is the model's."""
    end: fx.Node | None = node
    while end is not None and end is not builder.last:
        end = chain(end, VIEWS)
    return end is not None and builder.float_head


def _head(builder: GraphBuilder, node: fx.Node, name: str, view: View, weight: np.ndarray, bias: np.ndarray) -> None:
    """Add the classifier, of weight (outputs, inputs).

    Args:
        view: the features that it reads, with the index of its result.
    """
    builder.check_finite(node, name, weight, bias)
    builder.tensors[node.name] = Tensor(node.name, (len(weight),), "float32")
    builder.views[node] = View(node.name, view.index)
    parameters = (np.ascontiguousarray(one, np.float32) for one in (weight, bias))
    kept = [Parameter(f"{name}.{kind}", one) for kind, one in zip(("weight", "bias"), parameters, strict=True)]
    builder.operators.append(Head(name, view.name, node.name, *kept))


@rule(aten.add.Tensor, aten.sub.Tensor)
def add(builder: GraphBuilder, node: fx.Node) -> None:
    a, b = arguments(node)[:2]
    alpha: Any = node.kwargs.get("alpha", 1)
    factor = alpha if node.target is aten.add.Tensor else -alpha
    if builder.is_constant(b):
        _add_constant(builder, node, a, factor * torch.as_tensor(builder.value(b)).double())
        return
    if factor != 1:
        raise builder.lacks(node, "the target lacks differences of activations, and their sums with a factor")
    if builder.is_constant(a):
        _add_constant(builder, node, b, torch.as_tensor(builder.value(a)).double())
        return
    one, other = builder.full_tensor(a, node), builder.full_tensor(b, node)
    if one.index.shape != other.index.shape or not torch.equal(one.index, other.index):
        raise builder.lacks(node, "the target lacks sums of tensors of different shapes, or in different orders")
    shape = builder.tensors[one.name].shape
    name = builder.as_shape(other.name, shape)
    y, low, high = builder.result(node, shape, one.index)
    builder.operators.append(Add(node.name, one.name, name, y, low, high))


def _add_constant(builder: GraphBuilder, node: fx.Node, x_node: fx.Node, table: torch.Tensor) -> None:
    view = builder.full_tensor(x_node, node)
    shape, x = view.index.shape, builder.tensors[view.name]
    if tuple(node.meta["val"].shape) != tuple(shape) or not table.isfinite().all():
        raise builder.lacks(node, "the target lacks sums that make an activation larger, or that are not finite")
    full = torch.empty(builder.batch * x.elements, dtype=torch.float64)
    full[view.index.flatten()] = table.expand(shape).flatten()
    each = full.reshape(builder.batch, -1)
    if not (each == each[0]).all():
        raise builder.lacks(node, "the target lacks constants that differ by example")
    scale = max(float(each[0].abs().max()) / HIGH, 1e-12)
    data = (each[0] / scale).round().to(torch.int8).numpy()
    y, low, high = builder.result(node, x.shape, view.index)
    builder.operators.append(
        AddConstant(node.name, view.name, y, Parameter(f"{node.name}.table", data), scale, low, high)
    )


@rule(aten.mean.dim)
def mean(builder: GraphBuilder, node: fx.Node) -> None:
    view = builder.full_tensor(arguments(node)[0], node)
    batch = builder.batch
    axes = sorted({axis % view.index.ndim for axis in arguments(node)[1]})
    rest = [axis for axis in range(1, view.index.ndim) if axis not in axes]
    index = view.index.permute(0, *rest, *axes).reshape(batch, -1, prod(view.index.shape[a] for a in axes))
    count, channels = index.shape[2], index.shape[1]
    wanted = torch.arange(batch * count * channels).reshape(batch, count, channels).transpose(1, 2)
    if axes[:1] == [0] or not torch.equal(index.sort(-1).values, wanted):
        raise builder.lacks(node, "the target lacks means but those over all positions")
    name = builder.positions(view, channels)
    height, width, _ = builder.tensors[name].shape
    pooled, shape = f"{node.name}.mean", node.meta["val"].shape
    builder.tensors[pooled] = Tensor(pooled, (1, 1, channels), "int8", *scale_and_zero(*builder.captured.ranges[node]))
    builder.operators.append(AveragePool(node.name, name, pooled, (height, width), (1, 1)))
    builder.views[node] = View(pooled, torch.arange(batch * channels).reshape(shape))


@rule(aten.avg_pool2d.default)
def pool(builder: GraphBuilder, node: fx.Node) -> None:
    x_node, kernel, stride, padding, ceil, _, divisor = (*arguments(node), *_POOL_DEFAULTS[len(arguments(node)) :])
    x = builder.images(x_node, node)
    kernel, stride = _pair(kernel), _pair(stride or kernel)
    if any(_pair(padding)) or ceil or divisor is not None:
        raise builder.lacks(node, "the target lacks mean pooling with padding, ceil_mode or a divisor")
    _average(builder, node, x, kernel, stride)


@rule(aten._adaptive_avg_pool2d.default)
def adaptive_pool(builder: GraphBuilder, node: fx.Node) -> None:
    x_node, extents = arguments(node)
    x = builder.images(x_node, node)
    extent = builder.tensors[x].shape[:2]
    if any(have % wanted for have, wanted in zip(extent, extents, strict=True)):
        raise builder.lacks(
            node, f"the target lacks mean pooling of {extent} to {tuple(extents)}, which do not divide it"
        )
    kernel = (extent[0] // extents[0], extent[1] // extents[1])
    _average(builder, node, x, kernel, kernel)


def _average(builder: GraphBuilder, node: fx.Node, x: str, kernel: tuple[int, int], stride: tuple[int, int]) -> None:
    """Add a mean pooling without padding."""
    y, low, high = _images_of(builder, node)
    builder.operators.append(AveragePool(node.name, x, y, kernel, stride, low, high))


@rule(*BOUNDS)
def clamp(builder: GraphBuilder, node: fx.Node) -> None:
    view = builder.full_tensor(arguments(node)[0], node)
    y = builder.tensor(node, builder.tensors[view.name].shape, like=view.name)
    builder.views[node] = View(y, view.index)
    builder.operators.append(Clamp(node.name, view.name, y, *builder.bounds(node, y)))


@rule(*VIEWS)
def view(builder: GraphBuilder, node: fx.Node) -> None:
    x = arguments(node)[0]
    partial = builder.partial.get(x)
    if partial is not None:
        made = partial.through(tuple(x.meta["val"].shape), tuple(node.meta["val"].shape))
        if made is None:
            raise builder.lacks(node, f"the target lacks {operator_name(node)} of {partial.what}")
        builder.partial[node] = made
        return
    builder.views[node] = builder.source(x, node, scaled=True).through(
        node.target, arguments(node)[1:], dict(node.kwargs)
    )


@rule(getitem)
def item(builder: GraphBuilder, node: fx.Node) -> None:
    x, number = arguments(node)
    several = builder.views.get(x)
    if not isinstance(several, tuple):
        raise builder.lacks(node, f"{operator_name(node)} of a value that is no activation")
    builder.views[node] = several[number]


def _pair(value: Any) -> tuple[int, int]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return (values[0], values[-1]) if values else (0, 0)
