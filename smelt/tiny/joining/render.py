"""The calls of the kernels of max pooling, products and concatenation, as C."""

from __future__ import annotations

from smelt.tiny.graph import Concat, MaxPool, Multiply, sources
from smelt.tiny.program import Call
from smelt.tiny.render_forward import extents
from smelt.tiny.rendering import Rendering, called, number, rule
from smelt.tiny.rescale import concat_scales, product_scale


def _window(r: Rendering, op: MaxPool) -> list[object]:
    return [*extents(r.graph, op.x), *op.kernel, *op.stride, *op.padding, *extents(r.graph, op.y)[:2]]


@rule("max_pool")
def _max_pool(r: Rendering, call: Call, at: int) -> str:
    assert isinstance(call.op, MaxPool)
    return called("tiny_max_pool", r.at(call.reads[0]), *_window(r, call.op), r.at(call.writes[0]))


@rule("max_pool_backward")
def _max_pool_backward(r: Rendering, call: Call, at: int) -> str:
    assert isinstance(call.op, MaxPool)
    g, x = call.reads
    return called("tiny_max_pool_backward", r.at(x), *_window(r, call.op), r.at(g), r.at(call.writes[0]))


def _extent(r: Rendering, op: Multiply) -> list[object]:
    """The C arguments positions, channels and step: the channels that the second operand goes on with each position."""
    y = r.graph.tensors[op.y]
    whole = r.graph.tensors[op.b].elements == y.elements
    return [y.elements // y.channels, y.channels, y.channels if whole else 0]


@rule("multiply")
def _multiply(r: Rendering, call: Call, at: int) -> str:
    op, tensors = call.op, r.graph.tensors
    assert isinstance(op, Multiply)
    a, b = ([r.at(name), tensors[one].zero] for name, one in zip(call.reads, (op.a, op.b), strict=True))
    scale = number(product_scale(r.graph, op))
    return called("tiny_multiply", *a, *b, scale, *_extent(r, op), r.at(call.writes[0]), r.result(op, call))


@rule("multiply_backward_a")
def _multiply_backward_a(r: Rendering, call: Call, at: int) -> str:
    op = call.op
    assert isinstance(op, Multiply)
    g, b = call.reads
    args = [r.at(g), r.at(b), r.graph.tensors[op.b].zero, number(product_scale(r.graph, op)), *_extent(r, op)]
    return called("tiny_multiply_backward", *args, r.at(call.writes[0]))


@rule("multiply_backward_b")
def _multiply_backward_b(r: Rendering, call: Call, at: int) -> str:
    op = call.op
    assert isinstance(op, Multiply)
    (g, a), (positions, channels, step) = call.reads, _extent(r, op)
    args = [r.at(g), r.at(a), r.graph.tensors[op.a].zero, number(product_scale(r.graph, op)), positions, channels]
    if step:
        return called("tiny_multiply_backward", *args, channels, r.at(call.writes[0]))
    return called("tiny_gate_backward", *args, r.at(call.writes[0]))


@rule("concat")
def _concat(r: Rendering, call: Call, at: int) -> str:
    op, calls, first = call.op, [], 0
    assert isinstance(op, Concat)
    y = r.graph.tensors[op.y]
    for name, source, scale in zip(call.reads, op.xs, concat_scales(r.graph, op), strict=True):
        x = r.graph.tensors[source]
        args = [r.at(name), x.zero, number(scale), y.elements // y.channels, x.channels, first, y.channels]
        calls.append(called("tiny_concat", *args, r.at(call.writes[0]), r.result(op, call)))
        first += x.channels
    return " ".join(calls)


@rule("concat_backward")
def _concat_backward(r: Rendering, call: Call, at: int) -> str:
    op, calls, first = call.op, [], 0
    assert isinstance(op, Concat)
    y = r.graph.tensors[op.y]
    for source, scale in zip(sources(op), concat_scales(r.graph, op), strict=True):
        made, channels = f"d {op.name}.{source}", r.graph.tensors[source].channels
        if made in call.writes:
            args = [r.at(call.reads[0]), number(scale), y.elements // y.channels, channels, first, y.channels]
            calls.append(called("tiny_concat_backward", *args, r.at(made)))
        first += channels
    return " ".join(calls)
