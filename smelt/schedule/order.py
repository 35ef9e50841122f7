"""Orders kernels and externs: operands first, and of the ready units the one after which least memory is in use.

Ties keep the program's order, which for a traced training graph is the order of eager execution. Collectives begin
before other ready units and are waited for after them, so that units run while they are under way: as far as the data
and two limits on memory (`IN_FLIGHT`, `ROOM`) allow.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

IN_FLIGHT = 2
"""Number of collectives under way up to which another one begins earlier than in the program. Their results take
memory: parameters that are gathered for each layer must not all be gathered at the program's beginning."""

ROOM = 4
"""Bytes by which units that run before a wait, and come after it in the program, may let memory grow, by byte of the
results that are waited for. A link moves a byte in many times the time in which a kernel writes it."""


class Timing(enum.Enum):
    """When a unit should run, if the data leave a choice."""

    ANY = enum.auto()
    BEGINS = enum.auto()
    WAITS = enum.auto()


@dataclass(frozen=True)
class Unit:
    """A kernel or an extern: its number, the buffers that it reads and writes, and its position in the program.

    `timing`: whether it begins a collective, or waits for one.
    """

    number: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    position: int
    timing: Timing = Timing.ANY


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
    sources = sources_of(units, after or {})
    followers = followers_of(sources)
    waiting = {number: len(found) for number, found in sources.items()}
    ready = _Ready(units, size, kept)
    for unit in units:
        if waiting[unit.number] == 0:
            ready.offer(unit)
    by_number = {unit.number: unit for unit in units}
    done: list[Unit] = []
    while (best := ready.take()) is not None:
        done.append(best)
        for last in ready.freed_by(best):
            if waiting[last] == 0:
                ready.offer(by_number[last])
        for follower in followers[best.number]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                ready.offer(by_number[follower])
    if len(done) != len(units):
        raise CycleError("cycle between kernels")
    return done


_Entry = tuple[bool, int, int, Unit]
"""Whether memory grows, position, number, unit: the least is the first to run."""


class _Ready:
    """The units whose operands are there; a unit may be offered again, when its rank may have improved."""

    def __init__(self, units: Sequence[Unit], size: Callable[[str], int], kept: set[str]) -> None:
        self.size, self.kept, self.readers = size, kept, _readers(units)
        self.done: set[int] = set()
        self.units: list[_Entry] = []
        self.begins: list[_Entry] = []
        self.waits: list[_Entry] = []
        self.in_flight = 0
        self.grown = 0

    def offer(self, unit: Unit) -> None:
        """Add a unit."""
        if unit.timing is Timing.WAITS:
            heapq.heappush(self.waits, (False, unit.position, unit.number, unit))
            return
        heapq.heappush(self.units, (self.growth(unit) > 0, unit.position, unit.number, unit))
        if unit.timing is Timing.BEGINS:
            heapq.heappush(self.begins, (False, unit.position, unit.number, unit))

    def take(self) -> Unit | None:
        """Remove and return the unit to run next; None if there is none."""
        for heap in (self.units, self.begins, self.waits):
            while heap and heap[0][-1].number in self.done:
                heapq.heappop(heap)
        if self.begins and self.in_flight < IN_FLIGHT:
            unit = self.begins[0][-1]
        elif self.units and not self.must_wait(self.units[0][-1]):
            unit = self.units[0][-1]
        elif self.waits:
            unit = self.waits[0][-1]
        else:
            return None
        self.account(unit)
        return unit

    def account(self, unit: Unit) -> None:
        """Count what is under way, and how far memory has grown because a wait was put off."""
        self.done.add(unit.number)
        self.in_flight += {Timing.BEGINS: 1, Timing.WAITS: -1, Timing.ANY: 0}[unit.timing]
        if unit.timing is Timing.WAITS:
            self.grown = 0
        elif self.passes_wait(unit):
            self.grown += self.growth(unit)

    def passes_wait(self, unit: Unit) -> bool:
        """Whether a wait that is ready comes before the unit in the program."""
        return bool(self.waits) and self.waits[0][-1].position < unit.position

    def must_wait(self, unit: Unit) -> bool:
        """Whether the unit would take more memory, before a wait, than the results that are waited for allow."""
        if not self.passes_wait(unit) or (growth := self.growth(unit)) <= 0:
            return False
        if unit.timing is Timing.BEGINS and self.in_flight >= IN_FLIGHT:
            return True
        waited = sum(self.size(name) for *_, wait in self.waits for name in wait.reads)
        return self.grown + growth > ROOM * waited

    def growth(self, unit: Unit) -> int:
        """Returns by how many bytes the unit writes more than it frees; units that do keep the program's order."""
        freed = (name for name in unit.reads if len(self.readers[name]) == 1 and name not in self.kept)
        return sum(map(self.size, unit.writes)) - sum(map(self.size, freed))

    def freed_by(self, unit: Unit) -> Iterable[int]:
        """Remove the unit from the readers of its operands; yields units that are now the last reader of one."""
        for name in unit.reads:
            left = self.readers[name]
            left.discard(unit.number)
            if len(left) == 1:
                yield next(iter(left))
