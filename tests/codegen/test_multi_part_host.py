"""smelt/codegen/multi_part_host.py: parts of a graph in order, and the numbers that are read in between."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from smelt.abi.rendered import Rendered
from smelt.codegen.multi_part_host import render_multi_part_host
from smelt.graph.ir.meta import meta_of
from smelt.loops.split_by_device import Part, PartSequence
from smelt.shapes.assumptions import Assumptions
from smelt.shapes.size import as_symbol

aten = torch.ops.aten
Call = Callable[[list[Any]], Sequence[Any]]


class Nodes:
    """Makes nodes that have a meta."""

    def __init__(self) -> None:
        self.graph, self.known = fx.Graph(), Assumptions()

    def input(self, name: str, value: Any = None) -> fx.Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = meta_of(torch.zeros(3)) if value is None else value
        return node

    def call(self, target: Any, *args: Any, value: Any = None, **kwargs: Any) -> fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        node.meta["val"] = meta_of(torch.zeros(3)) if value is None else value
        return node


def computed() -> None:
    """Stands for what a part computes."""


def rendered(source: str = "") -> Rendered:
    return Rendered([source], [[source]], "", [])


def ran(chain: PartSequence, parts: Sequence[Call], inputs: Sequence[Any]) -> list[Any]:
    """What the program gives, with these in place of the parts' programs."""
    made = render_multi_part_host(chain, [rendered(f"part {i}") for i in range(len(parts))])
    assert made.cpp_sources == [f"part {i}" for i in range(len(parts))] and len(made.parts) == len(parts)
    names: dict[str, Any] = {"parts": list(parts), "operators": made.operators, "torch": torch}
    exec(made.host_source, names)
    boxed = list(inputs)
    results = names["call"](boxed)
    assert boxed == []
    return results


def module() -> fx.GraphModule:
    return fx.GraphModule({}, fx.Graph())


def test_a_number_is_read_between_two_subgraphs() -> None:
    n = Nodes()
    x, w = n.input("x"), n.input("w")
    first = n.call(computed)
    size = n.known.symbol(5)
    number = n.call(aten._local_scalar_dense.default, first, value=size)
    last = n.call(computed)
    symbol = as_symbol(size)
    assert symbol is not None
    parts = [
        Part(module=module(), inputs=[x], outputs=[first]),
        Part(host=[number], module=module(), inputs=[first, w], symbols=[symbol], outputs=[last]),
    ]
    seen: list[list[Any]] = []

    def one(given: list[Any]) -> list[Any]:
        seen.append(list(given))
        return [torch.tensor(7)]

    def other(given: list[Any]) -> list[Any]:
        seen.append(list(given))
        return ["made"]

    results = ran(PartSequence([x, w], parts, (last, w, size + 1, None, 4)), [one, other], ["x", "w"])
    assert seen == [["x"], [torch.tensor(7), "w", 7]] and results == ["made", "w", 8, None, 4]


def test_values_are_dropped_after_their_last_use() -> None:
    n = Nodes()
    x, kept = n.input("x"), n.input("kept")
    first, last = n.call(computed), n.call(computed)
    parts = [
        Part(module=module(), inputs=[x, kept], outputs=[first]),
        Part(module=module(), inputs=[first, kept], outputs=[last]),
    ]
    text = render_multi_part_host(PartSequence([x, kept], parts, (last, kept)), [rendered(), rendered()]).host_source
    lines = [line.strip() for line in text.splitlines()]
    assert lines[lines.index("given = [x0, x1]") + 1] == "del x0"
    assert lines[lines.index("given = [p0_0, x1]") + 1] == "del p0_0"
    assert lines[-1] == "return [p1_0, x1]"


def test_steps_of_the_host_itself() -> None:
    n = Nodes()
    x = n.input("x")
    size = n.known.symbol(4)
    pair = n.call(aten.aminmax.default, x, dim=0, value=(x.meta["val"], x.meta["val"]))
    top = n.call(operator.getitem, pair, 1)
    length = n.call(aten.sym_size.int, x, 0, value=size)
    joined = n.call(aten.cat.default, [x, x], 0)
    moved = n.call(aten.add.Tensor, joined, length, alpha=2)
    tuple_of_one = n.call(max, (length,), value=size)
    part = Part(host=[pair, top, length, joined, moved, tuple_of_one])
    values = torch.tensor([3.0, 1.0, 2.0, 5.0])
    got = ran(PartSequence([x], [part], (top, moved, x, tuple_of_one)), [], [values])
    assert got[0].item() == 5 and torch.equal(got[1], torch.cat([values, values]) + 8) and got[2] is values
    assert got[3] == 4


def test_a_chain_of_nothing() -> None:
    assert ran(PartSequence([], [], ()), [], []) == []
    n = Nodes()
    x, size = n.input("x"), n.known.symbol(3)
    number = n.input("number", size)
    assert ran(PartSequence([x, number], [Part()], (number, x)), [], ["x", 9]) == [9, "x"]
