"""smelt/loops/emptied.py: the graph for calls in which some sizes are 0, against the whole graph at these sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from smelt.graph.ir.meta import TensorMeta
from smelt.loops.emptied import emptied
from smelt.prims.ops import PRIMS
from smelt.shapes.size import Size, as_symbol
from tests.loops.graphs import run_eager
from tests.loops.symbolic import SymbolicBuilder, at_sizes

CPU = torch.device("cpu")


def built(g: SymbolicBuilder, *outputs: fx.Node) -> fx.GraphModule:
    """The graph as stages hand it on: its output has the metas of the results."""
    gm = g.build(*outputs)
    gm.graph.output_node().meta["val"] = tuple(node.meta["val"] for node in outputs)
    return gm


def tensors(gm: fx.GraphModule) -> list[fx.Node]:
    return [n for n in gm.graph.nodes if n.op == "placeholder" and isinstance(n.meta["val"], TensorMeta)]


def calls(gm: fx.GraphModule) -> list[str]:
    return [n.target.name for n in gm.graph.nodes if n.op == "call_function"]


def sums(g: SymbolicBuilder, n: Size, m: Size) -> tuple[fx.Node, ...]:
    x, w = g.input(n, m, 3), g.input(3)
    y = g.add(g.exp(x), g.broadcast_in_dim(w, (n, m, 3), (2,)))
    return g.sum(y, (0,)), g.prod(y, (1,)), g.sum(y, (0, 1, 2)), y, g.mul(w, n)


def joined(g: SymbolicBuilder, n: Size, m: Size) -> tuple[fx.Node, ...]:
    x, y = g.input(n, 4), g.input(m, 4)
    whole = g.cat((g.neg(x), y), 0)
    return whole, g.full((n + m, 2), n + 1, torch.float32, CPU), g.slice(whole, (0, 1), (n + m, 3), (1, 1))


def moved(g: SymbolicBuilder, n: Size, m: Size) -> tuple[fx.Node, ...]:
    x = g.input(2, n, m)
    padded = g.pad(g.permute(x, (1, 0, 2)), (1, 0, 0), (0, 0, 2), 5.0)
    return padded, g.reshape(g.sum(padded, (2,)), ((n + 1) * 2,)), g.argmax(padded, 2)


@pytest.mark.parametrize("program", [sums, joined, moved])
@pytest.mark.parametrize("zeros", [(0,), (1,), (0, 1)])
def test_it_computes_what_the_whole_graph_does(program: Callable[..., Any], zeros: tuple[int, ...]) -> None:
    g = SymbolicBuilder(4, 3)
    gm = built(g, *program(g, *g.symbols))
    found = emptied(gm, [as_symbol(g.symbols[i]) for i in zeros])
    sizes = [0 if i in zeros else 3 for i in range(2)]
    left = [n for i, n in enumerate(sizes) if i not in zeros]
    assert len([n for n in found.graph.nodes if n.op == "placeholder"]) == len(tensors(gm)) + len(left)
    whole, small = at_sizes(gm, sizes), at_sizes(found, left)
    given = [torch.randn(n.meta["val"].shape) for n in tensors(whole)]
    assert [tuple(t.shape) for t in given] == [n.meta["val"].shape for n in tensors(small)]
    want, got = run_eager(whole, given), run_eager(small, given)
    for one, other, node in zip(want, got, small.graph.output_node().args[0], strict=True):
        assert torch.equal(one, other) and one.dtype is other.dtype and node.meta["val"].shape == one.shape
    assert [n.name for n in tensors(gm)] == [n.name for n in tensors(found)], "the graph itself stays as it was"


def test_empty_tensor_is_replaced_by_a_creation() -> None:
    g = SymbolicBuilder(4, 3)
    n, _ = g.symbols
    x, w = g.input(n, 3), g.input(3)
    gm = built(g, g.sin(g.mul(x, x)), g.cos(w))
    found = emptied(gm, [as_symbol(n)])
    assert calls(gm) == ["mul", "sin", "cos"] and calls(found) == ["full", "cos"]
    made = next(node for node in found.graph.nodes if node.op == "call_function")
    assert made.args == ((0, 3), 0, torch.float32, CPU) and made.meta["val"] == TensorMeta(
        (0, 3), torch.float32, (3, 1), CPU
    )


def test_sizes_count_as_one_in_strides() -> None:
    g = SymbolicBuilder(4, 3)
    n, m = g.symbols
    found = emptied(built(g, g.neg(g.input(2, n, m))), [as_symbol(n)])
    meta = tensors(found)[0].meta["val"]
    assert [str(size) for size in meta.shape] == ["2", "0", "s1"] and [str(step) for step in meta.stride] == [
        "s1",
        "s1",
        "1",
    ]


def test_a_symbol_that_was_found_equal_is_empty_too() -> None:
    g = SymbolicBuilder(6, 6)
    n, m = g.symbols
    assert n == m
    found = emptied(built(g, g.exp(g.input(n, 2)), g.exp(g.input(m, 2))), [as_symbol(m)])
    assert calls(found) == ["full", "full"] and [t.meta["val"].shape for t in tensors(found)] == [(0, 2), (0, 2)]


def test_a_size_that_is_an_argument_becomes_its_number() -> None:
    g = SymbolicBuilder(4, 3)
    n, m = g.symbols
    count = g.graph.placeholder("count")
    count.meta["val"] = n
    x = g.input(5)
    scaled = g.graph.create_node("call_function", PRIMS["mul"], (x, count), {})
    scaled.meta["val"] = x.meta["val"]
    g.symbols = [m]
    gm = built(g, scaled, g.mul(x, n + m))
    found = emptied(gm, [as_symbol(n)])
    first, second = (node for node in found.graph.nodes if node.op == "call_function")
    assert first.args[1] == 0 and str(second.args[1]) == "s1"
    assert [node.name for node in found.graph.nodes if node.op == "placeholder"] == [x.name, "s1"]


def test_a_division_by_an_empty_size_is_an_error() -> None:
    g = SymbolicBuilder(4, 3)
    n, m = g.symbols
    gm = built(g, g.full((8 * m // n,), 1.0, torch.float32, CPU))
    with pytest.raises(ZeroDivisionError):
        emptied(gm, [as_symbol(n)])
    assert calls(emptied(gm, [as_symbol(m)])) == ["full"]
