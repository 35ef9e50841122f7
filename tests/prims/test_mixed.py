"""Graphs with values of the CPU and of a GPU: who is on the host, what is copied, what is made again. No GPU needed.

Whole programs: tests/driverless/test_mixed.py
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import fx

from smelt.graph.ir.meta import TensorMeta, contiguous_stride
from smelt.prims import ops
from smelt.prims.mixed import Mixed, cpu_values
from smelt.prims.registry import Lowering

aten = torch.ops.aten
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def meta(device: torch.device, *shape: int, dtype: torch.dtype = torch.float32) -> TensorMeta:
    return TensorMeta(shape, dtype, contiguous_stride(shape), device)


class Graph:
    """A graph with an input `x` on `device` and one, `s`, of the CPU."""

    def __init__(self, device: torch.device = CUDA) -> None:
        self.graph = fx.Graph()
        self.x, self.s = self.graph.placeholder("x"), self.graph.placeholder("s")
        self.x.meta["val"], self.s.meta["val"] = meta(device, 3), meta(CPU)

    def call(self, target: Any, val: Any, *args: Any) -> fx.Node:
        node = self.graph.call_function(target, args)
        node.meta["val"] = val
        return node


def lowering(g: Graph, out: Any) -> Lowering:
    p = Lowering(g.graph)
    p.result = out
    return p


def test_one_kind_of_device_is_not_mixed() -> None:
    g = Graph(CPU)
    node = g.call(aten.sin.default, meta(CPU), g.s)
    mixed = Mixed(g.graph)
    assert not mixed.active and not mixed.on_cpu(node) and not mixed.is_of_cpu(meta(CPU))
    assert mixed.moved(lowering(g, meta(CPU)), g.s) is g.s and cpu_values(g.graph) == {}


def test_nodes_computed_on_the_host() -> None:
    g = Graph()
    host, gpu = g.call(aten.sin.default, meta(CPU), g.s), g.call(aten.sin.default, meta(CUDA, 3), g.x)
    both = g.call(aten.mul.Tensor, meta(CUDA, 3), g.x, g.s)
    read = g.call(aten._to_copy.default, meta(CPU, 3), g.x)
    alias = g.call(aten.alias.default, meta(CPU), g.s)
    pair = g.call(aten.frexp.Tensor, (meta(CPU), meta(CPU)), g.s)
    size = g.call(aten.sym_size.int, 3, g.s)
    mixed = Mixed(g.graph)
    on_host = [mixed.on_cpu(n) for n in (host, gpu, both, read, alias, pair, size)]
    assert mixed.active and on_host == [True, False, False, False, False, True, True]
    assert mixed.is_of_cpu(meta(CPU)) and not mixed.is_of_cpu(meta(CUDA)) and not mixed.is_of_cpu(3)


def test_arguments_of_an_operator_on_a_gpu_are_copied_once() -> None:
    g = Graph()
    mixed, p = Mixed(g.graph), lowering(g, meta(CUDA, 3))
    first, (second, other), number = mixed.moved(p, (g.s, [g.s, g.x], 2.0))
    assert first is second and first.target is ops.to_device and first.args == (g.s, CUDA)
    assert other is g.x and number == 2.0 and p.of_cpu == {first}
    assert p.result == meta(CUDA, 3) and first.meta["val"] == meta(CUDA)
    p.result = (meta(CUDA, 3), meta(CPU))  # where the first result is
    assert mixed.moved(p, g.s) is first
    p.result = meta(CPU)
    assert mixed.moved(p, g.s) is g.s
    p.result = 3
    assert mixed.moved(p, g.s) is g.s
    size = g.graph.placeholder("n")
    size.meta["val"] = 4
    p.result = meta(CUDA, 3)
    assert mixed.moved(p, size) is size


def test_constants_are_made_on_the_gpu() -> None:
    g = Graph()
    mixed, p = Mixed(g.graph), lowering(g, meta(CUDA, 3))
    mixed.note_constant(g.s, 2.5)
    made = mixed.moved(p, g.s)
    assert made.target is ops.full and made.args == ((), 2.5, torch.float32, CUDA) and made in p.of_cpu


def test_creation_is_repeated_on_the_other_device() -> None:
    g = Graph()
    mixed, p = Mixed(g.graph), lowering(g, meta(CUDA, 3))
    made = g.call(aten.arange.default, meta(CPU, 4, dtype=torch.int64), 4)
    mixed.note_creation(made, made, (4,), {})
    again = mixed.moved(p, made)
    assert again.target is ops.iota and again.args == (4, 0, 1, torch.int64, CUDA)
    assert p.result == meta(CUDA, 3)  # that of the operator at hand


def test_value_that_cannot_be_recreated_is_copied() -> None:
    """It is random, computed from something, has no rule, or is no single tensor."""
    g = Graph()
    mixed, p = Mixed(g.graph), lowering(g, meta(CUDA, 3))
    drawn = g.call(aten.zeros.default, meta(CPU, 4), [4])
    drawn.meta["random"] = 1
    computed = g.call(aten.zeros_like.default, meta(CPU), g.s)
    without_rule = g.call(aten.lift_fresh_copy, meta(CPU))
    for node in (drawn, computed, without_rule):
        mixed.note_creation(node, node, ([4],), {})
        assert mixed.moved(p, node).target is ops.to_device
    plain = g.call(aten.zeros.default, meta(CPU, 4), [4])
    mixed.note_creation((plain,), plain, ([4],), {})
    assert not mixed.made


def test_values_of_the_host_are_named_with_where_they_are_from() -> None:
    g = Graph()
    node = g.call(aten.sin.default, meta(CPU), g.s)
    node.meta["from"] = "model.py:3"
    g.call(aten.sin.default, meta(CUDA, 3), g.x)
    g.graph.output((node,)).meta["val"] = (meta(CPU),)
    assert cpu_values(g.graph) == {"s": "float32[]", node.name: "float32[], from model.py:3"}
    for each in g.graph.nodes:
        if each.op != "output":
            each.meta["val"] = replace(each.meta["val"], device=CUDA)
    assert cpu_values(g.graph) == {}
