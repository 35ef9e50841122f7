"""The computations of the kernels of max pooling, products and concatenation in torch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional

from smelt.tiny.graph import Concat, MaxPool, Multiply
from smelt.tiny.program import Call
from smelt.tiny.rescale import concat_scales, product_scale
from smelt.tiny.running import Run, rule, terms_in_order
from smelt.tiny.simulate_forward import centred, requantize

_BELOW = -129
"""Less than any int8: what lies outside of an image."""


def _windows(run: Run, op: MaxPool, x: torch.Tensor) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Each tap of the window with its values at all positions of the result: (row, column, (n, height, width, c))."""
    (height, width, _), (down, right) = run.graph.tensors[op.y].shape, op.stride
    image = bordered(x, op)
    for u in range(op.kernel[0]):
        for v in range(op.kernel[1]):
            yield u, v, image[:, u : u + down * height : down, v : v + right * width : right][:, :height, :width]


def bordered(x: torch.Tensor, op: MaxPool) -> torch.Tensor:
    """An image between values less than any other, int16; below and on the right there are as many as a window is."""
    (top, left), (high, wide) = op.padding, op.kernel
    return functional.pad(x.to(torch.int16), (0, 0, left, left + wide, top, top + high), value=_BELOW)


@rule("max_pool")
def _max_pool(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, MaxPool)
    taps = [one for _, _, one in _windows(run, op, run.values[call.reads[0]])]
    run.values[call.writes[0]] = torch.stack(taps).amax(0).to(torch.int8)


@rule("max_pool_backward")
def _max_pool_backward(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, MaxPool)
    x, (height, width, _) = run.values[call.reads[1]], run.graph.tensors[op.y].shape
    g = run.values[call.reads[0]].reshape(1, *run.graph.tensors[op.y].shape)
    best, at = torch.full(g.shape, _BELOW, dtype=torch.int16), torch.zeros(g.shape, dtype=torch.int64)
    for u, v, one in _windows(run, op, x):
        at = torch.where(one > best, u * op.kernel[1] + v, at)
        best = torch.maximum(one, best)
    total = torch.zeros(bordered(x, op).shape)
    for i in range(height):  # windows in the order of the C, since they may overlap
        for j in range(width):
            for u in range(op.kernel[0]):
                for v in range(op.kernel[1]):
                    cell = total[0, i * op.stride[0] + u, j * op.stride[1] + v]
                    cell += torch.where(at[0, i, j] == u * op.kernel[1] + v, g[0, i, j], 0.0)
    (top, left), (rows, columns, _) = op.padding, run.graph.tensors[op.x].shape
    run.values[call.writes[0]] = total[:, top : top + rows, left : left + columns].clone()


@rule("multiply")
def _multiply(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, Multiply)
    y = run.graph.tensors[op.y]
    products = centred(run, call.reads[0], op.a) * centred(run, call.reads[1], op.b)
    requantize(run, call, products.float() * product_scale(run.graph, op), y, op.low, op.high)


@rule("multiply_backward_a")
def _multiply_backward_a(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, Multiply)
    g, b = run.values[call.reads[0]], centred(run, call.reads[1], op.b).float()
    run.values[call.writes[0]] = g * b * product_scale(run.graph, op)


@rule("multiply_backward_b")
def _multiply_backward_b(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, Multiply)
    products = run.values[call.reads[0]] * centred(run, call.reads[1], op.a).float()
    b = run.graph.tensors[op.b]
    if b.elements < products.numel():
        products = terms_in_order(products.reshape(-1, b.channels), torch.zeros(b.channels)).reshape(1, *b.shape)
    run.values[call.writes[0]] = products * product_scale(run.graph, op)


@rule("concat")
def _concat(run: Run, call: Call) -> None:
    op = call.op
    assert isinstance(op, Concat)
    operands = zip(call.reads, op.xs, concat_scales(run.graph, op), strict=True)
    scaled = [
        centred(run, name, source).float().reshape(-1, *run.graph.tensors[source].shape) * scale
        for name, source, scale in operands
    ]
    requantize(run, call, torch.cat(scaled, -1), run.graph.tensors[op.y], op.low, op.high)


@rule("concat_backward")
def _concat_backward(run: Run, call: Call) -> None:
    op, first = call.op, 0
    assert isinstance(op, Concat)
    g = run.values[call.reads[0]]
    for source, scale in zip(op.xs, concat_scales(run.graph, op), strict=True):
        name, channels = f"d {op.name}.{source}", run.graph.tensors[source].channels
        if name in call.writes:
            run.values[name] = g[..., first : first + channels] * scale
        first += channels
