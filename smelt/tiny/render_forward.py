"""The calls of the kernels of the forward, as C."""

from __future__ import annotations

import numpy as np

from smelt.base.text import Writer
from smelt.tiny.graph import Add, AveragePool, Clamp, Conv, Head, Int8Graph, Layer
from smelt.tiny.program import Call, plane_bytes
from smelt.tiny.rendering import Rendering, called, number, rule
from smelt.tiny.rescale import add_scales, dequantize_scale, pool_scale
from smelt.tiny.streaming import ring_offsets, ring_rows, row_width


def extents(graph: Int8Graph, tensor: str) -> tuple[int, int, int]:
    """Height, width and channels of a tensor; (1, 1, count) for features."""
    shape = graph.tensors[tensor].shape
    return (shape[0], shape[1], shape[2]) if len(shape) == 3 else (1, 1, shape[0])


@rule("pointwise")
def _pointwise(r: Rendering, call: Call, at: int) -> str:
    op = call.op
    assert isinstance(op, Layer)
    x = r.graph.tensors[op.x]
    args = [
        r.at(call.reads[0]),
        x.elements // op.inputs,
        op.inputs,
        x.zero,
        *r.weights(op, call),
        r.parameter(op.bias),
    ]
    return called("tiny_pointwise", *args, op.bias.data.size, r.at(call.writes[0]), r.result(op, call))


@rule("conv")
def _conv(r: Rendering, call: Call, at: int) -> str:
    op = call.op
    assert isinstance(op, Conv)
    args = [r.at(call.reads[0]), *extents(r.graph, op.x), r.graph.tensors[op.x].zero, *r.weights(op, call)]
    shape = [op.outputs, *op.kernel, op.stride, *op.padding]
    y = extents(r.graph, op.y)
    return called("tiny_conv", *args, r.parameter(op.bias), *shape, r.at(call.writes[0]), *y[:2], r.result(op, call))


@rule("depthwise")
def _depthwise(r: Rendering, call: Call, at: int) -> str:
    op = call.op
    assert isinstance(op, Conv)
    args: list[object] = [r.at(call.reads[0]), *extents(r.graph, op.x), r.graph.tensors[op.x].zero]
    plane = op.padded(*extents(r.graph, op.x)[:2])
    args += [*weights_of(r, op), r.parameter(op.bias), *op.kernel, op.stride, *op.padding, *plane]
    result = [r.at(call.writes[0]), *extents(r.graph, op.y)[:2], r.result(op, call)]
    return called("tiny_depthwise", *args, *result, r.scratch(at))


def weights_of(r: Rendering, op: Layer) -> list[object]:
    """The arguments `fixed`, `trained`, `chosen` and `updated` of C kernels that read the whole input: constant and
    trained weights of a layer, its updated input channels (0: all), and their number.
    """
    trained = r.program.trained.get(op.weight.name)
    if trained is None:
        return [r.parameter(op.weight), 0, 0, 0]
    if trained.channels is None:
        return [0, r.parameter(op.weight), 0, trained.data.shape[-1]]
    return [r.fixed(op), r.parameter(op.weight), chosen(r, op), len(trained.channels)]


@rule("expand_depthwise")
def _expand_depthwise(r: Rendering, call: Call, at: int) -> str:
    op, expand = call.op, call.expand
    assert isinstance(op, Conv) and expand is not None
    args = [r.at(call.reads[0]), *extents(r.graph, expand.x), r.graph.tensors[expand.x].zero]
    args += [r.parameter(expand.weight), r.parameter(expand.bias), r.result(expand, None), op.outputs]
    _, wide = op.padded(*extents(r.graph, op.x)[:2])
    args += [r.parameter(op.weight), r.parameter(op.bias), *op.kernel, op.stride, *op.padding, wide]
    result = [r.at(call.writes[0]), *extents(r.graph, op.y)[:2], r.result(op, call)]
    return called("tiny_expand_depthwise", *args, *result, r.scratch(at), plane_bytes(r.graph, op))


@rule("stream")
def _stream(r: Rendering, call: Call, at: int) -> str:
    w = Writer()
    w(f"int {', '.join(f'row{k} = 0' for k in range(len(call.stages) - 1))};")
    _rows(w, r, call, at, len(call.stages) - 1)
    return r.function(w.text())


def _rows(w: Writer, r: Rendering, call: Call, at: int, k: int) -> None:
    """Write the loop over rows of stage `k` of a chain: all of them for the last stage, else those that the current row
    of the next stage needs.
    """
    op, last = call.stages[k], k == len(call.stages) - 1
    height = extents(r.graph, op.y)[0]
    head = f"for (int row{k} = 0; row{k} < {height}; row{k}++) {{"
    if not last:
        reader = call.stages[k + 1]
        args = [f"row{k + 1}", reader.stride, reader.kernel[0], reader.padding[0], height]
        head = f"for (; row{k} < tiny_rows_end({', '.join(map(str, args))}); row{k}++) {{"
    with w.block(head, "}"):
        if k:
            _rows(w, r, call, at, k - 1)
        w(_row(r, call, at, k))


