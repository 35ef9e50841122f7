"""Lifetimes of intermediates, and their offsets in one arena; a kernel may overwrite an input that it reads last.

With symbolic sizes only the lifetimes are planned at compile time: the offsets of the plan are those of the example,
and are computed anew for each tuple of sizes at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from smelt.abi.arena import ALIGN, Life, aligned, least_size, place_buffers, place_largest_first
from smelt.schedule.machine import CPU
from smelt.schedule.order import Unit
from smelt.shapes.size import IntLike, Size, hint, known_equal

__all__ = ["ALIGN", "MemoryPlan", "aligned", "plan_memory"]


@dataclass
class MemoryPlan:
    """Byte offsets of arena buffers, the arena's size, buffers that overwrite another one, and the size without reuse.

    `lives` and `sizes` (bytes) describe the same buffers in the same order.
    """

    offsets: dict[str, int] = field(default_factory=dict)
    size: int = 0
    in_place: dict[str, str] = field(default_factory=dict)
    naive: int = 0
    lives: list[Life] = field(default_factory=list)
    sizes: list[IntLike] = field(default_factory=list)


def plan_memory(
    units: Sequence[Unit],
    sizes: Mapping[str, IntLike],
    may_overwrite: Callable[[int, str, str], bool],
    max_compared_buffers: int = CPU.buffers.max_compared_buffers,
) -> MemoryPlan:
    """Plan offsets for the buffers in `sizes` (bytes), given the order of units.

    `may_overwrite(number, output, input)`: whether that kernel reads each element of `input` only for the same index
    of `output`.
    """
    plan = MemoryPlan(naive=sum(aligned(hint(size)) for size in sizes.values()))
    last = {name: step for step, unit in enumerate(units) for name in (*unit.writes, *unit.reads) if name in sizes}
    number: dict[str, int] = {}
    for step, unit in enumerate(units):
        taken: set[str] = set()
        for name in unit.writes:
            if name not in sizes:
                continue
            donor = _donor(name, unit, step, last, sizes, taken, may_overwrite)
            if donor is not None:
                taken.add(donor)
                plan.in_place[name] = donor
            number[name] = len(plan.lives)
            plan.lives.append((step, last[name], -1 if donor is None else number[donor]))
            plan.sizes.append(sizes[name])
    offsets, plan.size = _offsets(plan, max_compared_buffers)
    plan.offsets = dict(zip(number, offsets, strict=True))
    return plan


def _offsets(plan: MemoryPlan, max_compared_buffers: int) -> tuple[list[int], int]:
    """Returns the offset of each buffer and the arena's size: the smaller result of two placement orders if buffers are
    few.
    """
    numbers = [hint(size) for size in plan.sizes]
    offsets, total = place_buffers(plan.lives, numbers)
    static = not any(isinstance(size, Size) for size in plan.sizes)
    if static and len(numbers) <= max_compared_buffers and total > least_size(plan.lives, numbers):
        others, size = place_largest_first(plan.lives, numbers)
        if size < total:
            return others, size
    return offsets, total


def _donor(
    name: str,
    unit: Unit,
    step: int,
    last: Mapping[str, int],
    sizes: Mapping[str, IntLike],
    taken: set[str],
    may_overwrite: Callable[[int, str, str], bool],
) -> str | None:
    for source in unit.reads:
        if source in sizes and last[source] == step and source not in taken and source not in unit.writes:
            if _same_size(sizes[source], sizes[name]) and may_overwrite(unit.number, name, source):
                return source
    return None


def _same_size(a: IntLike, b: IntLike) -> bool:
    if isinstance(a, Size) or isinstance(b, Size):
        return known_equal(a, b)
    return aligned(a) == aligned(b)
