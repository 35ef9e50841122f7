"""A PyTorch model and calibration images in, an int8 graph out.

Weights are int8, symmetric, with a scale for each output channel; activations int8 with scale and zero from the range
that the calibration images span; biases int32. BatchNorm is folded into the convolution before it, and a ReLU or ReLU6
into whatever it follows. The model is captured as smelt captures any model: its modules are not looked at.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from smelt.tiny.capture import Captured, QuantizeError, capture, chain
from smelt.tiny.graph import (
    HIGH,
    LOW,
    MOST_BIAS,
    Add,
    AveragePool,
    Clamp,
    Conv,
    Flatten,
    Head,
    Int8Graph,
    Linear,
    Operator,
    Parameter,
    Tensor,
)

aten = torch.ops.aten
NORMS = (aten._native_batch_norm_legit_no_training.default,)
BOUNDS = (aten.relu.default, aten.hardtanh.default, aten.clamp.default, aten.clamp_min.default)
SAME = (aten.clone.default, aten.alias.default, aten.detach.default)

HAS = "convolution (in one group, or one for each channel), BatchNorm, linear, add, mean pooling, ReLU, ReLU6, flatten"

Rule = Callable[["_Quantizer", fx.Node], None]


def quantize(model: nn.Module, calibration_data: Any, *, name: str | None = None, float_head: bool = True) -> Int8Graph:
    """An int8 graph of a model made of convolutions, BatchNorm, linear layers, sums, mean pooling, ReLU and flattening.

    Args:
        model: takes a batch of images (n, channels, height, width) and returns logits (n, classes).
        calibration_data: float images as the model takes them, or batches of them, such as a loader.
        name: of the graph; None: the model's class.
        float_head: keep the last linear layer in float32, in which form it trains; else it is int8.

    Raises:
        QuantizeError: no calibration data, or an operator that the target lacks: named with the line that calls it.
        Unsupported: the model is not one graph.
    """
    captured = capture(model, calibration_data)
    made = _Quantizer(captured, model, float_head).graph(name or type(model).__name__)
    made.verify()
    return made


class _Quantizer:
    """The records of a graph, as its nodes are read.

    Attributes:
        names: the tensor that stands for each node; of folded nodes, that of the last of them.
        planes: shapes (channels, height, width) of what was flattened: PyTorch flattens channels first.
    """

    def __init__(self, captured: Captured, model: nn.Module, float_head: bool) -> None:
        self.captured, self.float_head = captured, float_head
        self.paths = {one.data_ptr(): path.rpartition(".")[0] for path, one in model.named_parameters()}
        self.tensors: dict[str, Tensor] = {}
        self.operators: list[Operator] = []
        self.names: dict[fx.Node, str] = {}
        self.planes: dict[str, tuple[int, ...]] = {}
        self.last = _result(captured.graph.graph)

    def graph(self, name: str) -> Int8Graph:
        image = self.captured.image
        self.names[image] = self.tensor(image, "image")
        for node in self.captured.graph.graph.nodes:
            if node.op == "call_function" and node not in self.names and not self.is_parameter(node):
                rule = RULES.get(node.target)
                if rule is None:
                    raise self.lacks(node, f"the target lacks {_operator(node)}")
                rule(self, node)
        return Int8Graph(name, self.tensors, tuple(self.operators), "image", self.names[self.last])

    # -- what operators ask ----------------------------------------------------------------------------------------

    def lacks(self, node: fx.Node, what: str) -> QuantizeError:
        line = node.meta.get("line")
        return QuantizeError(what, at=None if line is None else str(line), hint=f"it has {HAS}")

    def source(self, node: fx.Node, of: fx.Node) -> str:
        """The tensor that a node stands for, as an operand of another."""
        if node not in self.names:
            raise self.lacks(of, f"{_operator(of)} of a value that is no activation")
        return self.names[node]

    def is_parameter(self, node: Any) -> bool:
        """Whether a node is a parameter, or is made of parameters alone."""
        if not isinstance(node, fx.Node):
            return False
        if node.op == "call_function":
            return bool(node.all_input_nodes) and all(map(self.is_parameter, node.all_input_nodes))
        return node in self.captured.held

    def array(self, node: Any) -> np.ndarray | None:
        """A parameter's values, float64; None stays None."""
        if node is None:
            return None
        if node.op == "call_function":
            assert node.target is aten.permute.default or node.target is aten.t.default
            inner = self.array(arguments(node)[0])
            assert inner is not None
            return inner.T
        return self.captured.held[node].detach().double().numpy()

    def path(self, *nodes: Any) -> str:
        """The module that owns a parameter, as a name for what it computes."""
        own = next((self.paths.get(self.captured.held[n].data_ptr()) for n in nodes if n in self.captured.held), None)
        taken = {op.name for op in self.operators}
        base = own or nodes[0].name
        return next(name for name in (base, *(f"{base}_{i}" for i in range(1, 1 << 20))) if name not in taken)

    def tensor(self, node: fx.Node, name: str | None = None, like: str | None = None) -> str:
        """An int8 tensor for a node, with the scale of its range or that of another tensor."""
        shape = tuple(node.meta["val"].shape[1:])
        shape = (shape[1], shape[2], shape[0]) if len(shape) == 3 else shape
        name = name or node.name
        if like is not None:
            scale, zero = self.tensors[like].scale, self.tensors[like].zero
        else:
            scale, zero = _scale_and_zero(*self.captured.ranges[node])
        self.tensors[name] = Tensor(name, shape, "int8", scale, zero)
        return name

    def result(self, node: fx.Node) -> tuple[str, int, int]:
        """The tensor of an operator's result and its bounds, with a ReLU that alone follows it."""
        end = chain(node, BOUNDS)
        if end is None or _limits(end) is None:
            name = self.names[node] = self.tensor(node)
            return name, LOW, HIGH
        name = self.names[node] = self.names[end] = self.tensor(end)
        return name, *self.bounds(end, name)

    def bounds(self, node: fx.Node, name: str) -> tuple[int, int]:
        """The bounds of a ReLU in steps of a tensor."""
        limits, tensor = _limits(node), self.tensors[name]
        if limits is None:
            raise self.lacks(node, f"the target lacks {_operator(node)} that is no ReLU or ReLU6")
        low = max(LOW, tensor.zero)
        high = HIGH if limits == float("inf") else min(HIGH, round(limits / tensor.scale) + tensor.zero)
        return low, max(high, low + 1)

    def weights(
        self, node: fx.Node, name: str, x: str, weight: np.ndarray, bias: np.ndarray
    ) -> tuple[Parameter, Parameter]:
        """int8 weights (outputs first) and the int32 bias of a layer that reads a tensor."""
        flat = np.abs(weight).reshape(len(weight), -1).max(1)
        if not (np.isfinite(flat).all() and np.isfinite(bias).all()):
            raise self.lacks(node, f"{name} has weights or biases that are not finite")
        least = np.abs(bias) / (self.tensors[x].scale * (MOST_BIAS / 4))  # so that the bias has room in int32
        scales = np.maximum(np.maximum(flat / HIGH, least), 1e-12).astype(np.float32)
        shape = (-1,) + (1,) * (weight.ndim - 1)
        whole = np.clip(np.rint(weight / scales.astype(np.float64).reshape(shape)), -HIGH, HIGH).astype(np.int8)
        biases = np.rint(bias / (scales.astype(np.float64) * self.tensors[x].scale)).astype(np.int32)
        return Parameter(f"{name}.weight", whole, scales), Parameter(f"{name}.bias", biases)

    # -- operators -------------------------------------------------------------------------------------------------

    def convolution(self, node: fx.Node) -> None:
        x, weight_node, bias_node, stride, padding, dilation, transposed, _, groups = arguments(node)
        x, weight = self.source(x, node), self.array(weight_node)
        assert weight is not None
        channels = self.tensors[x].channels
        depthwise = groups != 1
        if transposed or set(dilation) != {1} or len(set(stride)) != 1:
            raise self.lacks(node, "the target lacks convolutions that are transposed, dilated or of unequal strides")
        if depthwise and not (groups == channels == len(weight)):
            raise self.lacks(node, f"the target lacks convolutions in {groups} groups of {channels} channels")
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
        y, low, high = self.result(end or node)
        if end is not None:
            self.names[node] = self.names[arguments(end)[0]] = y
        size = (weight.shape[2], weight.shape[3])
        self.operators.append(
            Conv(name, x, y, kernel, parameters[1], size, stride[0], _pair(padding), depthwise, low, high)
        )

    def folded(self, norm: fx.Node, weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A convolution with the BatchNorm behind it."""
        gain, shift, mean, variance = (self.array(one) for one in arguments(norm)[1:5])
        assert mean is not None and variance is not None
        factor = (1.0 if gain is None else gain) / np.sqrt(variance + arguments(norm)[6])
        return weight * factor.reshape(-1, 1, 1, 1), (bias - mean) * factor + (0.0 if shift is None else shift)

    def linear(self, node: fx.Node) -> None:
        bias_node, x_node, weight_node = (
            arguments(node) if node.target is aten.addmm.default else (None, *arguments(node))
        )
        x, weight, bias = self.source(x_node, node), self.array(weight_node), self.array(bias_node)
        assert weight is not None
        weight = weight.T
        bias = np.zeros(len(weight)) if bias is None else bias
        if x in self.planes:  # columns are channels first, tensors here channels last
            columns = np.arange(weight.shape[1]).reshape(self.planes[x]).transpose(1, 2, 0).ravel()
            weight = weight[:, columns]
        name = self.path(*weight_node.all_input_nodes, weight_node)
        if node is self.last and self.float_head:
            y = self.names[node] = node.name
            self.tensors[y] = Tensor(y, (len(weight),), "float32")
            parameters = (np.ascontiguousarray(one, np.float32) for one in (weight, bias))
            kept = [Parameter(f"{name}.{kind}", one) for kind, one in zip(("weight", "bias"), parameters, strict=True)]
            self.operators.append(Head(name, x, y, *kept))
            return
        pair = self.weights(node, name, x, np.ascontiguousarray(weight), bias)
        y, low, high = self.result(node)
        self.operators.append(Linear(name, x, y, *pair, low, high))

    def add(self, node: fx.Node) -> None:
        a, b = arguments(node)[:2]
        if not isinstance(b, fx.Node) or node.kwargs.get("alpha", 1) != 1:
            raise self.lacks(node, "the target lacks sums with a number or a factor")
        names = [self.source(one, node) for one in (a, b)]
        if self.tensors[names[0]].shape != self.tensors[names[1]].shape:
            raise self.lacks(node, "the target lacks sums of tensors of different shapes")
        y, low, high = self.result(node)
        self.operators.append(Add(node.name, names[0], names[1], y, low, high))

    def mean(self, node: fx.Node) -> None:
        x = self.source(arguments(node)[0], node)
        shape, axes = self.tensors[x].shape, {axis % 4 for axis in arguments(node)[1]}
        if len(shape) != 3 or axes != {2, 3}:
            raise self.lacks(node, "the target lacks means but those over height and width")
        pooled = f"{node.name}.mean"
        self.tensors[pooled] = Tensor(pooled, (1, 1, shape[2]), "int8", *_scale_and_zero(*self.captured.ranges[node]))
        self.operators.append(AveragePool(node.name, x, pooled, (shape[0], shape[1]), (1, 1)))
        self.names[node] = pooled
        if len(node.meta["val"].shape) == 2:
            self.names[node] = self.tensor(node, like=pooled)
            self.operators.append(Flatten(f"{node.name}.flatten", pooled, self.names[node]))

    def pool(self, node: fx.Node) -> None:
        x, kernel, stride, padding, ceil, _, divisor = (*arguments(node), *_POOL_DEFAULTS[len(arguments(node)) :])
        x = self.source(x, node)
        kernel, stride = _pair(kernel), _pair(stride or kernel)
        if any(_pair(padding)) or ceil or divisor is not None:
            raise self.lacks(node, "the target lacks mean pooling with padding, ceil_mode or a divisor")
        y, low, high = self.result(node)
        self.operators.append(AveragePool(node.name, x, y, kernel, stride, low, high))

    def clamp(self, node: fx.Node) -> None:
        x = self.source(arguments(node)[0], node)
        y = self.names[node] = self.tensor(node, like=x)
        self.operators.append(Clamp(node.name, x, y, *self.bounds(node, y)))

    def flatten(self, node: fx.Node) -> None:
        x = self.source(arguments(node)[0], node)
        given, made = arguments(node)[0].meta["val"].shape, node.meta["val"].shape
        if tuple(given) == tuple(made):
            self.names[node] = x
            return
        if len(made) != 2 or made[1] != prod(given[1:]):
            raise self.lacks(node, f"the target lacks a reshape of {tuple(given)} to {tuple(made)}")
        y = self.names[node] = self.tensor(node, like=x)
        if len(given) == 4:
            self.planes[y] = tuple(given[1:])
        self.operators.append(Flatten(node.name, x, y))

    def same(self, node: fx.Node) -> None:
        self.names[node] = self.source(arguments(node)[0], node)


_getitem = operator.getitem
_POOL_DEFAULTS: tuple[Any, ...] = (None, None, (), 0, False, True, None)

RULES: dict[Any, Rule] = {
    aten.convolution.default: _Quantizer.convolution,
    aten.addmm.default: _Quantizer.linear,
    aten.mm.default: _Quantizer.linear,
    aten.add.Tensor: _Quantizer.add,
    aten.mean.dim: _Quantizer.mean,
    aten.avg_pool2d.default: _Quantizer.pool,
    **dict.fromkeys(BOUNDS, _Quantizer.clamp),
    **dict.fromkeys((aten.reshape.default, aten.view.default, aten._unsafe_view.default), _Quantizer.flatten),
    **dict.fromkeys(SAME, _Quantizer.same),
}
"""What becomes of each operator; the rest the target lacks."""


def arguments(node: fx.Node) -> tuple[Any, ...]:
    """What a node is called with."""
    return node.args


def _result(graph: fx.Graph) -> fx.Node:
    (values,) = arguments(next(node for node in graph.nodes if node.op == "output"))
    if len(values) != 1 or not isinstance(values[0], fx.Node):
        raise QuantizeError("the model returns more than its logits", hint="a module around it can return them alone")
    return values[0]


def _limits(node: fx.Node) -> float | None:
    """The upper bound of a ReLU, infinity or a number; None: it is no ReLU."""
    if node.target is aten.relu.default:
        return float("inf")
    defaults: tuple[Any, ...] = (-1.0, 1.0) if node.target is aten.hardtanh.default else (None, None)
    given = arguments(node)[1:]
    low, high = (*given, *defaults[len(given) :])
    return None if low != 0 else float("inf") if high is None else float(high)


def _operator(node: fx.Node) -> str:
    """An operator by ATen's name, and by that of the program's function that calls it."""
    return f"{node.target} (of {node.meta.get('from', node.name)})"


def _pair(value: Any) -> tuple[int, int]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return (values[0], values[-1]) if values else (0, 0)


def _scale_and_zero(low: float, high: float) -> tuple[float, int]:
    """The int8 form of a range, which always holds 0 exactly."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = max((high - low) / (HIGH - LOW), 1e-8)
    return scale, int(np.clip(round(LOW - low / scale), LOW, HIGH))
