"""The computations of the kernels of the forward in torch."""

from __future__ import annotations

import torch
from torch.nn import functional

from smelt.tiny.graph import Add, AveragePool, Clamp, Conv, Head, Layer, Linear, Tensor
from smelt.tiny.program import Call, adapter_names
from smelt.tiny.rescale import accumulator_scales, add_scales, bounds, dequantize_scale, pool_scale
from smelt.tiny.running import Run, rule, terms_in_order


def requantize(run: Run, call: Call, scaled: torch.Tensor, y: Tensor, low: int, high: int) -> None:
    """Write an int8 result, and its clamp mask if the call keeps one. `scaled`: float32, in steps of y's scale."""
    least, most = bounds(y, low, high)
    run.values[call.writes[0]] = to_int8(scaled, y, low, high)
    if len(call.writes) > 1:
        run.values[call.writes[1]] = (scaled >= least) & (scaled <= most)


def to_int8(scaled: torch.Tensor, y: Tensor, low: int, high: int) -> torch.Tensor:
    """float32 in steps of y's scale -> int8, bounded, halves to even."""
    least, most = bounds(y, low, high)
    return (scaled.clamp(least, most).round() + y.zero).to(torch.int8)


def exponential(x: torch.Tensor) -> torch.Tensor:
    """e^x for x <= 0, float32, as `tiny_exp` computes it."""
    x = torch.where(x > -87.0, x, -87.0)
    n = (x * 1.44269504).round()
    r = (x - n * 0.693359375) - n * -2.12194440e-4
    p = torch.full_like(r, 0.00138888889)
    for term in (0.00833333333, 0.0416666667, 0.166666667, 0.5, 1.0, 1.0):
        p = p * r + term
    return p * ((n.to(torch.int32) + 127) << 23).view(torch.float32)


def centred(run: Run, name: str, tensor: str) -> torch.Tensor:
    """q - zero of a value, float64."""
    return run.values[name].double() - run.graph.tensors[tensor].zero


def convolved(run: Run, op: Conv, x: torch.Tensor) -> torch.Tensor:
    """float32(accumulator) * scale of a convolution of centred x, float64 (n, height, width, channels)."""
    weight = run.parameter(op.weight).double()
    weight = weight.permute(2, 0, 1)[:, None] if op.depthwise else weight.permute(0, 3, 1, 2)
    groups = weight.shape[0] if op.depthwise else 1
    image = functional.pad(x.permute(0, 3, 1, 2), op.border)
    sums = functional.conv2d(image, weight, None, op.stride, groups=groups).permute(0, 2, 3, 1)
    sums = sums + run.parameter(op.bias).double()
    return sums.float() * torch.from_numpy(accumulator_scales(run.graph, op))


@rule("conv")
@rule("depthwise")
def _conv(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, Conv)
    scaled = convolved(run, op, centred(run, call.reads[0], op.x))
    requantize(run, call, adapted(run, call, op, scaled), run.graph.tensors[op.y], op.low, op.high)


def adapted(run: Run, call: Call, op: Layer, scaled: torch.Tensor) -> torch.Tensor:
    """A layer's result plus that of its adapter, if it has one."""
    up = run.state.get(adapter_names(op)[1])
    if up is None:
        return scaled
    hidden = run.values[call.reads[-1]]
    terms = (hidden[..., k : k + 1] * up[:, k] for k in range(up.shape[1]))
    more = terms_in_order(terms, torch.zeros(*hidden.shape[:-1], len(up)))
    return scaled + more.reshape(scaled.shape) * (1.0 / run.graph.tensors[op.y].scale)


@rule("pointwise")
def _pointwise(run: Run, call: Call) -> None:
    op = call.op
    if isinstance(op, Conv):
        return _conv(run, call)
    assert isinstance(op, Linear)
    x = centred(run, call.reads[0], op.x).flatten(1)
    sums = x @ run.parameter(op.weight).double().T + run.parameter(op.bias).double()
    scaled = sums.float() * torch.from_numpy(accumulator_scales(run.graph, op))
    return requantize(run, call, adapted(run, call, op, scaled), run.graph.tensors[op.y], op.low, op.high)


@rule("expand_depthwise")
def _expand_depthwise(run: Run, call: Call) -> None:
    op, expand = call.op, call.expand
    assert isinstance(op, Conv) and expand is not None
    wide = run.graph.tensors[expand.y]
    scaled = convolved(run, expand, centred(run, call.reads[0], expand.x))
    between = to_int8(scaled, wide, expand.low, expand.high).double() - wide.zero
    requantize(run, call, convolved(run, op, between), run.graph.tensors[op.y], op.low, op.high)


@rule("stream")
def _stream(run: Run, call: Call) -> None:
    x = centred(run, call.reads[0], call.stages[0].x)
    for op in call.stages[:-1]:
        between = run.graph.tensors[op.y]
        x = to_int8(convolved(run, op, x), between, op.low, op.high).double() - between.zero
    last = call.stages[-1]
    requantize(run, call, convolved(run, last, x), run.graph.tensors[last.y], last.low, last.high)


@rule("gather")
def _gather(run: Run, call: Call) -> None:
    assert isinstance(call.op, Layer)
    channels = run.program.trained[call.op.weight.name].channels
    assert channels is not None
    x = run.values[call.reads[0]]
    shape = run.graph.tensors[call.op.x].shape
    run.values[call.writes[0]] = x.reshape(len(x), *shape)[..., list(channels)]


@rule("add")
def _add(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, Add)
    of_a, of_b = add_scales(run.graph, op)
    a = centred(run, call.reads[0], op.a).float() * of_a
    b = centred(run, call.reads[1], op.b).float() * of_b
    requantize(run, call, a + b, run.graph.tensors[op.y], op.low, op.high)


@rule("pool")
def _pool(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, AveragePool)
    x = centred(run, call.reads[0], op.x).permute(0, 3, 1, 2)
    area = op.kernel[0] * op.kernel[1]
    sums = (functional.avg_pool2d(x, op.kernel, op.stride) * area).round().permute(0, 2, 3, 1)
    requantize(run, call, sums.float() * pool_scale(run.graph, op), run.graph.tensors[op.y], op.low, op.high)


@rule("clamp")
def _clamp(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, Clamp)
    scaled = centred(run, call.reads[0], op.x).float()
    requantize(run, call, scaled, run.graph.tensors[op.y], op.low, op.high)


@rule("dequantize")
def _dequantize(run: Run, call: Call) -> None:
    y = run.graph.tensors[run.graph.output]
    given = centred(run, call.reads[0], run.graph.output).flatten(1)
    run.values[call.writes[0]] = given.float() * dequantize_scale(y)


def features(run: Run, op: Head, name: str) -> torch.Tensor:
    """The classifier's input in real values, float32 (n, features)."""
    x = run.graph.tensors[op.x]
    return (run.values[name].flatten(1).float() - x.zero) * dequantize_scale(x)


@rule("head")
def _head(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, Head)
    x, weight = features(run, op, call.reads[0]), run.parameter(op.weight)
    terms = [x[:, i : i + 1] * weight[:, i] for i in range(weight.shape[1])]
    run.values[call.writes[0]] = terms_in_order(terms, run.parameter(op.bias).expand(len(x), -1))
