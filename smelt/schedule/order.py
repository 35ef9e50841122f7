"""Orders kernels and externs: operands first, and of the ready units the one after which least memory is in use.

Ties keep the program's order, which for a traced training graph is the order of eager execution.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """A kernel or an extern: its number, the buffers that it reads and writes, and its position in the program."""

    number: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    position: int


class CycleError(Exception):
    """Raised when units wait for each other in a cycle."""


def sources_of(units: Sequence[Unit], after: Mapping[int, set[int]]) -> dict[int, set[int]]:
    """Returns the units for which each unit waits: those that write the buffers it reads, and those of `after`."""
    writer = {name: unit.number for unit in units for name in unit.writes}
    return {
        unit.number: ({writer[name] for name in unit.reads if name in writer} - {unit.number})
        | after.get(unit.number, set())
        for unit in units
    }


def followers_of(sources: Mapping[int, set[int]]) -> dict[int, list[int]]:
    """Returns the units that wait for each unit: the inverse of `sources_of`."""
    followers: dict[int, list[int]] = {number: [] for number in sources}
    for number, found in sources.items():
        for source in found:
            followers[source].append(number)
    return followers


def _readers(units: Iterable[Unit]) -> dict[str, set[int]]:
    readers: dict[str, set[int]] = {}
    for unit in units:
        for name in unit.reads:
            readers.setdefault(name, set()).add(unit.number)
    return readers


def order_units(
    units: Iterable[Unit],
    size: Callable[[str], int],
    kept: set[str],
    after: Mapping[int, set[int]] | None = None,
) -> list[Unit]:
    """Returns a topological order.

    Args:
        units: every unit of the program; each buffer except inputs is written by one unit.
        size: bytes that a buffer occupies from its write to its last read; 0 if it is not counted.
        kept: buffers that live to the end.
        after: for some units, other units for which they wait without reading their results.

    Raises:
        CycleError: units wait for each other.
    """
    units = list(units)
    by_number = {unit.number: unit for unit in units}
    readers = _readers(units)
    sources = sources_of(units, after or {})
    waiting = {number: len(found) for number, found in sources.items()}
    followers = followers_of(sources)
    ready: list[tuple[bool, int, int]] = []

    def offer(number: int) -> None:
        unit = by_number[number]
        heapq.heappush(ready, (_grows(unit, size, kept, readers), unit.position, number))

    for unit in units:
        if waiting[unit.number] == 0:
            offer(unit.number)
    done: dict[int, Unit] = {}
    while ready:
        best = heapq.heappop(ready)[2]
        if best in done:
            continue
        unit = done[best] = by_number[best]
        for name in unit.reads:
            left = readers[name]
            left.discard(best)
            if len(left) == 1 and waiting[last := next(iter(left))] == 0:
                offer(last)  # pushed a second time, as its rank may have improved; the older entry is skipped later
        for follower in followers[best]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                offer(follower)
    if len(done) != len(units):
        raise CycleError("cycle between kernels")
    return list(done.values())


def _grows(unit: Unit, size: Callable[[str], int], kept: set[str], readers: dict[str, set[int]]) -> bool:
    """Whether the unit writes more bytes than it frees; such units keep the program's order."""
    made = sum(size(name) for name in unit.writes)
    return made > 0 and made > sum(size(name) for name in unit.reads if len(readers[name]) == 1 and name not in kept)
