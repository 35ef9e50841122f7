"""Broken graphs are refused with the node and the rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import fx, nn

from smelt.graph.ir.meta import TensorMeta, meta_of
from smelt.graph.verify import InvalidGraph, verify

aten = torch.ops.aten
META = meta_of(torch.zeros(2))


def graph(build: Callable[[fx.Graph, fx.Node], fx.Node], meta: TensorMeta = META) -> fx.GraphModule:
    g = fx.Graph()
    x = g.placeholder("x")
    x.meta["val"] = META
    out = g.output((build(g, x),))
    out.meta["val"] = (meta,)
    return fx.GraphModule(nn.Module(), g)


def call(g: fx.Graph, target: object, *args: object, val: object = META, **meta: object) -> fx.Node:
    node = g.call_function(target, args)
    node.meta.update(meta, val=val)
    return node


def test_a_good_graph() -> None:
    gm = graph(lambda g, x: call(g, aten.exp.default, x))
    for stage in ("torch", "joint", "prims"):
        verify(gm, stage=stage)


BROKEN: dict[str, tuple[str, Callable[[], fx.GraphModule]]] = {
    "writes to its arguments": ("joint", lambda: graph(lambda g, x: call(g, aten.exp_.default, x))),
    "recipe over other operators": ("joint", lambda: graph(lambda g, x: call(g, aten.reshape.default, x, [2]))),
    "no ATen operator": ("joint", lambda: graph(lambda g, x: call(g, torch.exp, x))),
    "no prim": ("prims", lambda: graph(lambda g, x: call(g, torch.exp, x))),
    "draws nothing": ("joint", lambda: graph(lambda g, x: call(g, aten.exp.default, x, random=True))),
    "neither TensorMeta": ("joint", lambda: graph(lambda g, x: call(g, aten.exp.default, x, val="text"))),
    "promised": (
        "joint",
        lambda: graph(lambda g, x: call(g, aten.exp.default, x), meta_of(torch.zeros(3))),
    ),
    "no such result": ("joint", lambda: graph(lambda g, x: call(g, __import__("operator").getitem, x, 0))),
}


@pytest.mark.parametrize("why", BROKEN)
def test_broken(why: str) -> None:
    stage, make = BROKEN[why]
    with pytest.raises(InvalidGraph, match=why):
        verify(make(), stage=stage)


def test_missing_meta_and_methods() -> None:
    gm = graph(lambda g, x: g.call_method("exp", (x,)))
    with pytest.raises(InvalidGraph, match="has no meta"):
        verify(gm, stage="joint")
    verify(gm, stage="torch")


def test_late_placeholder_and_unknown_stage() -> None:
    gm = graph(lambda g, x: call(g, aten.exp.default, x))
    gm.graph.output_node().prepend(gm.graph.create_node("placeholder", "late"))
    with pytest.raises(InvalidGraph, match="placeholder comes after"):
        verify(gm, stage="torch")
    with pytest.raises(InvalidGraph, match="unknown stage"):
        verify(gm, stage="kernels")
