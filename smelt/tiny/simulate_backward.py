"""The computations of the kernels of a training step in torch, for one image: values have a batch of 1."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from smelt.tiny.graph import MAX_BIAS, Add, AddConstant, AveragePool, Conv, Head, Layer, Linear
from smelt.tiny.program import Call, gradient_name, latent_name, velocity_name
from smelt.tiny.rescale import accumulator_scales, add_scales, dequantize_scale, gradient_factors, pool_scale
from smelt.tiny.running import Run, rule, terms_in_order
from smelt.tiny.simulate_forward import exponential, features

# -- functions -----------------------------------------------------------------------------------------------------


def logarithm(x: torch.Tensor) -> torch.Tensor:
    """The logarithm as `tiny_log` computes it, for x >= 1, float32."""
    bits = x.view(torch.int32)
    exponent = ((bits >> 23) - 127).float()
    m = ((bits & 0x7FFFFF) | 0x3F800000).view(torch.float32)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = torch.full_like(z, 0.0909090909)
    for term in (0.111111111, 0.142857143, 0.2, 0.333333333, 1.0):
        p = p * z + term
    return exponent * 0.693147181 + 2.0 * s * p


def fractions(steps: int, salt: int, count: int) -> torch.Tensor:
    """The random numbers from 0 to 1 that `tiny_fraction` gives for the first `count` indices, float32."""
    index = np.arange(count, dtype=np.uint32)
    with np.errstate(over="ignore"):
        h = (index * np.uint32(0x9E3779B1)) ^ np.uint32((steps * 0x85EBCA6B + salt) & 0xFFFFFFFF)
        h = (h ^ h >> np.uint32(16)) * np.uint32(0x85EBCA6B)
        h = (h ^ h >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    return torch.from_numpy((h >> np.uint32(8)).astype(np.float32)) * (1.0 / 16777216.0)


# -- updates -------------------------------------------------------------------------------------------------------


def update(run: Run, name: str, gradient: torch.Tensor, label: int) -> None:
    """Update a parameter by its gradient, or store the gradient under the option `held`."""
    if gradient_name(name) in run.program.values:
        run.values[gradient_name(name)] = gradient
    else:
        _UPDATES[run.state[name].dtype](run, name, gradient, label)


@rule("apply")
def _apply(run: Run, call: Call) -> None:
    (name,) = call.updates
    _UPDATES[run.state[name].dtype](run, name, run.values[call.reads[0]], call.label)


def change(run: Run, name: str, gradient: torch.Tensor) -> torch.Tensor:
    """The amount that is subtracted from a parameter: rate times gradient or, with momentum, times velocity."""
    velocity = velocity_name(name)
    if velocity in run.state:
        gradient = run.state[velocity] * run.program.options.momentum + gradient
        run.state[velocity] = gradient
    return gradient * run.rate


def bounded(v: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """`v` clamped to the bounds as `tiny_bounded` does."""
    return torch.where(v > low, torch.where(v < high, v, high), low)


def to_integers(run: Run, v: torch.Tensor, label: int) -> torch.Tensor:
    """`v` rounded to integers as `tiny_whole` does, by the rounding option of the step."""
    options = run.program.options
    if options.rounding != "stochastic":
        return v.round()
    below = v.floor()
    drawn = fractions(run.steps, options.salt(label), v.numel()).reshape(v.shape)
    return torch.where(drawn < v - below, below + 1.0, below)


def update_int8(run: Run, name: str, gradient: torch.Tensor, label: int) -> None:
    """Update int8 weights."""
    latent = latent_name(name)
    old = run.state[latent] if latent in run.state else run.state[name].float()
    v = bounded(old - change(run, name, gradient), -127.0, 127.0)
    if latent in run.state:
        run.state[latent] = v
    run.state[name] = to_integers(run, v, label).to(torch.int8)


def update_int32(run: Run, name: str, gradient: torch.Tensor, label: int) -> None:
    """Update int32 biases."""
    taken = bounded(change(run, name, gradient), -536870912.0, 536870912.0)
    inner = (taken > -4194304.0) & (taken < 4194304.0)
    rounded = torch.where(inner, to_integers(run, torch.where(inner, taken, 0.0), label), taken.trunc())
    run.state[name] = (run.state[name].long() - rounded.long()).clamp(-MAX_BIAS, MAX_BIAS).to(torch.int32)


def update_float(run: Run, name: str, gradient: torch.Tensor, label: int) -> None:
    """Update float32 parameters."""
    run.state[name] = run.state[name] - change(run, name, gradient)


_UPDATES = {torch.int8: update_int8, torch.int32: update_int32, torch.float32: update_float}


# -- loss and classifier -------------------------------------------------------------------------------------------


@rule("loss")
def _loss(run: Run, call: Call) -> None:
    logits = run.values[call.reads[0]]
    most = logits.max()
    each = exponential(logits - most)
    total = terms_in_order(each[0], torch.zeros(()))
    run.loss = logarithm(total) - (logits[0, run.label] - most)
    hot = functional.one_hot(torch.tensor([run.label]), logits.shape[1]).float()
    run.values[call.writes[0]] = each / total - hot


@rule("head_backward")
def _head_backward(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, Head)
    g, weight = run.values[call.reads[0]], run.parameter(op.weight)
    total = terms_in_order((g[:, k : k + 1] * weight[k] for k in range(len(weight))), torch.zeros(1, weight.shape[1]))
    run.values[call.writes[0]] = total * dequantize_scale(run.graph.tensors[op.x])


@rule("head_update")
def _head_update(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, Head)
    g, x = run.values[call.reads[0]][0], features(run, op, call.reads[1])[0]
    update(run, op.weight.name, g[:, None] * x, call.label)
    update(run, op.bias.name, g, call.label)


# -- backward ------------------------------------------------------------------------------------------------------


@rule("unclamp")
def _unclamp(run: Run, call: Call) -> None:
    g, mask = (run.values[name] for name in call.reads)
    assert call.op is not None
    g = g.reshape(1, *run.graph.tensors[call.op.y].shape)  # a flattened tensor's gradient has the flattened shape
    if isinstance(call.op, Layer):
        g = g * torch.from_numpy(accumulator_scales(run.graph, call.op))
    run.values[call.writes[0]] = torch.where(mask.reshape(g.shape), g, 0.0)


@rule("scale_a")
@rule("scale_b")
def _scale(run: Run, call: Call) -> None:
    assert isinstance(call.op, (Add, AddConstant))
    scale = add_scales(run.graph, call.op)[call.kernel == "scale_b"]
    run.values[call.writes[0]] = run.values[call.reads[0]] * scale


@rule("accumulate")
def _accumulate(run: Run, call: Call) -> None:
    a, b = (run.values[name] for name in call.reads)
    run.values[call.writes[0]] = a + b.reshape(a.shape)


@rule("pool_backward")
def _pool_backward(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, AveragePool)
    y, x = run.graph.tensors[op.y].shape, run.graph.tensors[op.x].shape
    g = run.values[call.reads[0]].reshape(y) * pool_scale(run.graph, op)
    total = torch.zeros(x)
    for i in range(y[0]):
        for j in range(y[1]):
            down, right = i * op.stride[0], j * op.stride[1]
            total[down : down + op.kernel[0], right : right + op.kernel[1]] += g[i, j]
    run.values[call.writes[0]] = total[None]


@rule("conv_backward")
def _conv_backward(run: Run, call: Call) -> None:
    op = call.op
    g, weight = run.values[call.reads[0]], run.parameter(op.weight).float()  # type: ignore[union-attr]
    if isinstance(op, Linear):
        terms = (g[:, o : o + 1] * weight[o] for o in range(weight.shape[0]))
        run.values[call.writes[0]] = terms_in_order(terms, torch.zeros(1, weight.shape[1]))
        return
    assert isinstance(op, Conv)
    total = _Spread(run, op)
    for u in range(op.kernel[0]):
        for v in range(op.kernel[1]):
            at = total.under(u, v)
            for o in range(op.outputs):
                at += g[0, ..., o : o + 1] * weight[o, u, v]
    run.values[call.writes[0]] = total.inner()


@rule("depthwise_backward")
def _depthwise_backward(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, Conv)
    g, weight = run.values[call.reads[0]][0], run.parameter(op.weight).float()
    total = _Spread(run, op)
    for u in range(op.kernel[0]):
        for v in range(op.kernel[1]):
            total.under(u, v).add_(g * weight[u, v])
    run.values[call.writes[0]] = total.inner()


@rule("quantize_gradient")
def _quantize_gradient(run: Run, call: Call) -> None:
    g = run.values[call.reads[0]]
    most = torch.where(g.abs() > 0, g.abs(), 0.0).max()
    some = most > 1e-30
    each = torch.tensor(127.0) / most  # a tensor: torch multiplies by the reciprocal of a number, which rounds twice
    v = bounded(g * torch.where(some, each, 0.0), -127.0, 127.0)
    below = v.floor()
    drawn = fractions(run.steps, run.program.options.salt(call.label), v.numel()).reshape(v.shape)
    run.values[call.writes[0]] = torch.where(drawn < v - below, below + 1.0, below).to(torch.int8)
    run.values[call.writes[1]] = torch.where(some, most / 127.0, 0.0)


@rule("conv_backward_int8")
@rule("depthwise_backward_int8")
def _conv_backward_int8(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, Layer)
    q, scale = (run.values[name] for name in call.reads)
    weight = run.parameter(op.weight).double()
    if isinstance(op, Linear):
        sums = q.double() @ weight
    else:
        weight = weight.permute(2, 0, 1)[:, None] if op.depthwise else weight.permute(0, 3, 1, 2)
        height, width, _ = run.graph.tensors[op.x].shape
        groups = op.outputs if op.depthwise else 1
        whole = functional.conv_transpose2d(q.double().permute(0, 3, 1, 2), weight, None, op.stride, groups=groups)
        left, _, top, _ = op.border
        ends = (width + left - whole.shape[3], height + top - whole.shape[2])  # the last rows may reach no window
        sums = functional.pad(whole, (-left, ends[0], -top, ends[1])).permute(0, 2, 3, 1)
    run.values[call.writes[0]] = sums.float() * scale


class _Spread:
    """The gradient of a convolution's input, with its border."""

    def __init__(self, run: Run, op: Conv) -> None:
        (height, width, channels), self.y = run.graph.tensors[op.x].shape, run.graph.tensors[op.y].shape
        self.op, self.shape = op, (height, width)
        self.total = torch.zeros(*op.padded(height, width), channels)

    def under(self, u: int, v: int) -> torch.Tensor:
        """The view of the elements at the tap (u, v) of the window, one for each position of the result."""
        stride, (height, width, _) = self.op.stride, self.y
        return self.total[u : u + stride * height : stride, v : v + stride * width : stride][:height, :width]

    def inner(self) -> torch.Tensor:
        """The gradient without its border."""
        (top, left), (height, width) = self.op.padding, self.shape
        return self.total[None, top : top + height, left : left + width].clone()


