"""Launches whose pointers are not all multiples of 16: kernels that rely on less, built when the first such call comes.

A kernel is built for the pointers that its source declares divisible. What a program allocates itself is so; an input,
a saved tensor, a constant, or what a library or a custom operator returns may begin at any element. Segments look at
all these pointers at each call (native/cuda/cuda_segment.c) and ask here for another plan where some are not.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from smelt.abi.kernel_source import ALIGNMENT, KernelSource
from smelt.runtime import _native
from smelt.runtime.launch import Table
from smelt.runtime.triton.build import Build
from smelt.runtime.triton.plan import PlannedLaunch
from smelt.runtime.triton.tune import Target

Pointer = tuple[int, int]
"""(slot, bytes): of what lies at different offsets from one slot only the offset in a word counts."""

BuildVariant = Callable[[KernelSource, PlannedLaunch], Build]
"""Begins to build another source for a launch's configuration."""


def relied_on(launch: PlannedLaunch) -> dict[str, Pointer]:
    """The pointers that a kernel is built to find at multiples of 16, by parameter."""
    return {name: _in_word(argument) for name, argument in _pointers(launch) if name in launch.source.divisible}


def pointers_of(launches: Sequence[PlannedLaunch]) -> tuple[Pointer, ...]:
    """All of these, each once."""
    return tuple(dict.fromkeys(pointer for launch in launches for pointer in relied_on(launch).values()))


def moved_names(launch: PlannedLaunch, moved: Collection[Pointer]) -> list[str]:
    """Parameters that a kernel relies on and that are among the pointers that are no multiples of 16."""
    return [name for name, pointer in relied_on(launch).items() if pointer in moved]


def moved_in(table: Table, launch: PlannedLaunch) -> list[str]:
    """Parameters that a kernel relies on and that are no multiples of 16 in this table."""
    return [name for name, (slot, byte) in relied_on(launch).items() if (table.get(slot) + byte) % ALIGNMENT]


class Ahead:
    """Launches of a segment whose configuration is known: what they will need of a table is seen before they come.

    Where some pointers are no multiples of 16, `ahead(table)` begins the builds of all segments of the program. What is
    bound to the table later, as results of libraries, is not known then.

    Args:
        everybody: of the program; this one joins.
    """

    def __init__(
        self, launches: Sequence[PlannedLaunch], everybody: weakref.WeakSet[Ahead], build: BuildVariant
    ) -> None:
        self.launches, self.everybody, self.build = list(launches), everybody, build
        everybody.add(self)

    def __call__(self, table: Table) -> None:
        for each in list(self.everybody):
            for launch in each.launches:
                if names := moved_in(table, launch):
                    self.build(launch.source.undeclared(names), launch)


class Variants:
    """The plans of a segment for calls in which pointers are no multiples of 16.

    Args:
        chosen: its launches with the configuration of each, and the kernels that they run otherwise.
        ahead: begins to build what other segments will need for this table.
    """

    def __init__(
        self,
        target: Target,
        chosen: Sequence[tuple[PlannedLaunch, Build]],
        build: BuildVariant,
        ahead: Callable[[Table], None] | None = None,
    ) -> None:
        self.target, self.chosen, self.build, self.ahead = target, list(chosen), build, ahead
        self.pointers = pointers_of([launch for launch, _ in chosen])

    def prepared(self, launched: bool = False) -> _native.Prepared:
        """What `prepare` answers a segment: the plan for multiples of 16, and who makes others."""
        plan = tuple(self.target.plan(launch, build) for launch, build in self.chosen)
        return plan, launched, self.pointers, self

    def segment(self) -> _native.Segment:
        """What launches these, wherever their pointers lie."""
        return _native.Segment(self.target.driver, self.target.ordinal, self.target.stream, lambda _: self.prepared())

    def __call__(self, positions: tuple[int, ...], table: Table) -> _native.Moved | None:
        """What runs where the pointers at these positions may lie anywhere, and whether it has run for this table; None
        where such calls are somebody else's.

        Raises:
            CompileError: a kernel is refused.
        """
        return self.plan(self.begun(positions, table)), False

    def begun(self, positions: tuple[int, ...], table: Table) -> list[tuple[PlannedLaunch, Build]]:
        """The launches, with kernels that do not rely on these pointers: all begin to build at once."""
        moved = {self.pointers[position] for position in positions}
        made = []
        for launch, build in self.chosen:
            names = moved_names(launch, moved)
            if names:
                source = launch.source.undeclared(names)
                build = self.build(source, launch)
                launch = replace(launch, source=source)
            made.append((launch, build))
        if self.ahead is not None:
            self.ahead(table)
        return made

    def plan(self, made: Sequence[tuple[PlannedLaunch, Build]]) -> tuple[_native.LaunchPlan, ...]:
        """The kernels, loaded.

        Raises:
            CompileError: one is refused.
        """
        return tuple(self.target.plan(launch, build) for launch, build in made)


def _pointers(launch: PlannedLaunch) -> list[tuple[str, tuple[int, int]]]:
    pairs = zip(launch.source.signature, launch.arguments, strict=True)
    return [(name, argument) for (name, _), argument in pairs if isinstance(argument, tuple)]


def _in_word(pointer: tuple[int, int]) -> Pointer:
    return pointer[0], pointer[1] % ALIGNMENT
