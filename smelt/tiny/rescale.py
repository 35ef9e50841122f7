"""The float32 numbers by which results are brought to their scale: made here once, read by simulation and C alike."""

from __future__ import annotations

import numpy as np

from smelt.tiny.graph import Add, AveragePool, Int8Graph, Layer, Tensor


def accumulator_scales(graph: Int8Graph, op: Layer) -> np.ndarray:
    """scale of x * scale of w / scale of y for each output channel, float32."""
    x, y = graph.tensors[op.x], graph.tensors[op.y]
    assert op.weight.scales is not None
    return np.asarray(x.scale * op.weight.scales.astype(np.float64) / y.scale, np.float32)


def add_scales(graph: Int8Graph, op: Add) -> tuple[float, float]:
    """What a step of each operand is in steps of the sum."""
    y = graph.tensors[op.y].scale
    return float(np.float32(graph.tensors[op.a].scale / y)), float(np.float32(graph.tensors[op.b].scale / y))


def pool_scale(graph: Int8Graph, op: AveragePool) -> float:
    """What a sum over a window is in steps of the mean."""
    area = op.kernel[0] * op.kernel[1]
    return float(np.float32(graph.tensors[op.x].scale / (area * graph.tensors[op.y].scale)))


def dequantize_scale(tensor: Tensor) -> float:
    """A step of a tensor as a real value."""
    return float(np.float32(tensor.scale))


def bounds(y: Tensor, low: int, high: int) -> tuple[float, float]:
    """Within which a result is clamped before its zero is added."""
    return float(low - y.zero), float(high - y.zero)


def gradient_factors(graph: Int8Graph, op: Layer, scaled: bool) -> tuple[np.ndarray, np.ndarray]:
    """By what the gradients of a layer's weights and bias are multiplied, float32 for each output channel.

    Gradients are those of the int8 weights and the int32 bias. Quantisation-aware scaling (QAS, arXiv 2206.15472)
    divides them by the squares of their scales, which makes SGD that of the real parameters at the same rate.
    """
    assert op.weight.scales is not None
    of_weight = op.weight.scales.astype(np.float64)
    of_bias = of_weight * graph.tensors[op.x].scale
    if not scaled:
        return np.ones(len(of_weight), np.float32), np.ones(len(of_weight), np.float32)
    return (of_weight**-2).astype(np.float32), (of_bias**-2).astype(np.float32)
