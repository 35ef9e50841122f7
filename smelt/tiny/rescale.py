"""The float32 factors that convert between the scales of tensors; computed only here, for both the simulation and the
C.
"""

from __future__ import annotations

import numpy as np

from smelt.tiny.graph import (
    Add,
    AddConstant,
    Attention,
    AveragePool,
    Concat,
    Int8Graph,
    Layer,
    LayerNorm,
    Multiply,
    Tensor,
)


def accumulator_scales(graph: Int8Graph, op: Layer) -> np.ndarray:
    """The factors from the accumulator to the result: scale of x * scale of w / scale of y, float32 for each output
    channel.
    """
    x, y = graph.tensors[op.x], graph.tensors[op.y]
    assert op.weight.scales is not None
    return np.asarray(x.scale * op.weight.scales.astype(np.float64) / y.scale, np.float32)


def add_scales(graph: Int8Graph, op: Add | AddConstant) -> tuple[float, float]:
    """The scale of each operand divided by the scale of the sum."""
    y = graph.tensors[op.y].scale
    a, b = (op.a, op.b) if isinstance(op, Add) else (op.x, None)
    of_b = op.scale if isinstance(op, AddConstant) else graph.tensors[str(b)].scale
    return float(np.float32(graph.tensors[a].scale / y)), float(np.float32(of_b / y))


def product_scale(graph: Int8Graph, op: Multiply) -> float:
    """The factor from the int8 product to the result."""
    a, b, y = (graph.tensors[name].scale for name in (op.a, op.b, op.y))
    return float(np.float32(a * b / y))


def concat_scales(graph: Int8Graph, op: Concat) -> list[float]:
    """The scale of each operand divided by the scale of the result."""
    return [float(np.float32(graph.tensors[name].scale / graph.tensors[op.y].scale)) for name in op.xs]


def score_scale(graph: Int8Graph, op: Attention) -> float:
    """The factor from the int8 product of q and k to a score in real values."""
    return float(np.float32(graph.tensors[op.q].scale * graph.tensors[op.k].scale * op.scale))


def value_scale(graph: Int8Graph, op: Attention) -> float:
    """The scale of v divided by the scale of the result."""
    return float(np.float32(graph.tensors[op.v].scale / graph.tensors[op.y].scale))


def norm_numbers(graph: Int8Graph, op: LayerNorm) -> tuple[float, np.ndarray, np.ndarray]:
    """Epsilon divided by the squared scale of x; gain and shift divided by the scale of y, float32."""
    x, y = graph.tensors[op.x].scale, graph.tensors[op.y].scale
    gain, shift = (one.data.astype(np.float64) / y for one in (op.gain, op.shift))
    return float(np.float32(op.epsilon / x**2)), gain.astype(np.float32), shift.astype(np.float32)


def adapter_factors(graph: Int8Graph, op: Layer) -> np.ndarray:
    """The factors from the gradient of an accumulator to that of the real result: float32 for each output channel."""
    assert op.weight.scales is not None
    return (1.0 / (op.weight.scales.astype(np.float64) * graph.tensors[op.x].scale)).astype(np.float32)


def pool_scale(graph: Int8Graph, op: AveragePool) -> float:
    """The factor from the sum over a window to the mean, between the scales of x and y."""
    area = op.kernel[0] * op.kernel[1]
    return float(np.float32(graph.tensors[op.x].scale / (area * graph.tensors[op.y].scale)))


def dequantize_scale(tensor: Tensor) -> float:
    """The scale of a tensor, rounded to float32."""
    return float(np.float32(tensor.scale))


def bounds(y: Tensor, low: int, high: int) -> tuple[float, float]:
    """The bounds to which a result is clamped before its zero is added."""
    return float(low - y.zero), float(high - y.zero)


def gradient_factors(graph: Int8Graph, op: Layer, scaled: bool) -> tuple[np.ndarray, np.ndarray]:
    """The factors for the gradients of a layer's weights and of its bias: two arrays, float32 for each output channel.

    Gradients are those of the int8 weights and the int32 bias. Quantisation-aware scaling (QAS, arXiv 2206.15472)
    divides them by the squares of their scales, which makes SGD that of the real parameters at the same rate.
    """
    assert op.weight.scales is not None
    of_weight = op.weight.scales.astype(np.float64)
    of_bias = of_weight * graph.tensors[op.x].scale
    if not scaled:
        return np.ones(len(of_weight), np.float32), np.ones(len(of_weight), np.float32)
    return (of_weight**-2).astype(np.float32), (of_bias**-2).astype(np.float32)
