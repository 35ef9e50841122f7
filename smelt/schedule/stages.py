"""Divides a program into stages whose results are returned as soon as they are final: gradients, for all-reduce.

Results are assigned to stages of a given size in the order in which the program makes them. Units that a stage needs
come before those that only later stages need; otherwise the order is unchanged. Fusion and the memory plan still cover
the whole program.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from smelt.loops.ir import LoopProgram
from smelt.schedule.order import Unit, followers_of, sources_of
from smelt.schedule.realize import metas_of
from smelt.schedule.sharing import Sharing, shared_buffers
from smelt.shapes.size import hint


@dataclass(frozen=True)
class Stage:
    """Results that are returned together.

    Attributes:
        last: position of the unit after which the results are final: written, and not read by later units.
        results: positions of the results among the program's results.
    """

    last: int
    results: tuple[int, ...]


class Stages:
    """Assigns a stage to each result and to each unit.

    Args:
        units: the units in order.
        bytes: wanted size of the results of a stage.
        after: for some units, other units for which they wait without reading their results.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        program: LoopProgram,
        sharing: Sharing,
        bytes: int,
        after: Mapping[int, set[int]],
    ) -> None:
        self.outputs = [o.name for o in program.outputs]
        maker = {name: at for at, unit in enumerate(units) for name in unit.writes}
        named = [name for name in self.outputs if name is not None]
        shared = shared_buffers(sharing, named) | {name for name in named if name in sharing}
        sizes = {name: hint(metas_of(program.nodes[name]).nbytes) for name in named}
        self.stage_of: dict[str, int] = {}
        number = filled = 0
        left = sum(sizes.values())
        for name in sorted((n for n in sizes if n in maker and n not in shared), key=maker.__getitem__):
            self.stage_of[name] = number
            filled, left = filled + sizes[name], left - sizes[name]
            if filled >= bytes and left:
                number, filled = number + 1, 0
        self.last = number
        self.level = self._levels(units, after)

    def _levels(self, units: Sequence[Unit], after: Mapping[int, set[int]]) -> dict[int, int]:
        """Returns for each unit the first stage that needs it."""
        followers = followers_of(sources_of(units, after))
        level: dict[int, int] = {}
        for unit in reversed(units):
            own = [self.stage_of[name] for name in unit.writes if name in self.stage_of]
            level[unit.number] = min([self.last, *own, *(level[n] for n in followers[unit.number])])
        return level

    def ordered(self, units: Iterable[Unit]) -> list[Unit]:
        """Returns the units sorted by stage, in unchanged order within a stage."""
        return sorted(units, key=lambda unit: self.level[unit.number])

    def gates(self, units: Iterable[Unit], mobile: Container[int]) -> dict[int, set[int]]:
        """Returns, by the first immobile unit of each stage, the mobile units before it that belong to earlier stages:
        they must precede it.
        """
        found: dict[int, set[int]] = {}
        moving: set[int] = set()
        before = 0
        for unit in units:
            if unit.number in mobile:
                moving.add(unit.number)
            elif self.level[unit.number] > before:
                before = self.level[unit.number]
                found[unit.number] = {n for n in moving if self.level[n] < before}
        return found

    def ends(self, unit_steps: Sequence[Sequence[Unit]]) -> list[Stage]:
        """Returns the stages, given the units in their final order as steps that run at once; empty if there is only
        one stage.
        """
        final = self._final(unit_steps)
        at = sum(map(len, unit_steps)) - 1
        found: list[Stage] = []
        end = 0
        for number in range(self.last):
            results = self._results_of(number)
            end = max([end, *(final[self.outputs[i] or ""] for i in results)])
            if end == at:
                break
            if found and found[-1].last == end:
                results = [*found.pop().results, *results]
            if results:
                found.append(Stage(end, tuple(sorted(results))))
        returned = {i for stage in found for i in stage.results}
        rest = tuple(i for i in range(len(self.outputs)) if i not in returned)
        return [*found, Stage(at, rest)] if found and rest else []

    def _final(self, unit_steps: Sequence[Sequence[Unit]]) -> dict[str, int]:
        """Returns for each result the position of the last unit of the step that contains its last use."""
        final: dict[str, int] = {}
        at = -1
        for step in unit_steps:
            at += len(step)
            final |= {name: at for unit in step for name in (*unit.reads, *unit.writes) if name in self.stage_of}
        return final

    def _results_of(self, number: int) -> list[int]:
        return [i for i, name in enumerate(self.outputs) if self.stage_of.get(name or "") == number]
