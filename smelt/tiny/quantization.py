"""Converts a PyTorch model to an int8 graph, with ranges measured on calibration images.

Weights are int8, symmetric, with a scale for each output channel. Activations are int8, with scale and zero from their
range over the calibration images. Biases are int32. BatchNorm is folded into the convolution before it, and a ReLU or
ReLU6 into the operator before it. The model is captured like other models of smelt, so its module classes do not
matter.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from smelt.tiny.capture import Captured, QuantizeError, capture, chain
from smelt.tiny.graph import (
    HIGH,
    LOW,
    MAX_BIAS,
    MAX_TAPS,
    Add,
    AddConstant,
    Attention,
    AveragePool,
    Clamp,
    Conv,
    Flatten,
    Head,
    Int8Graph,
    LayerNorm,
    Linear,
    Lookup,
    Operator,
    Parameter,
    Tensor,
)
from smelt.tiny.views import VIEWS, View, heads, image, rows

aten = torch.ops.aten
NORMS = (aten._native_batch_norm_legit_no_training.default,)
BOUNDS = (aten.relu.default, aten.hardtanh.default, aten.clamp.default, aten.clamp_min.default)
TABLES = (
    *(aten.gelu.default, aten.silu.default, aten.sigmoid.default, aten.tanh.default, aten.hardswish.default),
    *(aten.hardsigmoid.default, aten.leaky_relu.default, aten.elu.default),
)
"""Functions of one value, which become tables of 256 results."""

HAS = (
    "convolution (in one group, or one for each channel), BatchNorm, linear, add, mean pooling, ReLU, ReLU6, "
    "functions of one value such as GELU, layer norm, attention without a mask, views"
)

Rule = Callable[["_Quantizer", fx.Node], None]


@dataclass(frozen=True)
class Scores:
    """Products of queries and keys, an intermediate result that becomes part of an attention operator.

    Attributes:
        q, k: views of shape (batch * heads, positions, width).
        heads: the number of heads of one example.
        factor: the factor of the products.
        weights: whether the softmax has been applied.
    """

    q: View
    k: View
    heads: int
    factor: float = 1.0
    weights: bool = False


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
    made = _Quantizer(captured, model, float_head).graph(name or type(model).__name__)
    made.verify()
    return made


class _Quantizer:
    """Builds the records of an int8 graph, node by node of the captured graph.

    Attributes:
        views: node -> the view that represents its value; a tuple for a node with several values.
        scores: products of queries and keys, which are a part of attention.
        shaped: tensors that were reshaped.
        batch: the batch size of the captured graph.
    """

    def __init__(self, captured: Captured, model: nn.Module, float_head: bool) -> None:
        self.captured, self.float_head = captured, float_head
        self.paths = {one.data_ptr(): path.rpartition(".")[0] for path, one in model.named_parameters()}
        self.tensors: dict[str, Tensor] = {}
        self.operators: list[Operator] = []
        self.views: dict[fx.Node, View | tuple[View, ...]] = {}
        self.scores: dict[fx.Node, Scores] = {}
        self.shaped: dict[tuple[str, tuple[int, ...]], str] = {}
        self.last = _result(captured.graph.graph)
        self.batch = int(captured.image.meta["val"].shape[0])

    def graph(self, name: str) -> Int8Graph:
        first = self.captured.image
        channels, height, width = first.meta["val"].shape[1:]
        image_name = self.tensor(first, (height, width, channels), "image")
        self.views[first] = View(image_name, image(self.batch, (height, width, channels)))
        for node in self.captured.graph.graph.nodes:
            if node.op == "call_function" and node not in self.views and not self.is_parameter(node):
                rule = RULES.get(node.target)
                if rule is None:
                    raise self.lacks(node, f"the target lacks {_operator(node)}")
                rule(self, node)
        return Int8Graph(name, self.tensors, tuple(self.operators), "image", self.result_of_all())

    def result_of_all(self) -> str:
        """The tensor of the logits."""
        view = self.views.get(self.last)
        if (
            not isinstance(view, View)
            or view.factor != 1.0
            or not torch.equal(view.index, torch.arange(view.index.numel()).reshape(self.batch, -1))
        ):
            raise QuantizeError("the model's result is no tensor (n, classes) in the order in which it is computed")
        return view.name

    # -- operands of operators -------------------------------------------------------------------------------------

    def lacks(self, node: fx.Node, what: str) -> QuantizeError:
        line = node.meta.get("line")
        return QuantizeError(what, at=None if line is None else str(line), hint=f"it has {HAS}")

    def source(self, node: Any, of: fx.Node, scaled: bool = False) -> View:
        """The view that represents an operand `node` of the operator `of`; `scaled`: whether a tensor times a number is
        allowed, which only attention takes.
        """
        view = self.views.get(node) if isinstance(node, fx.Node) else None
        if not isinstance(view, View):
            raise self.lacks(of, f"{_operator(of)} of a value that is no activation")
        if view.factor != 1.0 and not scaled:
            raise self.lacks(of, f"{_operator(of)} of a tensor times a number, which only attention takes")
        return view

    def whole(self, node: Any, of: fx.Node) -> View:
        """The view of an operand as in `source`, which must consist of all elements of a tensor, in any order."""
        view = self.source(node, of)
        if not view.whole(self.tensors[view.name].elements, self.batch):
            raise self.lacks(of, f"{_operator(of)} of a part of a tensor")
        return view

    def images(self, node: Any, of: fx.Node) -> str:
        """The name of the tensor (height, width, channels) that represents an operand which is a batch of images."""
        view = self.whole(node, of)
        _, channels, height, width = view.index.shape
        shape = (height, width, channels)
        if not torch.equal(view.index, image(self.batch, shape)):
            raise self.lacks(of, f"{_operator(of)} of images whose channels do not lie together")
        return self.as_shape(view.name, shape)

    def positions(self, view: View, channels: int) -> str:
        """The name of the tensor of a view with `channels` channels: unchanged, or reshaped to (positions, 1,
        channels).
        """
        tensor = self.tensors[view.name]
        if len(tensor.shape) == 3 and tensor.channels == channels:
            return view.name
        return self.as_shape(view.name, (tensor.elements // channels, 1, channels))

    def as_shape(self, name: str, shape: tuple[int, ...]) -> str:
        """The name of a tensor with the same elements in another shape."""
        if self.tensors[name].shape == shape:
            return name
        if (name, shape) not in self.shaped:
            x = self.tensors[name]
            base = f"{name}.flatten" if len(shape) == 1 else f"{name}.{'x'.join(map(str, shape))}"
            self.shaped[name, shape] = base
            self.tensors[base] = Tensor(base, shape, "int8", x.scale, x.zero)
            self.operators.append(Flatten(base, name, base))
        return self.shaped[name, shape]

    def is_parameter(self, node: Any) -> bool:
        """Whether a node is a parameter, or is computed from parameters alone."""
        if not isinstance(node, fx.Node):
            return False
        if node.op == "call_function":
            return bool(node.all_input_nodes) and all(map(self.is_parameter, node.all_input_nodes))
        return node in self.captured.held

    def value(self, node: Any) -> Any:
        """The value of a parameter, or of a node computed from parameters alone; values other than nodes are returned
        as such.
        """
        if not isinstance(node, fx.Node):
            return node
        if node.op == "call_function":
            with torch.no_grad():
                made = fx.map_arg((node.args, node.kwargs), self.value)
                return node.target(*made[0], **made[1])  # type: ignore[operator]
        return self.captured.held[node].detach()

    def array(self, node: Any) -> np.ndarray | None:
        """The result of `value` as a float64 array; None for None."""
        return None if node is None else self.value(node).double().numpy()

    def path(self, *nodes: Any) -> str:
        """An unused name for an operator: the path of the module that owns one of these parameters."""
        own = next((self.paths.get(self.captured.held[n].data_ptr()) for n in nodes if n in self.captured.held), None)
        taken = {op.name for op in self.operators}
        base = own or nodes[0].name
        return next(name for name in (base, *(f"{base}_{i}" for i in range(1, 1 << 20))) if name not in taken)

    def tensor(self, node: fx.Node, shape: tuple[int, ...], name: str | None = None, like: str | None = None) -> str:
        """An int8 tensor for a node, with the scale of its range or that of another tensor."""
        name = name or node.name
        if like is not None:
            scale, zero = self.tensors[like].scale, self.tensors[like].zero
        else:
            scale, zero = _scale_and_zero(*self.captured.ranges[node])
        self.tensors[name] = Tensor(name, shape, "int8", scale, zero)
        return name

    def result(self, node: fx.Node, shape: tuple[int, ...], index: torch.Tensor) -> tuple[str, int, int]:
        """Add the tensor of an operator's result: (its name, low, high). A ReLU that is the result's only user is
        included in the bounds.
        """
        passed, end = [node], chain(node, (*BOUNDS, *VIEWS))
        while end is not None and end.target in VIEWS:
            passed.append(end)
            end = chain(end, (*BOUNDS, *VIEWS))
        folds = end is not None and _limits(end) is not None
        name = self.tensor(end if folds and end is not None else node, shape)
        self.views[node] = View(name, index)
        if not folds or end is None:
            return name, LOW, HIGH
        for one in passed[1:]:
            self.view(one)
        last = self.views[passed[-1]]
        assert isinstance(last, View)
        self.views[end] = last
        return name, *self.bounds(end, name)

    def bounds(self, node: fx.Node, name: str) -> tuple[int, int]:
        """The bounds of a ReLU in steps of a tensor."""
        limits, tensor = _limits(node), self.tensors[name]
        if limits is None:
            raise self.lacks(node, f"the target lacks {_operator(node)} that is no ReLU or ReLU6")
        low = max(LOW, tensor.zero)
        high = HIGH if limits == float("inf") else min(HIGH, round(limits / tensor.scale) + tensor.zero)
        return low, max(high, low + 1)

    def check_finite(self, node: fx.Node, name: str, *values: np.ndarray) -> None:
        """Raise an error if a layer's parameters are not finite."""
        if not all(np.isfinite(one).all() for one in values):
            raise self.lacks(node, f"{name} has weights or biases that are not finite")

    def weights(
        self, node: fx.Node, name: str, x: str, weight: np.ndarray, bias: np.ndarray
    ) -> tuple[Parameter, Parameter]:
        """int8 weights (outputs first) and the int32 bias of a layer that reads a tensor."""
        flat = np.abs(weight).reshape(len(weight), -1).max(1)
        self.check_finite(node, name, weight, bias)
        least = np.abs(bias) / (self.tensors[x].scale * (MAX_BIAS / 4))  # so that the bias has room in int32
        scales = np.maximum(np.maximum(flat / HIGH, least), 1e-12).astype(np.float32)
        shape = (-1,) + (1,) * (weight.ndim - 1)
        whole = np.clip(np.rint(weight / scales.astype(np.float64).reshape(shape)), -HIGH, HIGH).astype(np.int8)
        biases = np.rint(bias / (scales.astype(np.float64) * self.tensors[x].scale)).astype(np.int32)
        return Parameter(f"{name}.weight", whole, scales), Parameter(f"{name}.bias", biases)

    # -- operators -------------------------------------------------------------------------------------------------

    def convolution(self, node: fx.Node) -> None:
        x_node, weight_node, bias_node, stride, padding, dilation, transposed, _, groups = arguments(node)
        x, weight = self.images(x_node, node), self.array(weight_node)
        assert weight is not None
        channels = self.tensors[x].channels
        depthwise = groups != 1
        if transposed or set(dilation) != {1} or len(set(stride)) != 1:
            raise self.lacks(node, "the target lacks convolutions that are transposed, dilated or of unequal strides")
        if depthwise and not (groups == channels == len(weight)):
            raise self.lacks(node, f"the target lacks convolutions in {groups} groups of {channels} channels")
        if depthwise and max(weight.shape[2:]) > MAX_TAPS:
            raise self.lacks(node, f"the target lacks depthwise kernels of more than {MAX_TAPS} rows or columns")
        bias = self.array(bias_node)
        bias = np.zeros(len(weight)) if bias is None else bias
        end = chain(node, NORMS)
        if end is not None:
            weight, bias = self.folded(end, weight, bias)
            end = chain(end, (_getitem,))
        name = self.path(weight_node)
        parameters = self.weights(node, name, x, weight, bias)
        laid_out = parameters[0].data.transpose(0, 2, 3, 1)
        laid_out = laid_out[..., 0].transpose(1, 2, 0) if depthwise else laid_out
        kernel = Parameter(parameters[0].name, np.ascontiguousarray(laid_out), parameters[0].scales)
        channels, height, width = (end or node).meta["val"].shape[1:]
        shape = (height, width, channels)
        y, low, high = self.result(end or node, shape, image(self.batch, shape))
        if end is not None:
            self.views[node] = self.views[arguments(end)[0]] = self.views[end]
        size = (weight.shape[2], weight.shape[3])
        self.operators.append(
            Conv(name, x, y, kernel, parameters[1], size, stride[0], _pair(padding), depthwise, low, high)
        )

    def folded(self, norm: fx.Node, weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weight and bias of a convolution with the BatchNorm that follows it."""
        gain, shift, mean, variance = (self.array(one) for one in arguments(norm)[1:5])
        assert mean is not None and variance is not None
        factor = (1.0 if gain is None else gain) / np.sqrt(variance + arguments(norm)[6])
        return weight * factor.reshape(-1, 1, 1, 1), (bias - mean) * factor + (0.0 if shift is None else shift)

    def linear(self, node: fx.Node) -> None:
        bias_node, x_node, weight_node = (
            arguments(node) if node.target is aten.addmm.default else (None, *arguments(node))
        )
        view, weight, bias = self.whole(x_node, node), self.array(weight_node), self.array(bias_node)
        assert weight is not None
        found = rows(view.index)
        if found is None:
            raise self.lacks(node, f"{_operator(node)} of rows whose elements do not lie together")
        begin, order = found
        columns, weight = torch.argsort(order).numpy(), weight.T
        weight = np.ascontiguousarray(weight[:, columns])
        outputs, inputs = weight.shape
        bias = np.zeros(outputs) if bias is None else bias
        name = self.path(*weight_node.all_input_nodes, weight_node)
        self.check_finite(node, name, weight, bias)
        index = begin // inputs * outputs + torch.arange(outputs)
        each = len(begin) == self.batch
        x = self.as_shape(view.name, (inputs,)) if each else self.positions(view, inputs)
        if node is self.last and self.float_head and each:
            self.views[node] = View(node.name, index)
            self.tensors[node.name] = Tensor(node.name, (outputs,), "float32")
            parameters = (np.ascontiguousarray(one, np.float32) for one in (weight, bias))
            kept = [Parameter(f"{name}.{kind}", one) for kind, one in zip(("weight", "bias"), parameters, strict=True)]
            self.operators.append(Head(name, x, node.name, *kept))
            return
        kernel, shift = self.weights(node, name, x, weight, bias)
        y, low, high = self.result(node, (outputs,) if each else (*self.tensors[x].shape[:2], outputs), index)
        if each:
            self.operators.append(Linear(name, x, y, kernel, shift, low, high))
            return
        kernel = Parameter(kernel.name, np.ascontiguousarray(kernel.data[:, None, None]), kernel.scales)
        self.operators.append(Conv(name, x, y, kernel, shift, (1, 1), 1, (0, 0), False, low, high))

    def add(self, node: fx.Node) -> None:
        a, b = arguments(node)[:2]
        if not isinstance(b, fx.Node) or node.kwargs.get("alpha", 1) != 1:
            raise self.lacks(node, "the target lacks sums with a number or a factor")
        if self.is_parameter(a) or self.is_parameter(b):
            self.add_constant(node, *((b, a) if self.is_parameter(a) else (a, b)))
            return
        one, other = self.whole(a, node), self.whole(b, node)
        if one.index.shape != other.index.shape or not torch.equal(one.index, other.index):
            raise self.lacks(node, "the target lacks sums of tensors of different shapes, or in different orders")
        shape = self.tensors[one.name].shape
        name = self.as_shape(other.name, shape)
        y, low, high = self.result(node, shape, one.index)
        self.operators.append(Add(node.name, one.name, name, y, low, high))

    def add_constant(self, node: fx.Node, x_node: fx.Node, table_node: fx.Node) -> None:
        view, table = self.whole(x_node, node), self.value(table_node).double()
        shape, x = view.index.shape, self.tensors[view.name]
        if tuple(node.meta["val"].shape) != tuple(shape) or not table.isfinite().all():
            raise self.lacks(node, "the target lacks sums that make an activation larger, or that are not finite")
        whole = torch.empty(self.batch * x.elements, dtype=torch.float64)
        whole[view.index.flatten()] = table.expand(shape).flatten()
        each = whole.reshape(self.batch, -1)
        if not (each == each[0]).all():
            raise self.lacks(node, "the target lacks constants that differ by example")
        scale = max(float(each[0].abs().max()) / HIGH, 1e-12)
        data = (each[0] / scale).round().to(torch.int8).numpy()
        y, low, high = self.result(node, x.shape, view.index)
        self.operators.append(
            AddConstant(node.name, view.name, y, Parameter(f"{node.name}.table", data), scale, low, high)
        )

    def multiply(self, node: fx.Node) -> None:
        """Multiply or divide queries, keys or their products by a number, as a part of attention."""
        a, b = arguments(node)[:2]
        a, b = (b, a) if isinstance(b, fx.Node) and not self.is_parameter(b) else (a, b)
        number = self.value(b)
        if isinstance(number, torch.Tensor):
            number = number.item() if number.numel() == 1 else 0.0
        if not isinstance(number, (int, float)) or not 0 < number < float("inf"):
            raise self.lacks(node, f"the target lacks {_operator(node)} by anything but a number above 0")
        number = float(number) if node.target is aten.mul.Tensor else 1.0 / number
        scores = self.scores.get(a)
        if scores is not None and not scores.weights:
            self.scores[node] = Scores(scores.q, scores.k, scores.heads, scores.factor * number)
            return
        view = self.source(a, node, scaled=True)
        self.views[node] = View(view.name, view.index, view.factor * number)

    def mean(self, node: fx.Node) -> None:
        view = self.whole(arguments(node)[0], node)
        batch = self.batch
        axes = sorted({axis % view.index.ndim for axis in arguments(node)[1]})
        rest = [axis for axis in range(1, view.index.ndim) if axis not in axes]
        index = view.index.permute(0, *rest, *axes).reshape(batch, -1, prod(view.index.shape[a] for a in axes))
        count, channels = index.shape[2], index.shape[1]
        wanted = torch.arange(batch * count * channels).reshape(batch, count, channels).transpose(1, 2)
        if axes[:1] == [0] or not torch.equal(index.sort(-1).values, wanted):
            raise self.lacks(node, "the target lacks means but those over all positions")
        name = self.positions(view, channels)
        height, width, _ = self.tensors[name].shape
        pooled, shape = f"{node.name}.mean", node.meta["val"].shape
        self.tensors[pooled] = Tensor(pooled, (1, 1, channels), "int8", *_scale_and_zero(*self.captured.ranges[node]))
        self.operators.append(AveragePool(node.name, name, pooled, (height, width), (1, 1)))
        self.views[node] = View(pooled, torch.arange(batch * channels).reshape(shape))

    def pool(self, node: fx.Node) -> None:
        x_node, kernel, stride, padding, ceil, _, divisor = (*arguments(node), *_POOL_DEFAULTS[len(arguments(node)) :])
        x = self.images(x_node, node)
        kernel, stride = _pair(kernel), _pair(stride or kernel)
        if any(_pair(padding)) or ceil or divisor is not None:
            raise self.lacks(node, "the target lacks mean pooling with padding, ceil_mode or a divisor")
        channels, height, width = node.meta["val"].shape[1:]
        shape = (height, width, channels)
        y, low, high = self.result(node, shape, image(self.batch, shape))
        self.operators.append(AveragePool(node.name, x, y, kernel, stride, low, high))

    def clamp(self, node: fx.Node) -> None:
        view = self.whole(arguments(node)[0], node)
        y = self.tensor(node, self.tensors[view.name].shape, like=view.name)
        self.views[node] = View(y, view.index)
        self.operators.append(Clamp(node.name, view.name, y, *self.bounds(node, y)))

    def lookup(self, node: fx.Node) -> None:
        view = self.whole(arguments(node)[0], node)
        x = self.tensors[view.name]
        y = self.tensor(node, x.shape)
        self.views[node] = View(y, view.index)
        steps = ((torch.arange(-128, 128).double() - x.zero) * x.scale).requires_grad_()
        made = node.target(steps, *arguments(node)[1:], **node.kwargs)  # type: ignore[operator]
        (slopes,) = torch.autograd.grad(made.sum(), steps)
        to, least = self.tensors[y], LOW - self.tensors[y].zero
        scaled = made.detach() / to.scale
        inside = (scaled >= least) & (scaled <= HIGH - to.zero)
        table = (scaled.round() + to.zero).clamp(LOW, HIGH).to(torch.int8).numpy()
        of_steps = torch.where(inside, slopes * (x.scale / to.scale), 0.0).float().numpy()
        kept = (Parameter(f"{node.name}.table", table), Parameter(f"{node.name}.slopes", of_steps))
        self.operators.append(Lookup(node.name, view.name, y, *kept))

    def layer_norm(self, node: fx.Node) -> None:
        x_node, shape, gain, shift, epsilon = arguments(node)
        view, channels = self.whole(x_node, node), prod(shape)
        found = rows(view.index.reshape(-1, channels))
        if len(shape) != 1 or found is None or not torch.equal(found[1], torch.arange(channels)):
            raise self.lacks(node, "the target lacks layer norms but those over the channels of each position")
        end = self.only_first(node)
        x = self.positions(view, channels)
        name = self.path(*(one for one in (gain, shift) if one is not None), node)
        y = self.tensor(end, self.tensors[x].shape)
        self.views[end] = View(y, view.index)
        pair = [
            np.full(channels, default, np.float32) if one is None else self.value(one).float().numpy().copy()
            for one, default in ((gain, 1.0), (shift, 0.0))
        ]
        kept = [Parameter(f"{name}.{kind}", one) for kind, one in zip(("gain", "shift"), pair, strict=True)]
        self.operators.append(LayerNorm(name, x, y, kept[0], kept[1], float(epsilon)))

    def only_first(self, node: fx.Node) -> fx.Node:
        """The node for the first of several results; the others must be unused."""
        end = chain(node, (_getitem,))
        if end is None or arguments(end)[1] != 0:
            raise self.lacks(node, f"{_operator(node)} of which more than the first result is used")
        return end

    def fused_attention(self, node: fx.Node) -> None:
        q, k, v = (self.source(one, node, scaled=True) for one in arguments(node)[:3])
        if any(arguments(node)[3:5]) or node.kwargs.get("attn_mask") is not None:
            raise self.lacks(node, "the target lacks attention with a mask or with dropout")
        given: Any = node.kwargs.get("scale")
        factor: float = q.index.shape[-1] ** -0.5 if given is None else given
        q, k, v = (View(one.name, one.index.flatten(0, 1), one.factor) for one in (q, k, v))
        count = len(q.index) // self.batch
        self.attention(node, self.only_first(node), Scores(q, k, count, factor, True), v)

    def products(self, node: fx.Node) -> None:
        """The product of queries and keys, or of attention weights and values."""
        a, b = arguments(node)
        scores = self.scores.get(a)
        if scores is not None and scores.weights:
            self.attention(node, node, scores, self.source(b, node, scaled=True))
            return
        q, k = (self.source(one, node, scaled=True) for one in (a, b))
        count = len(q.index) // self.batch
        self.scores[node] = Scores(q, View(k.name, k.index.transpose(1, 2), k.factor), count)

    def softmax(self, node: fx.Node) -> None:
        x, axis, _ = arguments(node)
        scores = self.scores.get(x)
        if scores is None or axis % x.meta["val"].ndim != x.meta["val"].ndim - 1:
            raise self.lacks(node, "the target lacks softmax but that of attention, over its keys")
        self.scores[node] = Scores(scores.q, scores.k, scores.heads, scores.factor, True)

    def attention(self, node: fx.Node, end: fx.Node, scores: Scores, v: View) -> None:
        operands, found = (scores.q, scores.k, v), []
        names = [self.positions(one, self.tensors[one.name].channels) for one in operands]
        for name, one in zip(names, operands, strict=True):
            x = self.tensors[name]
            where = heads(one, x.elements, x.channels, scores.heads)
            if where is None:
                raise self.lacks(node, "the target lacks attention whose heads are not channels behind each other")
            found.append(where)
        starts, width = (found[0][0], found[1][0], found[2][0]), found[0][1]
        wide, shape = found[2][1], self.tensors[names[0]].shape
        channels = scores.heads * wide
        index = torch.arange(self.batch * shape[0] * shape[1] * channels)
        index = index.reshape(self.batch, -1, scores.heads, wide).transpose(1, 2)
        y = self.tensor(end, (*shape[:2], channels))
        self.views[end] = View(y, index.reshape(end.meta["val"].shape), v.factor)
        factor = scores.factor * scores.q.factor * scores.k.factor
        q, k, v_name = names
        self.operators.append(Attention(end.name, q, k, v_name, y, starts, scores.heads, width, factor))

    def view(self, node: fx.Node) -> None:
        x = arguments(node)[0]
        scores = self.scores.get(x)
        if scores is not None:
            given, made = x.meta["val"].shape, node.meta["val"].shape
            if prod(given) != prod(made) or tuple(made[-2:]) != tuple(given[-2:]):
                raise self.lacks(node, f"the target lacks {_operator(node)} of products of attention")
            self.scores[node] = scores
            return
        self.views[node] = self.source(x, node, scaled=True).through(
            node.target, arguments(node)[1:], dict(node.kwargs)
        )

    def item(self, node: fx.Node) -> None:
        x, number = arguments(node)
        several = self.views.get(x)
        if not isinstance(several, tuple):
            raise self.lacks(node, f"{_operator(node)} of a value that is no activation")
        self.views[node] = several[number]


_getitem = operator.getitem
_POOL_DEFAULTS: tuple[Any, ...] = (None, None, (), 0, False, True, None)

RULES: dict[Any, Rule] = {
    aten.convolution.default: _Quantizer.convolution,
    aten.addmm.default: _Quantizer.linear,
    aten.mm.default: _Quantizer.linear,
    aten.add.Tensor: _Quantizer.add,
    aten.mul.Tensor: _Quantizer.multiply,
    aten.div.Tensor: _Quantizer.multiply,
    aten.mean.dim: _Quantizer.mean,
    aten.avg_pool2d.default: _Quantizer.pool,
    aten.native_layer_norm.default: _Quantizer.layer_norm,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _Quantizer.fused_attention,
    aten.bmm.default: _Quantizer.products,
    aten._softmax.default: _Quantizer.softmax,
    **dict.fromkeys(BOUNDS, _Quantizer.clamp),
    **dict.fromkeys(TABLES, _Quantizer.lookup),
    **dict.fromkeys(VIEWS, _Quantizer.view),
    _getitem: _Quantizer.item,
}
"""Operator -> the method that converts it; other operators are not supported."""


def arguments(node: fx.Node) -> tuple[Any, ...]:
    """The arguments of a node."""
    return node.args


def _result(graph: fx.Graph) -> fx.Node:
    (values,) = arguments(next(node for node in graph.nodes if node.op == "output"))
    if len(values) != 1 or not isinstance(values[0], fx.Node):
        raise QuantizeError("the model returns more than its logits", hint="a module around it can return them alone")
    return values[0]


def _limits(node: fx.Node) -> float | None:
    """The upper bound of a ReLU (a number or infinity); None if the node is no ReLU."""
    if node.target is aten.relu.default:
        return float("inf")
    defaults: tuple[Any, ...] = (-1.0, 1.0) if node.target is aten.hardtanh.default else (None, None)
    given = arguments(node)[1:]
    low, high = (*given, *defaults[len(given) :])
    return None if low != 0 else float("inf") if high is None else float(high)


def _operator(node: fx.Node) -> str:
    """The name of an operator for errors: that of ATen, and that of the function by which the program calls it."""
    return f"{node.target} (of {node.meta.get('from', node.name)})"


def _pair(value: Any) -> tuple[int, int]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return (values[0], values[-1]) if values else (0, 0)


def _scale_and_zero(low: float, high: float) -> tuple[float, int]:
    """(scale, zero) of int8 values for a range; 0 is always represented exactly."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = max((high - low) / (HIGH - LOW), 1e-8)
    return scale, int(np.clip(round(LOW - low / scale), LOW, HIGH))
