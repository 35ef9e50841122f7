"""Assigns each value of a program an offset in one static arena.

Lifetimes, and which values may share memory, come from the memory planner of the schedule, to which calls are passed as
its kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from smelt.abi.arena import Life, bytes_in_use, least_size, place_buffers, place_largest_first
from smelt.schedule.memory import MemoryPlan, plan_memory
from smelt.schedule.order import Unit
from smelt.tiny.program import Program

SCRATCH = ".scratch"


@dataclass(frozen=True)
class Layout:
    """The offsets of a program's values.

    Attributes:
        offsets: name of a value, or `scratch_name` of a call's scratch memory -> its offset in the arena, in bytes.
        size: bytes of the arena.
        least: maximum number of bytes in use during a call: a lower bound for the size of any layout.
        lives: first and last call of each value, counted from 0; the image lives from -1 on.
        in_place: values that overwrite the memory of a value that is read for the last time.
    """

    offsets: dict[str, int]
    size: int
    least: int
    lives: dict[str, tuple[int, int]]
    in_place: dict[str, str]


def scratch_name(number: int) -> str:
    """The name of the scratch memory of a call in its program's layout."""
    return f"{number}{SCRATCH}"


def lay_out(program: Program) -> Layout:
    """The smallest of several layouts. The image is at offset 0, so that programs can share it."""
    plan, numbers = _lifetimes(program)
    names = list(plan.offsets)
    offsets, size = min(_placements(plan.lives, numbers), key=lambda one: one[1])
    lives = {name: (first - 1, last - 1) for name, (first, last, _) in zip(names, plan.lives, strict=True)}
    return Layout(dict(zip(names, offsets, strict=True)), size, least_size(plan.lives, numbers), lives, plan.in_place)


def calls_in_use(program: Program) -> list[int]:
    """Bytes in use during each call: no layout is smaller than the largest of them."""
    plan, numbers = _lifetimes(program)
    changes, now, found = bytes_in_use(plan.lives, numbers), 0, []
    for step in range(len(program.calls) + 1):  # step 0 writes the image
        now = changes.get(step, now)
        found.append(now)
    return found[1:]


def _lifetimes(program: Program) -> tuple[MemoryPlan, list[int]]:
    """The lifetimes of a program's values and scratch memories, and their sizes in bytes, in the same order."""
    sizes = {name: value.bytes for name, value in program.values.items()}
    sizes |= {scratch_name(i): call.scratch for i, call in enumerate(program.calls) if call.scratch}
    last = {name: number for number, call in enumerate(program.calls) for name in call.reads}
    for number, call in enumerate(program.calls):
        if call.stages and call.in_place is not None and last[call.reads[0]] == number:
            sizes[call.in_place] = sizes[call.reads[0]]  # the rest of the memory that it takes over stays unused

    def may_overwrite(number: int, output: str, source: str) -> bool:
        call = program.calls[number - 1] if 0 < number <= len(program.calls) else None
        return call is not None and call.in_place == output and call.reads[0] == source

    plan = plan_memory(_units(program), sizes, may_overwrite, max_compared_buffers=0)
    return plan, [sizes[name] for name in plan.offsets]


def _units(program: Program) -> list[Unit]:
    """Units of the memory planner: one that writes the image, one for each call, and one that reads the logits."""
    units = [Unit(0, (), (program.graph.input,), 0)]
    for number, call in enumerate(program.calls):
        scratch = (scratch_name(number),) if call.scratch else ()
        units.append(Unit(number + 1, call.reads, (*call.writes, *scratch), number + 1))
    return [*units, Unit(len(units), (program.logits,), (), len(units))]


ATTEMPTS = 40
"""Number of layouts that are tried if none reaches the lower bound."""


def _placements(lives: Sequence[Life], sizes: Sequence[int]) -> Iterator[tuple[list[int], int]]:
    """Offsets and sizes of the arena that have the first value at offset 0.

    The first attempt places the largest values first. Each further attempt begins with the values that got the highest
    end in the previous one, which did not fit between the others.
    """
    offsets, size = place_buffers(lives, sizes)  # in order of creation: nothing is placed before the first
    assert offsets[0] == 0
    yield offsets, size
    leading, least = [0], least_size(lives, sizes)
    for _ in range(ATTEMPTS):
        offsets, size = place_largest_first(lives, sizes, leading)
        yield offsets, size
        if size == least:
            return
        highest = max(range(1, len(lives)), key=lambda i: (offsets[i] + sizes[i], lives[i][2] < 0))
        while lives[highest][2] >= 0:
            highest = lives[highest][2]
        leading = [0, *dict.fromkeys([highest, *leading[1:]])]


def describe(program: Program, layout: Layout) -> str:
    """A line for each call: its kernel and operator, the bytes of the arena in use, the values that it writes or
    updates.
    """
    sizes = {name: value.bytes for name, value in program.values.items()}
    lines = []
    for number, call in enumerate(program.calls):
        live = [name for name, (first, last) in layout.lives.items() if first <= number <= last]
        used = sum(sizes.get(name, call.scratch) for name in live if layout.in_place.get(name) not in live)
        made = ", ".join(f"{name} at {layout.offsets[name]}" for name in call.writes) or ", ".join(call.updates)
        name = call.op.name if call.op is not None else ""
        lines.append(f"{call.kernel:18} {name:10} {used:6}  {made}")
    return "\n".join(lines)
