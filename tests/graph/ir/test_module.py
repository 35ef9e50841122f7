"""The lazily compiled graph module."""

from __future__ import annotations

import copy
import gc
import operator
import random
import sys
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import fx, nn

from smelt.graph.ir.module import Graph, GraphModule, dismantle, remove_dead


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


def calls_in(graph: fx.Graph) -> fx.Graph:
    """A program with nested arguments, names that are given and names that are taken."""
    x, y = graph.placeholder("x"), graph.placeholder("y")
    both = graph.call_function(torch.cat, ([x, y], 1))
    split = graph.create_node("call_function", torch.split, (both, 2), {"dim": 1}, "parts")
    first = graph.call_function(operator.getitem, (split, 0))
    with graph.inserting_before(first):
        graph.call_method("neg", (x,), type_expr=torch.Tensor)
    graph.create_node("call_function", torch.add, (first, x), {"alpha": y}, "parts")
    graph.output((first, {"x": x, "cut": slice(None, 2)}))
    return graph


def described(graph: fx.Graph) -> list[Any]:
    return [
        (n.name, n.op, n.target, n.type, str(n.args), str(n.kwargs), type(n.args), [u.name for u in n.users], n.meta)
        + ([i.name for i in n.all_input_nodes],)
        for n in graph.nodes
    ]


def test_nodes_are_those_of_fx() -> None:
    graph, theirs = calls_in(Graph()), calls_in(fx.Graph())
    assert described(graph) == described(theirs)
    graph.lint()
    assert graph.python_code("self").src == theirs.python_code("self").src
    assert described(copy.deepcopy(graph)) == described(theirs)


def test_copied_nodes_are_those_of_fx() -> None:
    source = calls_in(fx.Graph())
    for node in source.nodes:
        node.meta["place"] = [node.name]
    copies = []
    for graph in (Graph(), fx.Graph()):
        made: dict[fx.Node, fx.Node] = {}
        for node in source.nodes:
            made[node] = graph.node_copy(node, made.__getitem__)
        copies.append(described(graph))
        assert all(new.meta is not old.meta and new.meta["place"] is old.meta["place"] for old, new in made.items())
    assert copies[0] == copies[1]


def test_code_is_written_once_for_all_holders_of_the_first_method() -> None:
    graph = Graph()
    graph.output(graph.call_function(torch.sin, (graph.placeholder("x"),)))
    module = GraphModule({}, graph)
    held, written = module.forward, []
    original = fx.GraphModule.recompile

    def counted(self: fx.GraphModule) -> object:
        written.append(self)
        return original(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fx.GraphModule, "recompile", counted)
        for _ in range(3):
            torch.testing.assert_close(held(torch.ones(2)), torch.ones(2).sin())
    assert len(written) == 1


def test_threads_that_run_a_module_for_the_first_time() -> None:
    """While one wrote the code the nodes had other names for another, which read values that nothing had assigned."""

    def run(module: GraphModule, begin: threading.Barrier, found: list[Any]) -> None:
        begin.wait()
        found.append(module(torch.ones(1)).item())

    def raced() -> list[Any]:
        graph = Graph()
        value = graph.placeholder("x")
        for k in range(40):
            value = graph.call_function(torch.mul if k % 2 else torch.add, (value, 2), name="sum")
        graph.output(value)
        module, begin, found = GraphModule({}, graph), threading.Barrier(4), list[Any]()
        threads = [threading.Thread(target=run, args=(module, begin, found)) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        return found

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        assert all(len(set(found)) == 1 and len(found) == 4 for found in [raced() for _ in range(40)])
    finally:
        sys.setswitchinterval(before)


TARGETS = (torch.relu, operator.getitem, torch.ops.aten.add.Tensor, torch.nn.functional.gelu, nn.Linear, sum, "aB")


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: getattr(target, "__name__", target))
def test_nodes_are_named_as_fx_does(target: Any) -> None:
    op = "call_method" if isinstance(target, str) else "call_function"
    made = [[graph.create_node(op, target).name for _ in range(3)] for graph in (Graph(), fx.Graph())]
    assert made[0] == made[1]


@pytest.mark.parametrize("target", ["__add__", "weight", "layer.innerWeight", "ALL_CAPS", "in", "2x"])
def test_inputs_and_attributes_are_named_as_fx_does(target: str) -> None:
    made = [
        [graph.create_node(op, target).name for op in ("placeholder", "get_attr")] for graph in (Graph(), fx.Graph())
    ]
    assert made[0] == made[1]


NAMES = (
    *"mul sum mul_1 mul_2 mul_10 a_1_2 _1 __ a__ a_01 a_1_ sum_1 if class_3 nan nan_2 self torch _ _0".split(),
    *"x-y 1a \u00e9 a_\u0663".split(),
)


@pytest.mark.parametrize("seed", range(20))
def test_nodes_are_named_as_fx_names_them(seed: int) -> None:
    draw, ours, theirs = random.Random(seed), Graph(), fx.Graph()
    for _ in range(120):
        name = draw.choice(NAMES)
        a, b = (graph.create_node("call_function", torch.relu, (), {}, name) for graph in (ours, theirs))
        assert a.name == b.name


def test_nodes_are_found_by_target() -> None:
    ours, theirs = Graph(), fx.Graph()
    for graph in (ours, theirs):
        x = graph.placeholder("x")
        a, b, c = (graph.call_function(f, (x,)) for f in (torch.sin, torch.cos, torch.sin))
        method = graph.call_method("relu", (b,))
        graph.call_method("exp", (method,))
        a.target = torch.cos
        graph.erase_node(c)
        graph.output(b)
        graph.lint()
    queries: list[dict[str, Any]] = [{"op": op} for op in ("placeholder", "call_method", "output")]
    queries += [{"op": "call_method", "target": "exp"}]
    queries += [{"op": "call_function", "target": f} for f in (torch.sin, torch.cos, torch.tan)]
    for query in queries:
        found = [[node.name for node in graph.find_nodes(**query)] for graph in (ours, theirs)]
        assert found[0] == found[1]


def test_a_node_is_made_where_nodes_are_inserted_and_told_to_hooks() -> None:
    graph, made = Graph(), []
    x = graph.placeholder("x")
    last = graph.call_function(torch.sin, (x,))
    gm = GraphModule(nn.Module(), graph)
    gm._register_create_node_hook(made.append)
    with graph.inserting_before(last):
        node = graph.create_node("call_function", torch.add, (x, [x, 2]), {"alpha": x}, type_expr=int)
    assert [each.name for each in graph.nodes] == ["x", "add", "sin"] and made == [node] and len(graph.nodes) == 3
    assert node.args == (x, [x, 2]) and node.kwargs == {"alpha": x} and node.type is int
    assert list(x.users) == [last, node] and node.all_input_nodes == [x]


def test_a_dismantled_graph_is_freed_without_the_collector() -> None:
    graph = Graph()
    node = graph.placeholder("x")
    for _ in range(2000):  # freeing a chain of nodes does not recurse
        node = graph.call_function(torch.add, (node, node))
    alive = [weakref.ref(each) for each in graph.nodes]
    gc.disable()
    try:
        dismantle(graph)
        del graph, node
        assert not any(each() for each in alive)
    finally:
        gc.enable()
