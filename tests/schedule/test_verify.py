"""Each rule of schedules is held: a plan that breaks it is refused, with the buffer or unit and the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from smelt.base.options import Options
from smelt.loops.lower import lower
from smelt.schedule.machine import CPU, GPU, Machine
from smelt.schedule.plan import Schedule, schedule, watch
from smelt.schedule.verify import InvalidSchedule, verify
from tests.loops.graphs import GraphBuilder
from tests.loops.random_graphs import RandomGraph


def plan() -> Schedule:
    """Products in a row: their results lie in an arena, where two have to be apart."""
    g = GraphBuilder()
    x, w = g.input(64, 64), g.input(64, 64)
    y = x
    for _ in range(4):
        y = g.mm(g.exp(y), w)
    both = g.mm(y, g.mm(y, w))
    return schedule(lower(g.build(g.exp(both), g.neg(x))), Options(), {1: "x0"}, replace(CPU, takes_over=False))


def swapped(plan: Schedule) -> None:
    plan.steps[0], plan.steps[-1] = plan.steps[-1], plan.steps[0]


def all_at_the_start(plan: Schedule) -> None:
    plan.memory.in_place.clear()
    plan.memory.offsets = dict.fromkeys(plan.memory.offsets, 0)


def output_in_the_arena(plan: Schedule) -> None:
    plan.memory.offsets["exp_4"] = plan.memory.size
    plan.memory.size += 64 * 64 * 4


def shifted(plan: Schedule) -> None:
    plan.memory.offsets = {name: at + plan.memory.size for name, at in plan.memory.offsets.items()}


def written_over_too_early(plan: Schedule) -> None:
    plan.over_others["mm_1"] = "mm"
    plan.over_others["exp_1"] = "x1"


WRONG: dict[str, tuple[Callable[[Schedule], object], str]] = {
    "order": (swapped, "before it is made"),
    "a unit less": (lambda plan: plan.steps.pop(), "its units"),
    "a unit twice": (lambda plan: plan.steps.append(plan.steps[0]), "its units"),
    "not stored": (lambda plan: plan.stored.discard("exp"), "exp, which no unit makes"),
    "arena": (all_at_the_start, "are there at the same time"),
    "its size": (shifted, "of an arena of"),
    "outputs": (output_in_the_arena, "output exp_4 is not the caller's"),
    "written over": (written_over_too_early, "over which exp_1 has been written"),
    "bundles": (lambda plan: plan.bundles.append([plan.steps[0], plan.steps[2]]), "do not follow each other"),
    "at the same time": (lambda plan: plan.bundles.append(plan.steps[:2]), "before it is made"),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_plan_is_refused(name: str) -> None:
    made = plan()
    verify(made)
    change, why = WRONG[name]
    change(made)
    with pytest.raises(InvalidSchedule, match=f"(?s){why}"):
        verify(made)


@pytest.mark.parametrize("machine", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("seed", range(10))
def test_scheduled_plans_are_valid(seed: int, machine: Machine) -> None:
    made = schedule(lower(RandomGraph(seed).build(20)), Options(), machine=machine)
    verify(made)
    verify(watch(made, {}))
