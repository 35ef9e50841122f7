"""Places intermediates in one arena: offsets are reused by lifetime, and a kernel may write over an input it ends.

Best fit: each buffer, in order of creation, takes the smallest free gap that holds it, else the arena grows. Offsets
and sizes are multiples of 64 bytes (a cache line, the widest vector).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from smelt.schedule.order import Unit

ALIGN = 64


@dataclass
class MemoryPlan:
    """Byte offsets of arena buffers, the arena's size, buffers that took over another's place, the naive size."""

    offsets: dict[str, int] = field(default_factory=dict)
    size: int = 0
    in_place: dict[str, str] = field(default_factory=dict)
    naive: int = 0


def aligned(size: int) -> int:
    """Rounded up to whole cache lines."""
    return -(-max(size, 1) // ALIGN) * ALIGN


def plan_memory(
    units: Sequence[Unit],
    sizes: Mapping[str, int],
    may_overwrite: Callable[[int, str, str], bool],
) -> MemoryPlan:
    """Offsets for the buffers in `sizes` (bytes), given the order of units.

    `may_overwrite(number, output, input)`: whether that kernel reads each element of `input` only for the same place
    of `output`.
    """
    plan = MemoryPlan(naive=sum(map(aligned, sizes.values())))
    last = {name: step for step, unit in enumerate(units) for name in (*unit.writes, *unit.reads) if name in sizes}
    free: list[tuple[int, int]] = []
    for step, unit in enumerate(units):
        taken: set[str] = set()
        for name in unit.writes:
            if name not in sizes:
                continue
            donor = _donor(name, unit, step, last, sizes, taken, may_overwrite)
            if donor is None:
                plan.offsets[name] = _allocate(free, aligned(sizes[name]), plan)
            else:
                taken.add(donor)
                plan.offsets[name] = plan.offsets[donor]
                plan.in_place[name] = donor
        for name in dict.fromkeys((*unit.reads, *unit.writes)):
            if name in sizes and last[name] == step and name not in taken:
                _release(free, plan.offsets[name], aligned(sizes[name]))
    return plan


def _donor(
    name: str,
    unit: Unit,
    step: int,
    last: Mapping[str, int],
    sizes: Mapping[str, int],
    taken: set[str],
    may_overwrite: Callable[[int, str, str], bool],
) -> str | None:
    for source in unit.reads:
        if source in sizes and last[source] == step and source not in taken and source not in unit.writes:
            if aligned(sizes[source]) == aligned(sizes[name]) and may_overwrite(unit.number, name, source):
                return source
    return None


def _allocate(free: list[tuple[int, int]], size: int, plan: MemoryPlan) -> int:
    fitting = [(length, offset) for offset, length in free if length >= size]
    if fitting:
        length, offset = min(fitting)
        free.remove((offset, length))
        if length > size:
            free.append((offset + size, length - size))
        return offset
    for offset, length in free:
        if offset + length == plan.size:  # a free tail is grown instead of left behind
            free.remove((offset, length))
            plan.size = offset + size
            return offset
    offset = plan.size
    plan.size += size
    return offset


def _release(free: list[tuple[int, int]], offset: int, size: int) -> None:
    for other in list(free):
        if other[0] + other[1] == offset:
            free.remove(other)
            offset, size = other[0], size + other[1]
        elif offset + size == other[0]:
            free.remove(other)
            size += other[1]
    free.append((offset, size))
