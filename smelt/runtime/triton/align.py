"""Launches with pointers that are not multiples of 16, by kernels that assume less, built at the first such call.

A kernel is built for the pointers that its source declares divisible by 16. Memory that the program allocates is; an
input, a saved tensor, a constant, or a result of a library or a custom operator may begin at any element. Segments
check all these pointers at each call (native/cuda/cuda_segment.c) and ask here for another plan if some are not.
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
"""(slot, bytes): a pointer, given by its slot and its offset modulo a word, which determine its alignment."""

BuildVariant = Callable[[KernelSource, PlannedLaunch], Build]
"""Function that begins to build another source for a launch's configuration."""


def aligned_pointers(launch: PlannedLaunch) -> dict[str, Pointer]:
    """Returns the pointers that a kernel requires to be multiples of 16, by parameter."""
    return {name: _in_word(argument) for name, argument in _pointers(launch) if name in launch.source.divisible}


def pointers_of(launches: Sequence[PlannedLaunch]) -> tuple[Pointer, ...]:
    """Returns the pointers that any of these launches requires to be aligned, each once."""
    return tuple(dict.fromkeys(pointer for launch in launches for pointer in aligned_pointers(launch).values()))


def moved_names(launch: PlannedLaunch, moved: Collection[Pointer]) -> list[str]:
    """Returns the parameters required to be multiples of 16 whose pointers are among these unaligned ones."""
    return [name for name, pointer in aligned_pointers(launch).items() if pointer in moved]


def unaligned_parameters(table: Table, launch: PlannedLaunch) -> list[str]:
    """Returns the parameters required to be multiples of 16 that are not multiples of 16 in this table."""
    return [name for name, (slot, byte) in aligned_pointers(launch).items() if (table.get(slot) + byte) % ALIGNMENT]


class Ahead:
    """Segments with known configurations, whose variants for unaligned pointers begin to build before they are
    launched.

    If some pointers of a table are not multiples of 16, `ahead(table)` begins the builds for all segments of the
    program. Pointers that are bound later, such as results of libraries, are not known then.

    Args:
        segments: all segments of the program; this one is added.
    """

    def __init__(
        self, launches: Sequence[PlannedLaunch], segments: weakref.WeakSet[Ahead], build: BuildVariant
    ) -> None:
        self.launches, self.segments, self.build = list(launches), segments, build
        segments.add(self)

    def __call__(self, table: Table) -> None:
        for each in list(self.segments):
            for launch in each.launches:
                if names := unaligned_parameters(table, launch):
                    self.build(launch.source.undeclared(names), launch)


class Variants:
    """The plans of a segment for calls with pointers that are not multiples of 16.

    Args:
        chosen: the segment's launches in their chosen configurations, with their kernels for aligned pointers.
        ahead: function that begins to build the variants that other segments will need for this table.
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
        """Returns the result of `prepare` for a segment: the plan for aligned pointers, and the maker of other
        plans.
        """
        plan = tuple(self.target.plan(launch, build) for launch, build in self.chosen)
        return plan, launched, self.pointers, self

    def segment(self) -> _native.Segment:
        """Returns a segment that launches these kernels for any alignment of pointers."""
        return _native.Segment(self.target.driver, self.target.ordinal, self.target.stream, lambda _: self.prepared())

    def __call__(self, positions: tuple[int, ...], table: Table) -> _native.Moved | None:
        """Returns (the plan for calls in which pointers at these positions may be unaligned, whether it has already run
        for this table); None if such calls are handled elsewhere.

        Raises:
            CompileError: a kernel is refused.
        """
        return self.plan(self.begun(positions, table)), False

    def begun(self, positions: tuple[int, ...], table: Table) -> list[tuple[PlannedLaunch, Build]]:
        """Returns the launches with kernels that do not require these pointers to be aligned; all of them begin to
        build at once.
        """
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
        """Returns the plan, with its kernels loaded.

        Raises:
            CompileError: a kernel is refused.
        """
        return tuple(self.target.plan(launch, build) for launch, build in made)


def _pointers(launch: PlannedLaunch) -> list[tuple[str, tuple[int, int]]]:
    pairs = zip(launch.source.signature, launch.arguments, strict=True)
    return [(name, argument) for (name, _), argument in pairs if isinstance(argument, tuple)]


def _in_word(pointer: tuple[int, int]) -> Pointer:
    return pointer[0], pointer[1] % ALIGNMENT
