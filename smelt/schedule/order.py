"""Orders kernels and externs: operands first, and among what is ready the unit that leaves least memory in use.

Ties keep the program's own order, which for a traced training graph is the order of eager execution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """What runs at once: its number, the buffers it reads and writes (bytes are looked up), its program position."""

    number: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    position: int


def order_units(units: Iterable[Unit], size: Callable[[str], int], kept: set[str]) -> list[Unit]:
    """A topological order.

    Args:
        units: every unit of the program; a buffer is written by one of them or by nobody (inputs).
        size: bytes that a buffer occupies from its first write to its last read; 0 for what is not counted.
        kept: buffers that live to the end.
    """
    units = list(units)
    writer = {name: unit.number for unit in units for name in unit.writes}
    by_number = {unit.number: unit for unit in units}
    readers: dict[str, int] = {}
    waiting: dict[int, int] = {}
    followers: dict[int, list[int]] = {unit.number: [] for unit in units}
    for unit in units:
        sources = {writer[name] for name in unit.reads if name in writer} - {unit.number}
        waiting[unit.number] = len(sources)
        for source in sources:
            followers[source].append(unit.number)
        for name in unit.reads:
            readers[name] = readers.get(name, 0) + 1
    ready = [unit.number for unit in units if waiting[unit.number] == 0]
    result: list[Unit] = []
    while ready:
        best = min(ready, key=lambda n: _rank(by_number[n], size, kept, readers))
        ready.remove(best)
        unit = by_number[best]
        result.append(unit)
        for name in unit.reads:
            readers[name] -= 1
        for follower in followers[best]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                ready.append(follower)
    if len(result) != len(units):
        raise AssertionError("cycle between kernels")
    return result


def _rank(unit: Unit, size: Callable[[str], int], kept: set[str], readers: dict[str, int]) -> tuple[bool, int]:
    """Units that shrink memory go first; growing ones wait for their place in program order."""
    freed = sum(size(name) for name in unit.reads if readers[name] == 1 and name not in kept)
    made = sum(size(name) for name in unit.writes)
    return made > freed, unit.position
