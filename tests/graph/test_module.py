"""The lazily compiled graph module."""

from __future__ import annotations

import copy

import torch
from torch import fx, nn

from smelt.graph.module import GraphModule, remove_dead


def double() -> GraphModule:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.mul, (x, 2)),))
    return GraphModule(nn.Module(), graph)


def test_code_is_written_at_the_first_call() -> None:
    gm = double()
    assert "_code" not in gm.__dict__
    assert gm(torch.ones(1))[0].item() == 2
    assert "_code" in gm.__dict__


def test_code_and_text_can_be_read() -> None:
    assert "torch.mul" in double().code
    assert "torch.mul" in str(double())


def test_two_modules_do_not_share_code() -> None:
    a, b = double(), double()
    next(n for n in b.graph.nodes if n.op == "call_function").args = (b.graph.find_nodes(op="placeholder")[0], 3)
    b.recompile()
    assert a(torch.ones(1))[0].item() == 2 and b(torch.ones(1))[0].item() == 3


def test_recompile_forgets() -> None:
    gm = double()
    gm(torch.ones(1))
    next(n for n in gm.graph.nodes if n.op == "call_function").target = torch.add
    gm.recompile()
    assert gm(torch.ones(1))[0].item() == 3


def test_deepcopy() -> None:
    assert copy.deepcopy(double())(torch.ones(1))[0].item() == 2


def test_remove_dead() -> None:
    gm = double()
    x = gm.graph.find_nodes(op="placeholder")[0]
    with gm.graph.inserting_before(gm.graph.output_node()):
        gm.graph.call_function(torch.exp, (gm.graph.call_function(torch.sin, (x,)),))
    gm.graph.lint()
    remove_dead(gm.graph)
    assert [n.op for n in gm.graph.nodes] == ["placeholder", "call_function", "output"]
