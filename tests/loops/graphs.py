"""Prim graphs for the tests of loops, schedule and codegen: random ones and the classic training blocks."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from smelt.graph.ir.meta import TensorMeta, contiguous_stride
from smelt.loops.interpret import interpret
from smelt.loops.lower import lower
from smelt.prims.ops import PRIMS
from smelt.shapes.size import IntLike, Size


def as_meta(value: Any) -> Any:
    """What a meta rule wants for an argument."""
    if isinstance(value, fx.Node):
        return value.meta["val"]
    if isinstance(value, (tuple, list)):
        return tuple(as_meta(item) for item in value)
    return value


class GraphBuilder:
    """Appends prims to an fx graph without simplifying anything: `g.add(x, y)`."""

    def __init__(self) -> None:
        self.graph = fx.Graph()

    def input(self, *shape: int, dtype: torch.dtype = torch.float32, stride: Sequence[int] | None = None) -> fx.Node:
        node = self.graph.placeholder(f"x{len(self.graph.nodes)}")
        strides = tuple(stride) if stride else contiguous_stride(shape)
        node.meta["val"] = TensorMeta(tuple(shape), dtype, strides, torch.device("cpu"))
        return node

    def __getattr__(self, name: str) -> Callable[..., Any]:
        prim = PRIMS[name]

        def emit(*args: Any, **kwargs: Any) -> Any:
            full = prim.bind(args, kwargs)
            node = self.graph.create_node("call_function", prim, full, {}, name)
            node.meta["val"] = prim.meta(*(as_meta(a) for a in full))
            if not isinstance(node.meta["val"], tuple):
                return node
            parts = []
            for i, meta in enumerate(node.meta["val"]):
                part = self.graph.create_node("call_function", operator.getitem, (node, i), {}, name)
                part.meta["val"] = meta
                parts.append(part)
            return tuple(parts)

        return emit

    def build(self, *outputs: fx.Node) -> fx.GraphModule:
        self.graph.output(list(outputs))
        return fx.GraphModule(torch.nn.Module(), self.graph)


def repeated(g: GraphBuilder, x: fx.Node, shape: Sequence[int], dims: Sequence[int]) -> fx.Node:
    """A reduction over `dims` of a tensor of `shape`, broadcast back to `shape`."""
    kept = [d for d in range(len(shape)) if d not in dims]
    return g.broadcast_in_dim(x, tuple(shape), tuple(kept))


def shape_of(x: fx.Node) -> tuple[int, ...]:
    return x.meta["val"].shape


def number(n: IntLike) -> Any:
    """A count as an operand."""
    return n if isinstance(n, Size) else float(n)


def layer_norm(g: GraphBuilder, x: fx.Node, weight: fx.Node, bias: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node]:
    """(out, mean, rstd) over the last dimension."""
    shape = shape_of(x)
    last = len(shape) - 1
    mean = g.div(g.sum(x, (last,)), number(shape[-1]))
    centred = g.sub(x, repeated(g, mean, shape, (last,)))
    var = g.div(g.sum(g.mul(centred, centred), (last,)), number(shape[-1]))
    rstd = g.rsqrt(g.add(var, 1e-5))
    normal = g.mul(centred, repeated(g, rstd, shape, (last,)))
    scaled = g.mul(normal, g.broadcast_in_dim(weight, shape, (last,)))
    return g.add(scaled, g.broadcast_in_dim(bias, shape, (last,))), mean, rstd


def layer_norm_backward(
    g: GraphBuilder, grad: fx.Node, x: fx.Node, mean: fx.Node, rstd: fx.Node, weight: fx.Node
) -> tuple[fx.Node, fx.Node, fx.Node]:
    """(grad x, grad weight, grad bias)."""
    shape = shape_of(x)
    last = len(shape) - 1
    n = number(shape[-1])
    lead = tuple(range(last))
    normal = g.mul(g.sub(x, repeated(g, mean, shape, (last,))), repeated(g, rstd, shape, (last,)))
    scaled = g.mul(grad, g.broadcast_in_dim(weight, shape, (last,)))
    a = g.div(g.sum(scaled, (last,)), n)
    b = g.div(g.sum(g.mul(scaled, normal), (last,)), n)
    inner = g.sub(scaled, g.add(repeated(g, a, shape, (last,)), g.mul(normal, repeated(g, b, shape, (last,)))))
    return g.mul(inner, repeated(g, rstd, shape, (last,))), g.sum(g.mul(grad, normal), lead), g.sum(grad, lead)


def softmax(g: GraphBuilder, x: fx.Node, dim: int) -> fx.Node:
    shape = shape_of(x)
    shifted = g.exp(g.sub(x, repeated(g, g.amax(x, (dim,)), shape, (dim,))))
    return g.div(shifted, repeated(g, g.sum(shifted, (dim,)), shape, (dim,)))


def softmax_backward(g: GraphBuilder, grad: fx.Node, out: fx.Node, dim: int) -> fx.Node:
    shape = shape_of(out)
    product = g.mul(grad, out)
    return g.sub(product, g.mul(out, repeated(g, g.sum(product, (dim,)), shape, (dim,))))


def log_softmax(g: GraphBuilder, x: fx.Node) -> fx.Node:
    shape = shape_of(x)
    dim = len(shape) - 1
    shifted = g.sub(x, repeated(g, g.amax(x, (dim,)), shape, (dim,)))
    return g.sub(shifted, repeated(g, g.log(g.sum(g.exp(shifted), (dim,))), shape, (dim,)))


def gelu(g: GraphBuilder, x: fx.Node) -> fx.Node:
    return g.mul(g.mul(x, 0.5), g.add(g.erf(g.mul(x, math.sqrt(0.5))), 1.0))


def dropout(g: GraphBuilder, x: fx.Node, seed: fx.Node, stream: int, p: float) -> tuple[fx.Node, fx.Node]:
    keep = g.ge(g.random(seed, stream, shape_of(x)), p)
    return g.where(keep, g.mul(x, 1 / (1 - p)), 0.0), keep


def batch_norm(g: GraphBuilder, x: fx.Node, weight: fx.Node, bias: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node]:
    """(out, mean, rstd) of (batch, channels, height, width) in training."""
    shape = shape_of(x)
    dims = (0, 2, 3)
    n = number(shape[0] * shape[2] * shape[3])
    mean = g.div(g.sum(x, dims), n)
    centred = g.sub(x, repeated(g, mean, shape, dims))
    var = g.div(g.sum(g.mul(centred, centred), dims), n)
    rstd = g.rsqrt(g.add(var, 1e-5))
    scaled = g.mul(g.mul(centred, repeated(g, rstd, shape, dims)), g.broadcast_in_dim(weight, shape, (1,)))
    return g.add(scaled, g.broadcast_in_dim(bias, shape, (1,))), mean, rstd


def batch_norm_backward(
    g: GraphBuilder, grad: fx.Node, x: fx.Node, mean: fx.Node, rstd: fx.Node, weight: fx.Node
) -> tuple[fx.Node, fx.Node, fx.Node]:
    shape = shape_of(x)
    dims = (0, 2, 3)
    n = number(shape[0] * shape[2] * shape[3])
    centred = g.sub(x, repeated(g, mean, shape, dims))
    total = g.sum(grad, dims)
    dot = g.sum(g.mul(grad, centred), dims)
    slope = g.div(g.mul(dot, g.mul(rstd, rstd)), n)
    inner = g.sub(
        g.sub(grad, g.mul(centred, repeated(g, slope, shape, dims))), repeated(g, g.div(total, n), shape, dims)
    )
    scale = g.mul(rstd, weight)
    return g.mul(inner, repeated(g, scale, shape, dims)), g.mul(dot, rstd), total


def real_inputs(gm: fx.GraphModule, high: int = 4) -> list[torch.Tensor]:
    """Random tensors that fit the placeholders; integers lie in 0 .. high-1."""
    tensors = []
    for node in gm.graph.find_nodes(op="placeholder"):
        meta = node.meta["val"]
        t = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype)
        if meta.dtype.is_floating_point:
            t.copy_(torch.randn(meta.shape))
        elif meta.dtype is torch.bool:
            t.copy_(torch.rand(meta.shape) < 0.5)
        else:
            t.copy_(torch.randint(0, high, meta.shape))
        tensors.append(t)
    return tensors


def run_eager(gm: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The prims' eager references."""
    return list(gm(*inputs))


def interpreted(build: Callable[..., Any], *tensors: torch.Tensor) -> list[torch.Tensor]:
    """What the loop interpreter makes of `build(g, *inputs)`, one value or a tuple of them, for these tensors."""
    g = GraphBuilder()
    made = build(g, *(g.input(*t.shape, dtype=t.dtype, stride=t.stride()) for t in tensors))
    return interpret(lower(g.build(*(made if isinstance(made, tuple) else (made,)))), tensors)
