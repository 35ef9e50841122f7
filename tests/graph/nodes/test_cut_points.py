"""Graphs with eager boundaries: regions are closed at them, and running the graph stays the same."""

from __future__ import annotations

import torch
from torch import fx

from smelt.graph.ir.module import GraphModule
from smelt.graph.nodes import modes
from smelt.graph.nodes.cut_points import Edge, cuts, without_regions_at


def _graph():
    """Autocast around a cut, with gradients off in it until after the cut."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    cast = graph.call_function(modes.enter_autocast, ("cpu", torch.bfloat16))
    first = graph.call_function(torch.matmul, (x, x))
    off = graph.call_function(modes.enter_grad_mode, (False,))
    second = graph.call_function(torch.matmul, (first, x))
    graph.call_function(Edge(), (first,))
    third = graph.call_function(torch.matmul, (first, x))
    graph.call_function(modes.exit_grad_mode, (off,))
    fourth = graph.call_function(torch.matmul, (first, x))
    graph.call_function(modes.exit_autocast, (cast,))
    last = graph.call_function(torch.matmul, (x, x))
    graph.output((first, second, third, fourth, last))
    return graph


def test_no_region_is_open_at_a_seam():
    graph = without_regions_at(_graph())
    (boundary,) = cuts(graph)
    depth, found = 0, {}
    for node in graph.nodes:
        depth += (node.target in modes.EXITS) - (node.target in modes.EXITS.values())
        found[node] = depth
    assert found[boundary] == 0 and depth == 0 and max(found.values()) == 2


def test_the_modes_of_each_node_stay():
    x = torch.randn(3, 3, requires_grad=True)
    graph = _graph()
    was, now = (GraphModule({}, each)(x) for each in (graph, without_regions_at(graph)))
    assert [(t.dtype, t.requires_grad) for t in was] == [(t.dtype, t.requires_grad) for t in now]
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
    half, full = torch.bfloat16, torch.float32
    assert [(t.dtype, t.requires_grad) for t in was] == [
        *[(half, True), (half, False), (half, False), (half, True)],
        (full, True),
    ]
