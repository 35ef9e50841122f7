"""Computes attention, layer norm, tables and adapters in torch, forward and backward, bit for bit as generated C."""

from __future__ import annotations

import numpy as np
import torch

from smelt.tiny.graph import MAX_PROBABILITY, AddConstant, Attention, Layer, LayerNorm, Lookup, sources
from smelt.tiny.program import Call, adapter_names
from smelt.tiny.rescale import adapter_factors, add_scales, dequantize_scale, norm_numbers, score_scale, value_scale
from smelt.tiny.running import Run, rule, terms_in_order
from smelt.tiny.simulate_backward import update
from smelt.tiny.simulate_forward import centred, exponential, requantize

# -- functions of one value ----------------------------------------------------------------------------------------


@rule("add_constant")
def _add_constant(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, AddConstant)
    of_x, of_table = add_scales(run.graph, op)
    y = run.graph.tensors[op.y]
    table = torch.from_numpy(np.array(op.table.data)).float().reshape(y.shape) * of_table
    x = centred(run, call.reads[0], op.x).reshape(-1, *y.shape).float()
    requantize(run, call, x * of_x + table, y, op.low, op.high)


@rule("lookup")
def _lookup(run: Run, call: Call) -> None:
    assert isinstance(call.op, Lookup)
    table = torch.from_numpy(np.array(call.op.table.data))
    run.values[call.writes[0]] = table[run.values[call.reads[0]].long() + 128]


@rule("lookup_backward")
def _lookup_backward(run: Run, call: Call) -> None:
    assert isinstance(call.op, Lookup)
    g, x = (run.values[name] for name in call.reads)
    slopes = torch.from_numpy(np.array(call.op.slopes.data))
    run.values[call.writes[0]] = g * slopes[x.long() + 128].reshape(g.shape)


# -- layer norm ----------------------------------------------------------------------------------------------------


def reciprocal_root(v: torch.Tensor) -> torch.Tensor:
    """`tiny_rsqrt`: 1 / sqrt(v) for v > 0, float32."""
    r = (0x5F3759DF - (v.view(torch.int32) >> 1)).view(torch.float32)
    half = v * 0.5
    for _ in range(4):
        r = r * (1.5 - half * r * r)
    return r