def _row(r: Rendering, call: Call, at: int, k: int) -> str:
    """The call that computes the current row of stage `k` of a chain."""
    op, last = call.stages[k], k == len(call.stages) - 1
    (height, width, channels), (out_height, out_width, outputs) = extents(r.graph, op.x), extents(r.graph, op.y)
    offsets, zero = ring_offsets(r.graph, call.stages), r.graph.tensors[op.x].zero

    def ring(number: int) -> str:
        return f"{r.scratch(at)} + {offsets[number]}"

    x, rows = (ring(k - 1), ring_rows(r.graph, op)) if k else (r.at(call.reads[0]), height)
    kept = out_height if last else ring_rows(r.graph, call.stages[k + 1])
    y = f"{r.at(call.writes[0]) if last else ring(k)} + tiny_row(row{k}, {kept}, {out_height}, {out_width * outputs})"
    result = r.result(op, call if last else None, f"row{k} * {out_width * outputs}")
    if op.pointwise:
        x += f" + tiny_row(row{k}, {rows}, {height}, {width * channels})"
        weights = [r.parameter(op.weight), 0, 0, 0, r.parameter(op.bias)]
        return called("tiny_pointwise", x, width, channels, zero, *weights, outputs, y, result)
    image = [x, rows, height, width, channels, zero, r.parameter(op.weight)]
    window = [*op.kernel, op.stride, *op.padding]
    if op.depthwise:
        args = [*image, r.parameter(op.bias), *window, row_width(r.graph, op), f"row{k}", y, out_width, result]
        return called("tiny_depthwise_row", *args, ring(len(call.stages) - 1))
    args = [*image, 0, 0, 0, r.parameter(op.bias), outputs, *window, f"row{k}", y, out_width, result]
    return called("tiny_conv_row", *args)


@rule("gather")
def _gather(r: Rendering, call: Call, at: int) -> str:
    op = call.op
    assert isinstance(op, Layer)
    x = r.graph.tensors[op.x]
    channels = chosen(r, op)
    count = r.program.values[call.writes[0]].shape[-1]
    positions = x.elements // x.channels
    return called("tiny_gather", r.at(call.reads[0]), positions, x.channels, channels, count, r.at(call.writes[0]))


def chosen(r: Rendering, op: Layer) -> str:
    """The constant array, in C, of the updated input channels of a sparse layer."""
    channels = r.program.trained[op.weight.name].channels
    return r.constant(f"{op.name}.channels", np.array(channels, np.uint16))


@rule("add")
def _add(r: Rendering, call: Call, at: int) -> str:
    op = call.op
    assert isinstance(op, Add)
    (of_a, of_b), tensors = add_scales(r.graph, op), r.graph.tensors
    a = [r.at(call.reads[0]), tensors[op.a].zero, number(of_a)]
    b = [r.at(call.reads[1]), tensors[op.b].zero, number(of_b)]
    return called("tiny_add", *a, *b, tensors[op.y].elements, r.at(call.writes[0]), r.result(op, call))


@rule("pool")
def _pool(r: Rendering, call: Call, at: int) -> str:
    op = call.op
    assert isinstance(op, AveragePool)
    x = r.graph.tensors[op.x]
    args = [r.at(call.reads[0]), x.shape[1], x.channels, x.zero, number(pool_scale(r.graph, op))]
    result = [r.at(call.writes[0]), *extents(r.graph, op.y)[:2], r.result(op, call)]
    return called("tiny_pool", *args, *op.kernel, *op.stride, *result)


@rule("clamp")
def _clamp(r: Rendering, call: Call, at: int) -> str:
    op = call.op
    assert isinstance(op, Clamp)
    x = r.graph.tensors[op.x]
    return called("tiny_clamp", r.at(call.reads[0]), x.zero, x.elements, r.at(call.writes[0]), r.result(op, call))


@rule("dequantize")
def _dequantize(r: Rendering, call: Call, at: int) -> str:
    y = r.graph.tensors[r.graph.output]
    scale = number(dequantize_scale(y))
    return called("tiny_dequantize", r.at(call.reads[0]), y.zero, scale, y.elements, r.at(call.writes[0]))


@rule("head")
def _head(r: Rendering, call: Call, at: int) -> str:
    op = call.op
    assert isinstance(op, Head)
    x = r.graph.tensors[op.x]
    args = [r.at(call.reads[0]), x.zero, number(dequantize_scale(x)), x.elements]
    return called(
        "tiny_head", *args, r.parameter(op.weight), r.parameter(op.bias), r.graph.classes, r.at(call.writes[0])
    )
