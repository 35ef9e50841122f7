"""The schedule of the debug mode for memory: every buffer in memory of its own, every kernel by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from smelt.schedule.memory import MemoryPlan
from smelt.schedule.plan import Schedule, Watched


def watch(plan: Schedule, lines: Mapping[str, str]) -> Schedule:
    """The plan with no memory that is used twice, so that a host program can look at each buffer (runtime's `Watch`).

    What is written over an input of the program stays there: that is what the program does to its caller's memory.

    Args:
        lines: the user's line that a value comes from.
    """
    shared = plan.memory.offsets.keys() | set(plan.over_others.values())
    return replace(
        plan,
        memory=MemoryPlan(),
        apart=plan.apart | shared,
        over_others={},
        bundles=[],
        watched=Watched(dict(lines), frozenset(shared)),
    )