def _units(run: Run, op: LayerNorm, name: str, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The input normalized to mean 0 and variance 1 at each position, (n, positions, channels), and the reciprocal of
    each standard deviation.
    """
    share = torch.tensor(1.0 / channels)
    epsilon, _, _ = norm_numbers(run.graph, op)
    x = centred(run, name, op.x).reshape(len(run.values[name]), -1, channels)
    mean = x.sum(-1, keepdim=True).float() * share
    d = x.float() - mean
    squares = terms_in_order((d[..., c : c + 1] * d[..., c : c + 1] for c in range(channels)), torch.zeros(()))
    rate = reciprocal_root(squares * share + epsilon)
    return d * rate, rate


@rule("layer_norm")
def _layer_norm(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, LayerNorm)
    y = run.graph.tensors[op.y]
    _, gain, shift = (torch.as_tensor(one) for one in norm_numbers(run.graph, op))
    unit, _ = _units(run, op, call.reads[0], y.channels)
    requantize(run, call, (unit * gain + shift).reshape(-1, *y.shape), y, op.low, op.high)


@rule("layer_norm_backward")
def _layer_norm_backward(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, LayerNorm)
    channels = run.graph.tensors[op.x].channels
    unit, rate = _units(run, op, call.reads[1], channels)
    gradient = run.values[call.reads[0]]
    g = gradient.reshape(unit.shape) * torch.from_numpy(norm_numbers(run.graph, op)[1])
    share, columns, zero = torch.tensor(1.0 / channels), range(channels), torch.zeros(())
    total = terms_in_order((g[..., c : c + 1] for c in columns), zero) * share
    along = terms_in_order((g[..., c : c + 1] * unit[..., c : c + 1] for c in columns), zero) * share
    run.values[call.writes[0]] = ((g - total - unit * along) * rate).reshape(gradient.shape)


# -- attention -----------------------------------------------------------------------------------------------------


def _heads(run: Run, op: Attention, which: int, name: str) -> torch.Tensor:
    """One of q, k and v, centred, float64 (n, heads, positions, channels of a head)."""
    tensor = run.graph.tensors[sources(op)[which]]
    width = op.width if which < 2 else run.graph.tensors[op.y].channels // op.heads
    x = centred(run, name, tensor.name).reshape(len(run.values[name]), -1, tensor.channels)
    start = op.starts[which]
    return x[..., start : start + op.heads * width].unflatten(-1, (op.heads, width)).transpose(1, 2)


def _weights(run: Run, op: Attention, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The weights of attention before division by their sum: integers as float32, (n, heads, queries, keys)."""
    scores = (q @ k.transpose(2, 3)).float() * score_scale(run.graph, op)
    return (exponential(scores - scores.max(-1, keepdim=True).values) * float(MAX_PROBABILITY)).round()


@rule("attention")
def _attention(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, Attention)
    q, k, v = (_heads(run, op, which, name) for which, name in enumerate(call.reads))
    weights, y = _weights(run, op, q, k), run.graph.tensors[op.y]
    each = torch.tensor(value_scale(run.graph, op)) / weights.sum(-1, keepdim=True)
    scaled = (weights.double() @ v).float() * each
    requantize(run, call, scaled.transpose(1, 2).reshape(-1, *y.shape), y, op.low, op.high)


@rule("attention_backward")
def _attention_backward(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, Attention)
    q, k, v = (_heads(run, op, which, name) for which, name in enumerate(call.reads[1:]))
    weights, of_value, zero = _weights(run, op, q, k), value_scale(run.graph, op), torch.zeros(())
    q, k, v = q.float(), k.float(), v.float()
    heads, queries, width = q.shape[1:]
    wide, keys = v.shape[3], k.shape[2]
    g = run.values[call.reads[0]].reshape(1, queries, heads, wide).transpose(1, 2)
    p = weights / weights.sum(-1, keepdim=True)
    ds = terms_in_order((g[..., d : d + 1] * v[:, :, None, :, d] for d in range(wide)), zero) * of_value
    mean = terms_in_order((p[..., j : j + 1] * ds[..., j : j + 1] for j in range(keys)), zero)
    ds, p = p * (ds - mean) * score_scale(run.graph, op), p * of_value
    rows, columns = range(queries), range(keys)
    gq = terms_in_order((ds[..., j : j + 1] * k[:, :, j : j + 1] for j in columns), zero)
    gk = terms_in_order((ds[:, :, i, :, None] * q[:, :, i : i + 1] for i in rows), zero)
    gv = terms_in_order((p[:, :, i, :, None] * g[:, :, i : i + 1] for i in rows), zero)
    made = {name: torch.zeros(1, *run.program.values[name].shape) for name in call.writes}
    for which, gradient in enumerate((gq, gk, gv)):
        name = f"d {op.name}.{sources(op)[which]}"
        if name in made:
            flat, start = gradient.transpose(1, 2).flatten(2), op.starts[which]
            into = made[name].view(1, -1, made[name].shape[-1])[..., start : start + flat.shape[-1]]
            into += flat
    run.values.update(made)


# -- adapters ------------------------------------------------------------------------------------------------------


def _positions(run: Run, op: Layer, name: str) -> torch.Tensor:
    """A layer's input, centred, float32 (n, positions, inputs)."""
    return centred(run, name, op.x).reshape(len(run.values[name]), -1, op.inputs).float()


@rule("adapter_down")
def _adapter_down(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, Layer)
    x, down = _positions(run, op, call.reads[0]), run.state[adapter_names(op)[0]]
    total = terms_in_order((x[..., i : i + 1] * down[:, i] for i in range(op.inputs)), torch.zeros(()))
    run.values[call.writes[0]] = total * dequantize_scale(run.graph.tensors[op.x])


@rule("adapter_hidden")
def _adapter_hidden(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, Layer)
    up, factors = run.state[adapter_names(op)[1]], torch.from_numpy(adapter_factors(run.graph, op))
    g = run.values[call.reads[0]].reshape(1, -1, op.outputs) * factors
    run.values[call.writes[0]] = terms_in_order((g[..., o : o + 1] * up[o] for o in range(op.outputs)), torch.zeros(()))


@rule("adapter_backward")
def _adapter_backward(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, Layer)
    g, hidden = (run.values[name] for name in call.reads)
    down = run.state[adapter_names(op)[0]]
    total = terms_in_order((hidden[..., k : k + 1] * down[k] for k in range(len(down))), torch.zeros(()))
    run.values[call.writes[0]] = g + total.reshape(g.shape) * dequantize_scale(run.graph.tensors[op.x])


@rule("update_up")
def _update_up(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, Layer)
    hidden, factors = run.values[call.reads[1]][0], torch.from_numpy(adapter_factors(run.graph, op))
    g = run.values[call.reads[0]].reshape(-1, op.outputs)
    total = terms_in_order((g[p, :, None] * hidden[p] for p in range(len(g))), torch.zeros(()))
    update(run, adapter_names(op)[1], total * factors[:, None], call.label)


@rule("update_down")
def _update_down(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, Layer)
    g, x = run.values[call.reads[0]][0], _positions(run, op, call.reads[1])[0]
    total = terms_in_order((g[p, :, None] * x[p] for p in range(len(g))), torch.zeros(()))
    update(run, adapter_names(op)[0], total * dequantize_scale(run.graph.tensors[op.x]), call.label)
