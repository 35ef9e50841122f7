"""smelt/schedule/origins.py: which of the user's operations a kernel computes something of."""

from __future__ import annotations

import torch
from torch import fx

from smelt.abi.steps import Origin
from smelt.base.options import Options
from smelt.loops.ir import LoopProgram
from smelt.loops.lower import lower
from smelt.schedule.origins import computed_by, origins_of, with_inlined
from smelt.schedule.plan import schedule
from tests.loops.graphs import GraphBuilder


class Line:
    """A place in the user's program. Two of them are never equal."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


def marked(node: fx.Node, line: Line | None, **names: str) -> fx.Node:
    node.meta |= names
    if line is not None:
        node.meta["line"] = line
    return node


def test_values_without_buffers_come_before_what_inlines_them() -> None:
    g = GraphBuilder()
    x, y = g.input(4, 4), g.input(4, 4)
    shared = g.exp(x)
    left, right = g.neg(shared), g.sin(y)
    product = g.mm(left, right)
    program = lower(g.build(g.add(g.mul(shared, left), g.sub(shared, product))))
    assert with_inlined(program, ["add"], {"x0", "x1", "mm"}) == ["exp", "neg", "mul", "sub", "add"]
    assert with_inlined(program, ["add"], {"exp", "mm"}) == ["neg", "mul", "sub", "add"]
    assert with_inlined(program, ["sin", "neg", "sin"], set()) == ["sin", "exp", "neg"]
    assert with_inlined(program, ["mm"], set()) == ["exp", "neg", "sin", "mm"]
    assert with_inlined(program, [], set()) == []


def test_a_long_chain_needs_no_recursion() -> None:
    g = GraphBuilder()
    x = g.input(2)
    for _ in range(3000):
        x = g.neg(x)
    program = lower(g.build(x))
    assert with_inlined(program, [x.name], {"x0"}) == [n for n in program.nodes if n != "x0"]


def test_operations_of_a_unit_end_at_buffers() -> None:
    g = GraphBuilder()
    x, w = g.input(8, 8), g.input(8, 8)
    first = g.exp(g.neg(x))
    plan = schedule(lower(g.build(g.mul(g.sin(g.mm(first, w)), 2.0))), Options())
    made = [computed_by(plan, n) for n in plan.steps if n in plan.groups]
    assert made == [["neg", "exp"], ["sin", "mul"]]


def program_of(*nodes: tuple[Line | None, dict[str, str]]) -> tuple[LoopProgram, list[str]]:
    g = GraphBuilder()
    x, made = g.input(64), []
    for line, names in nodes:
        x = marked(g.neg(x), line, **names)
        made.append(x.name)
    return lower(g.build(x)), made


def test_operations_are_listed_once_in_the_order_of_their_values() -> None:
    one, other = Line("a.py:3"), Line("a.py:3")
    names = [
        (one, {"from": "mul"}),
        (other, {"from": "mul"}),
        (one, {"from": "add"}),
        (one, {"from": "mul"}),
        (one, {"of": "mul"}),
    ]
    program, made = program_of(*names)
    assert origins_of(program, made) == (
        Origin(one, "mul"), Origin(other, "mul"), Origin(one, "add"), Origin(one, "mul", True),
    )  # fmt: skip
    assert origins_of(program, made[:1] + made[3:4]) == (Origin(one, "mul"),)


def test_a_value_is_its_own_definition_only_if_no_operation_is_known() -> None:
    line = Line("b.py:1")
    program, (lost, nameless, known) = program_of((None, {"from": "mul"}), (line, {}), (line, {"from": "add"}))
    assert origins_of(program, [lost, nameless, lost]) == (Origin(None, lost), Origin(None, nameless))
    assert origins_of(program, [lost, known, nameless]) == (Origin(line, "add"),)
    assert origins_of(program, []) == ()
    assert origins_of(program, ["x0"]) == (Origin(None, "x0"),)


def test_parts_that_the_schedule_makes_belong_to_their_call() -> None:
    line = Line("c.py:9")
    g = GraphBuilder()
    total = marked(g.sum(g.input(1 << 17), (0,)), line, **{"from": "sum"})
    plan = schedule(lower(g.build(total)), Options())
    parts = [name for name in plan.program.nodes if name.startswith(total.name)]
    assert len(parts) == 2 and all(origins_of(plan.program, [name]) == (Origin(line, "sum"),) for name in parts)
    assert torch.Size(plan.program.nodes[total.name].source_shape).numel() < 1 << 17
