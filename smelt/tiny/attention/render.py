"""The calls of the kernels of attention, layer norm, tables and adapters, as C."""

from __future__ import annotations

import numpy as np

from smelt.tiny.graph import MAX_PROBABILITY, AddConstant, Attention, Layer, LayerNorm, Lookup, sources
from smelt.tiny.program import Call, adapter_names, keys
from smelt.tiny.render_backward import sgd
from smelt.tiny.rendering import Rendering, called, identifier, number, rule
from smelt.tiny.rescale import adapter_factors, add_scales, dequantize_scale, norm_numbers, score_scale, value_scale


@rule("add_constant")
def _add_constant(r: Rendering, call: Call, at: int) -> str:
    op = call.op
    assert isinstance(op, AddConstant)
    (of_x, of_table), x = add_scales(r.graph, op), r.graph.tensors[op.x]
    args = [r.at(call.reads[0]), x.zero, number(of_x), r.parameter(op.table), 0, number(of_table), x.elements]
    return called("tiny_add", *args, r.at(call.writes[0]), r.result(op, call))


@rule("lookup")
def _lookup(r: Rendering, call: Call, at: int) -> str:
    op = call.op
    assert isinstance(op, Lookup)
    args = [r.at(call.reads[0]), r.parameter(op.table), r.graph.tensors[op.x].elements]
    return called("tiny_lookup", *args, r.at(call.writes[0]))


@rule("lookup_backward")
def _lookup_backward(r: Rendering, call: Call, at: int) -> str:
    op = call.op
    assert isinstance(op, Lookup)
    args = [*map(r.at, call.reads), r.parameter(op.slopes), r.graph.tensors[op.x].elements]
    return called("tiny_lookup_backward", *args, r.at(call.writes[0]))


def _norm(r: Rendering, op: LayerNorm) -> tuple[list[object], list[str]]:
    """The C arguments positions, channels, zero, share and epsilon; the C arrays gain and shift."""
    x = r.graph.tensors[op.x]
    epsilon, *pair = norm_numbers(r.graph, op)
    names = [r.constant(f"{op.name}.{kind}", one) for kind, one in zip(("gain", "shift"), pair, strict=True)]
    args = [x.elements // x.channels, x.channels, x.zero, number(float(np.float32(1.0 / x.channels))), number(epsilon)]
    return args, names


@rule("layer_norm")
def _layer_norm(r: Rendering, call: Call, at: int) -> str:
    op = call.op
    assert isinstance(op, LayerNorm)
    args, names = _norm(r, op)
    return called("tiny_layer_norm", r.at(call.reads[0]), *args, *names, r.at(call.writes[0]), r.result(op, call))


@rule("layer_norm_backward")
def _layer_norm_backward(r: Rendering, call: Call, at: int) -> str:
    op = call.op
    assert isinstance(op, LayerNorm)
    args, names = _norm(r, op)
    return called("tiny_layer_norm_backward", *map(r.at, call.reads), *args, names[0], r.at(call.writes[0]))


def _operands(r: Rendering, op: Attention, reads: tuple[str, ...]) -> list[object]:
    """The C arguments q, queries, k, v, keys, heads, width, wide, scale, most and value scale."""
    found = []
    for name, value, start in zip(sources(op), reads, op.starts, strict=True):
        tensor = r.graph.tensors[name]
        found.append(f"(tiny_operand){{{r.at(value)} + {start}, {tensor.channels}, {tensor.zero}}}")
    y = r.graph.tensors[op.y]
    scales = [number(score_scale(r.graph, op)), number(float(MAX_PROBABILITY)), number(value_scale(r.graph, op))]
    shape = [keys(r.graph, op), op.heads, op.width, y.channels // op.heads]
    return [found[0], y.elements // y.channels, *found[1:], *shape, *scales]


@rule("attention")
def _attention(r: Rendering, call: Call, at: int) -> str:
    op = call.op
    assert isinstance(op, Attention)
    result = [r.at(call.writes[0]), r.result(op, call), r.scratch(at, "float")]
    return called("tiny_attention", *_operands(r, op, call.reads), *result)


@rule("attention_backward")
def _attention_backward(r: Rendering, call: Call, at: int) -> str:
    op = call.op
    assert isinstance(op, Attention)
    names = [f"d {op.name}.{source}" for source in sources(op)]
    cleared = [f"memset({r.at(name)}, 0, {r.program.values[name].bytes});" for name in call.writes]
    made = [
        f"{r.at(name)} + {start}" if name in call.writes else "0" for name, start in zip(names, op.starts, strict=True)
    ]
    row = r.scratch(at, "float")
    args = [r.at(call.reads[0]), *_operands(r, op, call.reads[1:]), *made, row, f"{row} + {keys(r.graph, op)}"]
    return " ".join([*cleared, called("tiny_attention_backward", *args)])


def _trained(name: str) -> str:
    return f"model_trained.{identifier(name)}"


def _layer(r: Rendering, call: Call) -> tuple[Layer, int, int, str]:
    """The layer of a call, its number of positions, the rank of its adapter, and the scale of its input as C."""
    op = call.op
    assert isinstance(op, Layer)
    x = r.graph.tensors[op.x]
    rank = r.program.trained[adapter_names(op)[0]].data.shape[0]
    return op, x.elements // op.inputs, rank, number(dequantize_scale(x))


def _factors(r: Rendering, op: Layer) -> str:
    return r.constant(f"{op.name}.adapter.factors", adapter_factors(r.graph, op))


@rule("adapter_down")
def _adapter_down(r: Rendering, call: Call, at: int) -> str:
    op, positions, rank, step = _layer(r, call)
    args = [r.at(call.reads[0]), positions, op.inputs, r.graph.tensors[op.x].zero, step]
    return called("tiny_adapter_down", *args, _trained(adapter_names(op)[0]), rank, r.at(call.writes[0]))


@rule("adapter_hidden")
def _adapter_hidden(r: Rendering, call: Call, at: int) -> str:
    op, positions, rank, _ = _layer(r, call)
    args = [r.at(call.reads[0]), positions, op.outputs, _factors(r, op), _trained(adapter_names(op)[1]), rank]
    return called("tiny_adapter_hidden", *args, r.at(call.writes[0]))


@rule("adapter_backward")
def _adapter_backward(r: Rendering, call: Call, at: int) -> str:
    op, positions, rank, step = _layer(r, call)
    args = [*map(r.at, call.reads), positions, op.inputs, step, _trained(adapter_names(op)[0]), rank]
    return called("tiny_adapter_backward", *args, r.at(call.writes[0]))


@rule("update_up")
def _update_up(r: Rendering, call: Call, at: int) -> str:
    op, positions, rank, _ = _layer(r, call)
    g, hidden = map(r.at, call.reads)
    name = adapter_names(op)[1]
    args = [g, positions, op.outputs, _factors(r, op), hidden, rank, _trained(name), sgd(r, name, call)]
    return called("tiny_update_up", *args)


@rule("update_down")
def _update_down(r: Rendering, call: Call, at: int) -> str:
    op, positions, rank, step = _layer(r, call)
    g, x = map(r.at, call.reads)
    name = adapter_names(op)[0]
    args = [g, positions, rank, x, op.inputs, r.graph.tensors[op.x].zero, step]
    return called("tiny_update_down", *args, _trained(name), sgd(r, name, call))
