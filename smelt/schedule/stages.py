"""Stages of a program whose results are wanted as soon as they are final: gradients that are reduced meanwhile.

Results are taken in the order in which the program makes them anyway; so many bytes of them are a stage. Units that a
stage needs come before those that only later ones need, else in the order in which they were. Nothing is cut: fusion,
memory and order are those of the whole program.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from smelt.loops.ir import LoopProgram
from smelt.schedule.order import Unit, followers_of, sources_of
from smelt.schedule.realize import metas_of
from smelt.schedule.sharing import Sharing, behind
from smelt.shapes.size import hint


@dataclass(frozen=True)
class Stage:
    """Results that are handed out together.

    Attributes:
        last: position of the unit after which they are final: made, and read by nobody any more.
        results: their positions among the program's.
    """

    last: int
    results: tuple[int, ...]


class Stages:
    """Which stage each result, and so each unit, belongs to.

    Args:
        units: in order.
        bytes: of results that make a stage.
        after: for some units, others that they wait for without reading anything of theirs.
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
        shared = behind(sharing, named) | {name for name in named if name in sharing}
        sizes = {name: hint(metas_of(program.nodes[name]).nbytes) for name in named}
        self.stage_of: dict[str, int] = {}
        number = held = 0
        left = sum(sizes.values())
        for name in sorted((n for n in sizes if n in maker and n not in shared), key=maker.__getitem__):
            self.stage_of[name] = number
            held, left = held + sizes[name], left - sizes[name]
            if held >= bytes and left:
                number, held = number + 1, 0
        self.last = number
        self.level = self._levels(units, after)

    def _levels(self, units: Sequence[Unit], after: Mapping[int, set[int]]) -> dict[int, int]:
        """The first stage that needs each unit."""
        followers = followers_of(sources_of(units, after))
        level: dict[int, int] = {}
        for unit in reversed(units):
            own = [self.stage_of[name] for name in unit.writes if name in self.stage_of]
            level[unit.number] = min([self.last, *own, *(level[n] for n in followers[unit.number])])
        return level

    def ordered(self, units: Iterable[Unit]) -> list[Unit]:
        """The units of each stage before those of the next."""
        return sorted(units, key=lambda unit: self.level[unit.number])

    def gates(self, units: Iterable[Unit], mobile: Container[int]) -> dict[int, set[int]]:
        """For the first unit of each stage that stays where it is, the units of earlier stages that may move."""
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

    def ends(self, together: Sequence[Sequence[Unit]]) -> list[Stage]:
        """The stages of units in their final order, lists of which run at once; none where there is only one."""
        final = self._final(together)
        at = sum(map(len, together)) - 1
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
        given = {i for stage in found for i in stage.results}
        rest = tuple(i for i in range(len(self.outputs)) if i not in given)
        return [*found, Stage(at, rest)] if found and rest else []

    def _final(self, together: Sequence[Sequence[Unit]]) -> dict[str, int]:
        """For each result the position of the last unit of those that run at once with its last use."""
        final: dict[str, int] = {}
        at = -1
        for step in together:
            at += len(step)
            final |= {name: at for unit in step for name in (*unit.reads, *unit.writes) if name in self.stage_of}
        return final

    def _results_of(self, number: int) -> list[int]:
        return [i for i, name in enumerate(self.outputs) if self.stage_of.get(name or "") == number]
