"""Checks a schedule: each buffer is written before it is read, and its memory is not reused before its last use.

The pipeline runs it after scheduling under SMELT_STRICT. A moment is a point of time in the schedule: a unit, or all
kernels of a bundle, which run at the same time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from smelt.base.errors import CompileError
from smelt.loops.ir import Constant, Input, Item
from smelt.schedule.plan import Schedule
from smelt.schedule.realize import metas_of
from smelt.schedule.sharing import find_sharing, shared_buffers
from smelt.shapes.size import hint


class InvalidSchedule(CompileError):
    """Raised for a schedule that violates an invariant."""


def verify(plan: Schedule) -> None:
    """Check the invariants of a schedule.

    Raises:
        InvalidSchedule: an invariant is violated; the message names the first buffer or unit, and the invariant.
    """
    moments = _Moments(plan)
    rules = (_bad_units(plan), moments.problems, _bad_reads(moments), _bad_arena(moments), _overwritten(moments))
    for why in itertools.chain.from_iterable(rules):
        raise InvalidSchedule("schedule", why=why)


class _Moments:
    """The moments at which each unit of a schedule runs, and at which each buffer is written and last used.

    Attributes:
        of: moment of each unit, by number.
        written: moment of the write of each buffer.
        reads: for each unit the buffers that it reads, and the buffers of which they may be views.
        last: moment of the last use of each buffer.
    """

    def __init__(self, plan: Schedule) -> None:
        self.plan, self.problems = plan, list[str]()
        first = {number: bundle[0] for bundle in plan.bundles for number in bundle}
        self.of: dict[int, int] = {}
        for at, number in enumerate(plan.steps):
            self.of[number] = self.of.get(first.get(number, number), at)
        items: dict[str, list[str]] = {}
        for node in plan.program.nodes.values():
            if isinstance(node, Item):
                items.setdefault(node.inputs[0], []).append(node.name)
        sharing = find_sharing(plan.program, plan.views)
        self.written: dict[str, int] = {}
        self.maker: dict[str, int] = {}
        self.reads: dict[int, set[str]] = {}
        self.last: dict[str, int] = {}
        for number, moment in self.of.items():
            for name in self.made(number, items):
                if name in self.written:
                    self.problems.append(f"{name} is made twice")
                self.written[name], self.maker[name], self.last[name] = moment, number, moment
            read = plan.read_by(number)
            self.reads[number] = {*read, *shared_buffers(sharing, read)}
            self.last |= dict.fromkeys(self.reads[number], moment)

    def made(self, number: int, items: Mapping[str, list[str]]) -> list[str]:
        """Returns the buffers that a unit makes."""
        if number in self.plan.externs and number not in self.plan.products:
            name = self.plan.externs[number].name
            return [name, *items.get(name, [])]
        return [name for name in self.plan.made_by(number) if name in self.plan.stored]


def _bad_units(plan: Schedule) -> Iterator[str]:
    inside = {n for product in plan.products.values() for n in product.group_numbers}
    inside |= {n for n, node in plan.externs.items() if node.name in {p.name for p in plan.products.values()}}
    wanted = {*plan.products, *({*plan.groups, *plan.externs} - inside)}
    if len(set(plan.steps)) != len(plan.steps) or set(plan.steps) != wanted:
        yield f"its steps are {plan.steps}, its units {sorted(wanted)}"
    for bundle in plan.bundles:
        at = plan.steps.index(bundle[0])
        if plan.steps[at : at + len(bundle)] != bundle:
            yield f"kernels {bundle} run at the same time and do not follow each other"


def _bad_reads(moments: _Moments) -> Iterator[str]:
    plan, nodes = moments.plan, moments.plan.program.nodes
    for number, read in moments.reads.items():
        for name in read:
            if isinstance(nodes[name], (Input, Constant)):
                continue
            if name not in moments.written:
                yield f"unit {number} reads {name}, which no unit makes"
            elif moments.written[name] >= moments.of[number]:
                yield f"unit {number} reads {name} before it is made"
    for output in plan.program.outputs:
        if output.name is not None and not isinstance(nodes[output.name], (Input, Constant)):
            if output.name not in moments.written:
                yield f"output {output.name} is not made"
            if output.name in plan.memory.offsets or output.name in plan.dedicated:
                yield f"output {output.name} is not the caller's"


def _bad_arena(moments: _Moments) -> Iterator[str]:
    """Yields the error if two buffers that are live at the same time overlap in the arena."""
    plan = moments.plan
    open_ones: list[str] = []
    for name in sorted(plan.memory.offsets, key=lambda name: moments.written[name]):
        start, end = _bytes(plan, name)
        if end > plan.memory.size:
            yield f"{name} ends at byte {end} of an arena of {plan.memory.size}"
        open_ones = [other for other in open_ones if moments.last[other] >= moments.written[name]]
        for other in open_ones:
            other_start, other_end = _bytes(plan, other)
            meet = max(start, other_start) < min(end, other_end)
            if meet and plan.memory.in_place.get(name) != other:
                yield (
                    f"{name} (bytes {start} to {end}) and {other} ({other_start} to {other_end}) are there at the same "
                    "time"
                )
        open_ones.append(name)


def _bytes(plan: Schedule, name: str) -> tuple[int, int]:
    start = plan.memory.offsets[name]
    return start, start + hint(metas_of(plan.program.nodes[name]).nbytes)


def _overwritten(moments: _Moments) -> Iterator[str]:
    """Yields the error if a buffer is read after another value was written over it."""
    plan = moments.plan
    for new, old in [*plan.over_inputs.items(), *plan.over_others.items(), *plan.memory.in_place.items()]:
        maker, moment = moments.maker[new], moments.written[new]
        late = [n for n, read in moments.reads.items() if old in read and moments.of[n] >= moment and n != maker]
        if late:
            yield f"unit {late[0]} reads {old}, over which {new} has been written"
