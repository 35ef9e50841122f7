"""Programs over two symbolic sizes b and t: name -> (builder, first integer that inputs may not hold)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from tests.loops import graphs
from tests.loops.graphs import repeated, shape_of

CPU = torch.device("cpu")
PROGRAMS: dict[str, tuple[Callable[..., fx.GraphModule], int]] = {}


def program(build: Callable[..., fx.GraphModule]) -> Callable[..., fx.GraphModule]:
    PROGRAMS[build.__name__] = build, 2
    return build


@program
def pointwise(g, b, t):
    x, y, z = g.input(b, t, 48), g.input(48), g.input(b, 1, 1)
    shape = (b, t, 48)
    total = g.add(g.mul(x, g.broadcast_in_dim(y, shape, (2,))), g.broadcast_in_dim(z, shape, (0, 1, 2)))
    flat = g.reshape(total, (b * t, 48))
    return g.build(graphs.gelu(g, flat), g.convert(g.gt(total, 0.0), torch.int64))


@program
def reductions(g, b, t):
    x = g.input(b, t, 32)
    m = g.gt(x, 0.0)
    sums = [g.sum(x, dims) for dims in ((0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2))]
    return g.build(
        *sums, g.amax(x, (1,)), g.amin(x, (0, 2)), g.any(m, (1,)), g.all(m, (0,)), g.argmax(x, 1), g.argmin(x, 0),
        g.prod(g.add(g.mul(x, 0.01), 1.0), (1,)),
    )  # fmt: skip


@program
def softmax_over_a_symbol(g, b, t):
    x, grad = g.input(b, 3, t, t), g.input(b, 3, t, t)
    out = graphs.softmax(g, x, 3)
    return g.build(out, graphs.softmax_backward(g, grad, out, 3), graphs.softmax(g, x, 2))


@program
def softmax_over_a_number(g, b, t):
    x, grad = g.input(b, t, 48), g.input(b, t, 48)
    out = graphs.softmax(g, x, 2)
    return g.build(out, graphs.softmax_backward(g, grad, out, 2))


@program
def layer_norm(g, b, t):
    x, w, bias, r, seed = g.input(b, t, 48), g.input(48), g.input(48), g.input(b * t, 48), g.input(dtype=torch.int64)
    dropped, keep = graphs.dropout(g, g.reshape(r, (b, t, 48)), seed, 1, 0.1)
    y = g.add(x, dropped)
    return g.build(*graphs.layer_norm(g, y, w, bias), y, keep)


@program
def layer_norm_over_a_symbol(g, b, t):
    x, w, bias = g.input(b, 6, t), g.input(t), g.input(t)
    return g.build(*graphs.layer_norm(g, x, w, bias))


@program
def layer_norm_backward(g, b, t):
    x, grad, w, mean, rstd = g.input(b, t, 48), g.input(b, t, 48), g.input(48), g.input(b, t), g.input(b, t)
    return g.build(*graphs.layer_norm_backward(g, grad, x, mean, rstd, w))


@program
def batch_norm(g, b, t):
    x, w, bias = g.input(b, 5, t, t), g.input(5), g.input(5)
    out, mean, rstd = graphs.batch_norm(g, x, w, bias)
    grad = g.input(b, 5, t, t)
    return g.build(out, mean, rstd, *graphs.batch_norm_backward(g, grad, x, mean, rstd, w))


@program
def channels_last(g, b, t):
    x, w, bias = g.input(b, 5, t, t, stride=(5 * t * t, 1, 5 * t, 5)), g.input(5), g.input(5)
    return g.build(*graphs.batch_norm(g, x, w, bias))


@program
def convolved(g, b, t):
    x, w, scale, bias = g.input(b, 3, t, t + 1), g.input(5, 3, 3, 3), g.input(5), g.input(5)
    y = g.convolution(x, w, None, (2, 2), (1, 1), (1, 1), False, (0, 0), 1)
    out, mean, _ = graphs.batch_norm(g, y, scale, bias)
    return g.build(out, g.amax(out, (2, 3)), mean)


@program
def movement(g, b, t):
    x, y = g.input(b, t, 6), g.input(b, t - 1, 6)
    front = g.slice(x, (0, 0, 0), (b, t - 1, 6), (1, 1, 1))
    odd = g.slice(x, (0, 1, 1), (b, t, 6), (1, 1, 2))
    return g.build(
        front,
        g.add(y, g.slice(x, (0, 1, 0), (b, t, 6), (1, 1, 1))),
        odd,
        g.cat((x, y), 1),
        g.cat((g.reshape(x, (1, b, t, 6)), g.reshape(x, (1, b, t, 6))), 0),
        g.pad(x, (0, 1, 0), (0, 2, 3), 0.5),
        g.pad(y, (0, 0, 0), (0, 1, 0), 0.0),
        g.flip(x, (1,)),
        g.permute(x, (2, 0, 1)),
        g.reshape(g.permute(x, (1, 0, 2)), (t * b * 2, 3)),
        g.slice_scatter(x, g.mul(y, 2.0), (0, 1, 0), (b, t, 6), (1, 1, 1)),
        g.broadcast_in_dim(x, (3, b, t, 6), (1, 2, 3)),
        g.reshape(g.broadcast_in_dim(x, (b, 2, t, 6), (0, 2, 3)), (2 * b, t, 6)),
    )


@program
def heads(g, b, t):
    x = g.input(b, t, 24)
    split = g.permute(g.reshape(x, (b, t, 4, 6)), (0, 2, 1, 3))
    scaled = g.mul(g.exp(split), 0.5)
    back = g.reshape(g.permute(scaled, (0, 2, 1, 3)), (b, t, 24))
    return g.build(g.add(x, back), g.permute(scaled, (0, 1, 3, 2)))


@program
def creation(g, b, t):
    seed, x = g.input(dtype=torch.int64), g.input(b, t)
    places = g.iota(t, 0, 1, torch.int64, CPU)
    causal = g.le(g.broadcast_in_dim(places, (t, t), (1,)), g.broadcast_in_dim(places, (t, t), (0,)))
    scores = g.where(g.broadcast_in_dim(causal, (b, t, t), (1, 2)), g.broadcast_in_dim(x, (b, t, t), (0, 2)), -1e9)
    return g.build(
        g.full((b, t), 2.5, torch.float32, CPU),
        g.full((t,), t, torch.int64, CPU),
        g.iota(t + b, 3, 2, torch.int64, CPU),
        g.iota(t, b, 1, torch.float32, CPU),
        g.random(seed, 3, (b, t, 5)),
        scores,
        g.div(g.sum(x, (0, 1)), b * t),
        g.add(g.convert(x, torch.int64), t - 2),
        g.remainder(places, b),
    )


@program
def indexing(g, b, t):
    table, ids, grad = g.input(50, 12), g.input(b, t, dtype=torch.int64), g.input(b, t, 12)
    zeros = g.full((50, 12), 0.0, torch.float32, CPU)
    x, place, rows = g.input(b, t, 3), g.input(b, t, 3, dtype=torch.int64), g.input(t, dtype=torch.int64)
    empty = g.full((b, t, 3), 0.0, torch.float32, CPU)
    return g.build(
        g.index(table, (ids, None)), g.index_put(zeros, (ids, None), grad, True), g.gather(x, 1, place),
        g.index_select(x, 1, rows), g.index(x, (None, rows, None)), g.scatter_add(empty, 1, place, x),
        g.index_put(empty, (None, rows, None), x, True), g.gather(x, 0, place),
    )  # fmt: skip


@program
def products(g, b, t):
    x, w, bias = g.input(b, t, 12), g.input(36, 12), g.input(36)
    qkv = g.add(g.mm(g.reshape(x, (b * t, 12)), g.permute(w, (1, 0))), g.broadcast_in_dim(bias, (b * t, 36), (1,)))
    parts = [g.slice(g.reshape(qkv, (b, t, 36)), (0, 0, 12 * i), (b, t, 12 * i + 12), (1, 1, 1)) for i in range(3)]
    split = [g.permute(g.reshape(p, (b, t, 2, 6)), (0, 2, 1, 3)) for p in parts]
    q, k, v = (g.reshape(p, (b * 2, t, 6)) for p in split)
    scores = g.mul(g.bmm(q, g.permute(k, (0, 2, 1))), 6**-0.5)
    mixed = g.bmm(graphs.softmax(g, scores, 2), v)
    out = g.reshape(g.permute(g.reshape(mixed, (b, 2, t, 6)), (0, 2, 1, 3)), (b, t, 12))
    return g.build(graphs.gelu(g, out), g.mm(g.permute(g.reshape(out, (b * t, 12)), (1, 0)), g.reshape(x, (b * t, 12))))


@program
def low_precision(g, b, t):
    x, w = g.input(b, t, 16, dtype=torch.bfloat16), g.input(16, dtype=torch.bfloat16)
    y = g.mul(x, g.broadcast_in_dim(w, shape_of(x), (2,)))
    return g.build(y, g.sum(g.convert(y, torch.float32), (0, 1)), g.convert(g.mul(y, 3.0), torch.float16))


@program
def variance(g, b, t):
    x = g.input(b, t, 20)
    mean = g.div(g.sum(x, (1, 2)), t * 20)
    centred = g.sub(x, repeated(g, mean, (b, t, 20), (1, 2)))
    return g.build(g.div(g.sum(g.mul(centred, centred), (1, 2)), t * 20 - 1), mean)


@program
def scans(g, b, t):
    x = g.input(b, t)
    return g.build(g.cumsum(g.mul(x, 2.0), 1), *g.sort(x, 1, True, True))
