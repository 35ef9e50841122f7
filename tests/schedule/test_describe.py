"""Schedules as text: kernels, what they read, where values lie, each decision with its reason."""

from __future__ import annotations

from dataclasses import replace

from smelt.base.options import Options
from smelt.loops.lower import lower
from smelt.schedule.describe import describe
from smelt.schedule.fuse import Decision
from smelt.schedule.plan import schedule
from tests.loops.graphs import GraphBuilder


def test_each_kernel_and_each_decision_is_logged() -> None:
    g = GraphBuilder()
    x, y = g.input(30, 40), g.input(40, 50)
    both = g.exp(g.add(g.mm(g.sin(x), y), g.mm(g.cos(x), y)))
    plan = schedule(lower(g.build(both, g.sum(x, (1,)))), Options())
    plan = replace(plan, decisions=[*plan.decisions, Decision("sin", "sum_1", 4800, "loops differ")])
    text = describe(plan)
    lines = text.splitlines()
    values = sum(len(group.members) for group in plan.groups.values())
    assert lines[0] == f"{len(plan.groups)} kernels for {values} values, {len(plan.externs)} external calls"
    assert sum(line.startswith("kernel ") for line in lines) == len(plan.groups)
    assert [line.split()[1] for line in lines if line.startswith("extern ")] == [
        plan.externs[number].name for number in plan.steps if number not in plan.groups
    ]
    for group in plan.groups.values():
        for name in group.members:
            (line,) = (line for line in lines if line.startswith(f"    {name}: "))
            assert ("arena" in line) == (name in plan.memory.offsets)
    refused = {(d.left, d.right): d for d in plan.decisions if d.refusal is not None}
    merged = [d for d in plan.decisions if d.refusal is None]
    assert refused and merged and f"fused {len(merged)} pairs:" in lines
    assert all(f"    {d.left} with {d.right} ({d.saved} bytes): {d.refusal}" in lines for d in refused.values())
    assert f"arena {plan.memory.size} bytes for {plan.memory.naive} bytes" in text


def test_rows_name_their_loops() -> None:
    g = GraphBuilder()
    x = g.input(30, 40)
    text = describe(schedule(lower(g.build(g.sum(x, (1,)))), Options()))
    assert "kernel rows over " in text and "30" in text and "40" in text and "    reads x0" in text
