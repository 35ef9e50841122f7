"""The schedule of the debug mode for memory: nothing is used twice, and inputs are still written over."""

from __future__ import annotations

from smelt.base.options import Options
from smelt.loops.lower import lower
from smelt.schedule.plan import Schedule, schedule, watch
from tests.loops.graphs import GraphBuilder


def plan(updates: dict[int, str] | None = None) -> Schedule:
    g = GraphBuilder()
    x = g.input(300, 400)
    total = g.cumsum(g.cumsum(g.exp(x), 1), 0)
    return schedule(lower(g.build(g.mul(g.cumsum(total, 1), x))), Options(), updates)


def test_each_buffer_has_memory_of_its_own() -> None:
    before = plan()
    assert before.memory.offsets
    watched = watch(before, {"exp": "model.py:3"})
    assert not watched.memory.offsets and not watched.over_others and not watched.bundles
    assert watched.dedicated >= before.memory.offsets.keys() and watched.watched is not None
    assert watched.watched.shared == before.memory.offsets.keys() | set(before.over_others.values())
    assert watched.watched.lines == {"exp": "model.py:3"}
    assert before.watched is None and before.memory.offsets  # the plan that it was made from is as it was


def test_inputs_are_written_over_as_before() -> None:
    before = plan({0: "x0"})
    assert before.over_inputs
    assert watch(before, {}).over_inputs == before.over_inputs
