"""The same network in float32, straightforwardly: as C with plain loops and a full update, and as a PyTorch module.

Neither is a part of the product: the first is what instruction counts are compared with, the second what memory is.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from smelt.base.text import Writer
from smelt.tiny.graph import Add, AveragePool, Conv, Flatten, Head, Int8Graph, Operator, Parameter, parameters
from smelt.tiny.render_c import KERNELS
from smelt.tiny.rendering import called, identifier, number

Bounds = tuple[float, float]


def bounds(graph: Int8Graph, op: Conv | Add) -> Bounds:
    """Between which real values an operator's result lies: those of ReLU6, or of the int8 range."""
    y = graph.tensors[op.y]
    return y.scale * (op.low - y.zero), y.scale * (op.high - y.zero)


def real(graph: Int8Graph, op: Operator, parameter: Parameter) -> np.ndarray:
    """A parameter in real values, float32."""
    data = parameter.data.astype(np.float32)
    if not isinstance(op, Conv):
        return data
    scales = np.asarray(op.weight.scales)
    if parameter is op.bias:
        return data * scales * np.float32(graph.tensors[op.x].scale)
    return data * (scales if op.depthwise else scales.reshape(-1, 1, 1, 1))


class FloatNet(nn.Module):
    """A graph of convolutions, sums, a global pool and a classifier in float32, for one image."""

    def __init__(self, graph: Int8Graph) -> None:
        super().__init__()
        self.graph = graph
        self.held = nn.ParameterDict(
            {
                identifier(one.name): torch.from_numpy(real(graph, op, one).copy())
                for op in graph.operators
                for one in parameters(op)
            }
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        values = {self.graph.input: image}
        for op in self.graph.operators:
            held = [self.held[identifier(one.name)] for one in parameters(op)]
            match op:
                case Conv():
                    weight = held[0].permute(2, 0, 1)[:, None] if op.depthwise else held[0].permute(0, 3, 1, 2)
                    groups = op.outputs if op.depthwise else 1
                    made = functional.conv2d(values[op.x], weight, held[1], op.stride, op.padding, 1, groups)
                    values[op.y] = functional.hardtanh(made, *bounds(self.graph, op))
                case Add():
                    values[op.y] = functional.hardtanh(values[op.a] + values[op.b], *bounds(self.graph, op))
                case AveragePool():
                    values[op.y] = values[op.x].mean((2, 3), keepdim=True)
                case Flatten():
                    values[op.y] = values[op.x].flatten(1)
                case Head():
                    values[op.y] = functional.linear(values[op.x], *held)
        return values[self.graph.output]


def render(graph: Int8Graph) -> dict[str, str]:
    """C files of a full training step in float32: `float train_step(const float *image, int label, float rate)`."""
    w = Writer()
    w('#include "float_build.h"', "")
    for op in graph.operators:
        for one in parameters(op):
            data = real(graph, op, one).ravel()
            with w.block(f"float {identifier(one.name)}[{data.size}] = {{", "};"):
                texts = [number(value) for value in data]
                for start in range(0, len(texts), 16):
                    w(", ".join(texts[start : start + 16]) + ",")
            w(f"static float {_gradient(one.name)}[{data.size}];")
    for tensor in graph.tensors.values():
        value = _value(tensor.name)
        w(f"static float {value}[{tensor.elements}], {_gradient(value)}[{tensor.elements}];")
    with w.block("\nfloat train_step(const float *image, int label, float rate)\n{", "}"):
        size = graph.tensors[graph.input].elements
        w(f"for (int i = 0; i < {size}; i++) {_value(graph.input)}[i] = image[i];")
        w(*(_forward(graph, op) for op in graph.operators))
        for tensor in graph.tensors.values():
            w(called("zero", _gradient(_value(tensor.name)), tensor.elements))
        held = [one for op in graph.operators for one in parameters(op)]
        w(*(called("zero", _gradient(identifier(one.name)), one.data.size) for one in held))
        logits = _value(graph.output)
        w("float loss = " + called("tiny_loss", logits, graph.classes, "label", _gradient(logits)))
        w(*(_backward(graph, op) for op in reversed(graph.operators)))
        w(*(called("apply", identifier(one.name), _gradient(one.name), one.data.size, "rate") for one in held))
        w("return loss;")
    texts = {name: files("smelt.tiny").joinpath("native", name).read_text() for name in KERNELS}
    return {"model.c": w.text(), "float_build.h": Path(__file__).with_suffix(".h").read_text(), **texts}


def _value(tensor: str) -> str:
    return f"value_{identifier(tensor)}"


def _gradient(name: str) -> str:
    return f"gradient_{identifier(name)}"


def _shape(graph: Int8Graph, op: Operator) -> list[object]:
    """Kernel, stride, padding and bounds of a convolution."""
    assert isinstance(op, Conv)
    return [op.outputs, *op.kernel, op.stride, *op.padding, *map(number, bounds(graph, op))]


def _forward(graph: Int8Graph, op: Operator) -> str:
    y, held = graph.tensors[op.y], [identifier(one.name) for one in parameters(op)]
    match op:
        case Conv():
            x = graph.tensors[op.x].shape[: 2 if op.depthwise else 3]
            given = [_value(op.x), *x, *held, *_shape(graph, op), _value(op.y), *y.shape[:2]]
            return called("depthwise" if op.depthwise else "conv", *given)
        case Add():
            return called("add", _value(op.a), _value(op.b), y.elements, *map(number, bounds(graph, op)), _value(op.y))
        case AveragePool():
            return called("pool", _value(op.x), graph.tensors[op.x].elements // y.channels, y.channels, _value(op.y))
        case Flatten():
            return f"for (int i = 0; i < {y.elements}; i++) {_value(op.y)}[i] = {_value(op.x)}[i];"
        case Head():
            ends = "-3e38f, 3e38f"
            n = graph.tensors[op.x].elements
            return called("conv", _value(op.x), 1, 1, n, *held, y.elements, 1, 1, 1, 0, 0, ends, _value(op.y), 1, 1)
    raise AssertionError(f"{op.name} has no float form")


def _backward(graph: Int8Graph, op: Operator) -> str:
    y = graph.tensors[op.y]
    value, gradient = _value(op.y), _gradient(_value(op.y))
    held = [name for one in parameters(op) for name in (identifier(one.name), _gradient(one.name))]
    held = [*held[:2], *held[3:]]  # a bias has no part in the gradient of its input
    match op:
        case Conv():
            x = graph.tensors[op.x].shape[: 2 if op.depthwise else 3]
            given = [
                _value(op.x),
                _gradient(_value(op.x)),
                *x,
                *held,
                *_shape(graph, op),
                value,
                gradient,
                *y.shape[:2],
            ]
            return called("depthwise_backward" if op.depthwise else "conv_backward", *given)
        case Add():
            both = [_gradient(_value(name)) for name in (op.a, op.b)]
            return called("add_backward", *both, y.elements, *map(number, bounds(graph, op)), value, gradient)
        case AveragePool():
            positions = graph.tensors[op.x].elements // y.channels
            return called("pool_backward", _gradient(_value(op.x)), positions, y.channels, gradient)
        case Flatten():
            return f"for (int i = 0; i < {y.elements}; i++) {_gradient(_value(op.x))}[i] = {gradient}[i];"
        case Head():
            n, ends = graph.tensors[op.x].elements, "-3e38f, 3e38f"
            x = [_value(op.x), _gradient(_value(op.x)), 1, 1, n]
            return called("conv_backward", *x, *held, y.elements, 1, 1, 1, 0, 0, ends, value, gradient, 1, 1)
    raise AssertionError(f"{op.name} has no float form")
