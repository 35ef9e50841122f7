"""The builder: nodes, metas, several results, shorthands."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from smelt.base.errors import CompileError
from smelt.graph.ir.meta import meta_of
from smelt.prims import ops
from smelt.prims.builder import Builder

X = torch.randn(3, 4)


def start() -> tuple[Builder, fx.Node]:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = meta_of(X)
    return Builder(graph), x


def value(p: Builder, *results: fx.Node) -> tuple[torch.Tensor, ...]:
    p.graph.output(results)
    return fx.GraphModule(torch.nn.Module(), p.graph)(X)


def test_nodes_carry_meta_and_complete_arguments():
    p, x = start()
    node = p.sum(x, dims=(1,))
    assert node.target is ops.sum and node.args == (x, (1,)) and not node.kwargs
    assert node.meta["val"].shape == (3,) and node.name == "sum_1"


def test_the_scope_goes_into_new_nodes():
    p, x = start()
    p.scope = {"source": "model.py:3"}
    assert p.exp(x).meta["source"] == "model.py:3"


def test_several_results_are_getitem_nodes_made_once():
    p, x = start()
    first, second = p.sort(x, 1, False, True), p.sort(x, 1, False, True)
    assert first == second and [n.meta["val"].dtype for n in first] == [torch.float32, torch.int64]
    values, places = value(p, *first)
    assert torch.equal(values, X.sort(1).values) and torch.equal(places, X.sort(1).indices)


def test_unused_results_are_none():
    p, x = start()
    g, w = p.reshape(x, (1, 1, 3, 4)), p.full((1, 1, 1, 1), 1, torch.float32, torch.device("cpu"))
    options = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1, (True, False, False))
    dx, dw, db = p.convolution_backward(g, g, w, None, *options)
    assert dx is not None and dw is None and db is None


def test_wrong_operands_are_refused():
    p, x = start()
    with pytest.raises(CompileError, match="prim add"):
        p.add(x, p.sum(x, (0,)))
    with pytest.raises(CompileError, match="prim sum"):
        p.sum(x)


def test_shorthands():
    p, x = start()
    row = p.sum(x, (1,))
    kept, spread = p.keep(row, (1,)), p.spread(row, (3, 4), (1,))
    wide = p.broadcast(kept, (2, 3, 4))
    like = p.full_like(x, 2)
    results = value(p, kept, spread, wide, like)
    total = X.sum(1, keepdim=True)
    for got, want in zip(results, (total, total.expand(3, 4), total.expand(2, 3, 4), X * 0 + 2), strict=True):
        torch.testing.assert_close(got, want)