# -- gradients of parameters, applied at once ----------------------------------------------------------------------


@rule("update_bias")
def _update_bias(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, Layer)
    g = run.values[call.reads[0]].reshape(-1, op.outputs)
    factors = torch.from_numpy(gradient_factors(run.graph, op, run.program.options.scaled)[1])
    update(run, op.bias.name, terms_in_order(g, torch.zeros(op.outputs)) * factors, call.label)


@rule("update_weight")
@rule("update_weight_int8")
@rule("update_depthwise")
@rule("update_depthwise_int8")
def _update_weight(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, Layer)
    g, x = (run.values[name][0] for name in call.reads[:2])
    if isinstance(op, Linear):
        g, x = g.reshape(1, 1, -1), x.reshape(1, 1, -1)
    exact = g.dtype == torch.int8  # float64 represents sums of int8 products exactly
    g = g.double() if exact else g
    x = x.to(g.dtype) - run.graph.tensors[op.x].zero
    factors = torch.from_numpy(gradient_factors(run.graph, op, run.program.options.scaled)[0])
    if op.depthwise:
        channels = run.program.trained[op.weight.name].channels
        chosen = list(channels if channels is not None else range(op.outputs))
        g, factors = g[..., chosen], factors[chosen]
    else:
        g, factors = g[..., None, None, None], factors[:, None, None, None]
    stride = op.stride
    x = functional.pad(x, (0, 0, *op.border)) if isinstance(op, Conv) else x
    shape = run.state[op.weight.name].shape
    total = torch.zeros(shape if op.depthwise else (shape[0], *op.kernel, shape[-1]), dtype=g.dtype)
    for i in range(g.shape[0]):
        for j in range(g.shape[1]):
            window = x[i * stride : i * stride + op.kernel[0], j * stride : j * stride + op.kernel[1]]
            total = total + g[i, j] * window
    total = total.float() * run.values[call.reads[2]] if exact else total
    update(run, op.weight.name, (total * factors).reshape(shape), call.label)
