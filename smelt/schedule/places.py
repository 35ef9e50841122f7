"""Where buffers lie: in one arena, in another's memory, or in memory of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt.loops.ir import Constant, Extern, Input, Item, LoopProgram
from smelt.schedule.bundle import Profile
from smelt.schedule.fuse import Fused
from smelt.schedule.memory import MemoryPlan, aligned, plan_memory
from smelt.schedule.order import Unit
from smelt.schedule.overwrite import Overwriting
from smelt.schedule.realize import Realized, metas_of
from smelt.shapes.size import IntLike, hint, same_all

WRITE_INTO = frozenset({"mm", "bmm"})
"""Externs that write into a given tensor without a copy of their own."""

LARGE = 1 << 16
"""Bytes of an intermediate whose memory is worth to be planned together with that of a result."""

SHARE = 16
"""It is at least this part of the arena: few are, and the arena is planned anew for each."""

TRIED = 12
"""Intermediates that are tried outside of the arena at most."""


class Places:
    """The memory of one program's buffers.

    Attributes:
        over_others: outputs that are written over an intermediate, which therefore is not in the arena.
        apart: intermediates with memory of their own.
    """

    def __init__(
        self,
        program: LoopProgram,
        real: Realized,
        fused: Fused,
        overwriting: Overwriting,
        updates: Mapping[str, str],
        releases: bool,
    ) -> None:
        self.program, self.real, self.fused, self.overwriting = program, real, fused, overwriting
        self.updates, self.releases = updates, releases
        self.outputs = {o.name for o in program.outputs if o.name is not None}
        self.over_others: dict[str, str] = {}
        self.apart: set[str] = set()

    def placed(self, together: Sequence[list[Unit]]) -> MemoryPlan:
        """Places in the arena for units in order, of which some run at the same time."""
        written_in = {name: step for step in together for unit in step for name in unit.writes}
        sizes = {name: self.nbytes(name) for name in written_in if self.in_arena(name)}

        def may_overwrite(_: int, output: str, source: str) -> bool:
            return self.overwriting.overwrites(written_in[output], output, source)

        return plan_memory([joined(step) for step in together], sizes, may_overwrite)

    def taken_over(self, together: Sequence[list[Unit]], memory: MemoryPlan) -> MemoryPlan:
        """Large outputs take over the memory of intermediates that they are written over, where that saves some.

        The intermediate then lies outside of the arena, in what will be the output.
        """
        units = [unit for step in together for unit in step]
        last = {name: at for at, unit in enumerate(units) for name in (*unit.writes, *unit.reads)}
        for at, unit in enumerate(units):
            for new in unit.writes:
                for old in unit.reads:
                    if old not in memory.offsets or last[old] != at or hint(self.nbytes(old)) * SHARE < memory.size:
                        continue
                    if self.may_take_over(unit, new, old):
                        memory = self.cheaper(units, together, memory, new, old)
        return memory

    def may_take_over(self, unit: Unit, new: str, old: str) -> bool:
        """Whether an output can have the memory of an intermediate from the start."""
        if new not in self.outputs or new in self.updates or new in self.over_others:
            return False
        made, ended = metas_of(self.program.nodes[new]), metas_of(self.program.nodes[old])
        alike = made.dtype == ended.dtype and same_all(made.shape, ended.shape)
        alike = alike and same_all(self.real.strides[new], self.real.strides[old])
        return alike and hint(made.nbytes) >= LARGE and self.overwriting.may_overwrite(unit.number, new, old)

    def cheaper(
        self, units: Sequence[Unit], together: Sequence[list[Unit]], memory: MemoryPlan, new: str, old: str
    ) -> MemoryPlan:
        """The plan in which an output has an intermediate's memory, if arena and outputs together take no more."""
        before = memory.size + self.most_outside(units)
        self.over_others[new] = old
        placed = self.placed(together)
        if placed.size + self.most_outside(units) <= before:
            return placed
        del self.over_others[new]
        return memory

    def set_apart(self, together: Sequence[list[Unit]], memory: MemoryPlan) -> MemoryPlan:
        """Large intermediates get memory of their own where arena and other memory together then take less.

        The arena is there from the first kernel to the last, as large as it ever must be. What is large while saved
        activations are still many, or gradients many already, costs less on its own.
        """
        if memory.size < LARGE:
            return memory
        units = self.runs([unit for step in together for unit in step])
        most = memory.size + self.most_outside(units)
        shared = {*memory.in_place, *memory.in_place.values()}
        large = sorted(memory.offsets.keys() - shared, key=lambda name: (-hint(self.nbytes(name)), name))
        for name in large[:TRIED]:
            size = hint(self.nbytes(name))
            if size < LARGE or size * SHARE < memory.size:
                break
            self.apart.add(name)
            placed = self.placed(together)
            total = placed.size + self.most_outside(units)
            if total < most:
                memory, most = placed, total
            else:
                self.apart.remove(name)
        return memory

    def runs(self, units: Sequence[Unit]) -> list[Unit]:
        """Units as a program takes and frees memory for them: kernels that follow each other as one."""
        runs: list[list[Unit]] = []
        for unit in units:
            if runs and unit.number in self.fused.groups and runs[-1][-1].number in self.fused.groups:
                runs[-1].append(unit)
            else:
                runs.append([unit])
        return [joined(run) for run in runs]

    def most_outside(self, units: Sequence[Unit]) -> int:
        """Most bytes in use at a time in other memory than the arena."""
        kept = self.outputs | set(self.updates.values()) | set(self.over_others.values())
        return Profile(units, self.outside, kept, {}).highest

    def inside(self, name: str) -> int:
        """Bytes that a buffer takes in the arena."""
        return aligned(hint(self.nbytes(name))) if self.in_arena(name) else 0

    def outside(self, name: str) -> int:
        """Bytes that a buffer takes in other memory, from its first use to its last."""
        if isinstance(self.program.nodes[name], Input):
            return hint(self.nbytes(name)) if self.releases else 0
        return 0 if self.in_arena(name) else self.occupied(name)

    def nbytes(self, name: str) -> IntLike:
        return metas_of(self.program.nodes[name]).nbytes

    def occupied(self, name: str) -> int:
        node = self.program.nodes[name]
        if name in self.updates or name in self.over_others:
            return 0
        return 0 if isinstance(node, (Input, Constant)) or isinstance(node.meta, tuple) else hint(self.nbytes(name))

    def in_arena(self, name: str) -> bool:
        """Intermediates of kernels, and of externs that can write into them."""
        node = self.program.nodes[name]
        if (
            name in self.outputs
            or name in self.over_others.values()
            or name in self.apart
            or isinstance(node, (Input, Constant, Item))
            or isinstance(node.meta, tuple)
        ):
            return False
        return not isinstance(node, Extern) or getattr(node.target, "name", "") in WRITE_INTO


def joined(step: list[Unit]) -> Unit:
    """Units that run at the same time as one."""
    if len(step) == 1:
        return step[0]
    reads = tuple(dict.fromkeys(name for unit in step for name in unit.reads))
    writes = tuple(name for unit in step for name in unit.writes)
    return Unit(step[0].number, reads, writes, step[0].position)
