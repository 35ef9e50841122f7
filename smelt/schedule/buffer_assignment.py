"""Where buffers lie: in one arena, in another's memory, or in memory of their own."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from smelt.loops.facts import facts_of
from smelt.loops.ir import Constant, Extern, Input, Item, LoopProgram
from smelt.schedule.fuse import Fused
from smelt.schedule.horizontal_fusion import Profile
from smelt.schedule.inplace import Overwriting
from smelt.schedule.memory import MemoryPlan, aligned, plan_memory
from smelt.schedule.order import Unit
from smelt.schedule.realize import Realized, metas_of
from smelt.schedule.sharing import behind
from smelt.shapes.size import IntLike, hint


class BufferAssignment:
    """The memory of one program's buffers.

    Attributes:
        over_others: values that are written over an intermediate, neither of them in the arena.
        covered: these intermediates.
        apart: intermediates with memory of their own.

    Args:
        caller_owned: inputs that somebody else holds, so that they do not end with their last use.
    """

    def __init__(
        self,
        program: LoopProgram,
        real: Realized,
        fused: Fused,
        overwriting: Overwriting,
        updates: Mapping[str, str],
        caller_owned: Container[str],
    ) -> None:
        self.program, self.real, self.fused, self.overwriting = program, real, fused, overwriting
        self.updates, self.caller_owned, self.limits = updates, caller_owned, overwriting.machine.buffers
        self.outputs = {o.name for o in program.outputs if o.name is not None}
        self.outputs |= behind(overwriting.sharing, self.outputs)  # the caller holds their memory, too
        self.over_others: dict[str, str] = {}
        self.covered: set[str] = set()
        self.apart: set[str] = set()

    def placed(self, together: Sequence[list[Unit]]) -> MemoryPlan:
        """Places in the arena for units in order, of which some run at the same time."""
        written_in = {name: step for step in together for unit in step for name in unit.writes}
        sizes = {name: self.nbytes(name) for name in written_in if self.in_arena(name)}

        def may_overwrite(_: int, output: str, source: str) -> bool:
            return self.overwriting.overwrites(written_in[output], output, source)

        return plan_memory([joined(step) for step in together], sizes, may_overwrite, self.limits.two_ways)

    def taken_over(self, together: Sequence[list[Unit]], memory: MemoryPlan) -> MemoryPlan:
        """Outputs take over the memory of intermediates that they are written over.

        Where the intermediate would be in the arena, it must be large, and it must save some: it then lies in what will
        be the output. A result of an extern has memory of its own, which becomes the output's.
        """
        limits, units = self.limits, flat(together)
        last = {name: at for at, unit in enumerate(units) for name in (*unit.writes, *unit.reads)}
        for at, unit in enumerate(units):
            for new in unit.writes:
                for old in unit.reads:
                    if last[old] != at:
                        continue
                    if old in memory.offsets:
                        large = hint(self.nbytes(old)) >= max(
                            limits.planned_bytes, memory.size // limits.planned_divisor
                        )
                        if large and self.may_take_over(unit, new, old):
                            memory = self.cheaper(units, together, memory, new, old)
                    elif (
                        self.is_fresh(old)
                        and hint(self.nbytes(old)) >= limits.apart_bytes
                        and self.may_take_over(unit, new, old)
                    ):
                        self.cover({new: old})
        return memory

    def cover(self, over: Mapping[str, str]) -> None:
        """Have values lie where others do, outside of the arena."""
        self.over_others |= over
        self.covered |= {*over.values()}

    def uncover(self, over: Mapping[str, str]) -> None:
        """The reverse."""
        self.over_others = {new: old for new, old in self.over_others.items() if new not in over}
        self.covered -= {*over.values()}

    def is_fresh(self, name: str) -> bool:
        """Whether a value is an extern's result outside of the arena, which nothing else lies in."""
        node = self.program.nodes[name]
        maker = self.program.nodes[node.inputs[0]] if isinstance(node, Item) else node
        fresh = isinstance(maker, Extern) and facts_of(maker.target).fresh
        return fresh and name not in self.outputs and name not in self.apart and name not in self.covered

    def may_take_over(self, unit: Unit, new: str, old: str) -> bool:
        """Whether an output can have the memory of an intermediate from the start."""
        if new not in self.outputs or new in self.updates or new in self.over_others:
            return False
        return self.overwriting.alike(new, old) and self.overwriting.may_overwrite(unit.number, new, old)

    def cheaper(
        self, units: Sequence[Unit], together: Sequence[list[Unit]], memory: MemoryPlan, new: str, old: str
    ) -> MemoryPlan:
        """The plan in which an output has an intermediate's memory, if all memory together is no more."""
        before = max(self.needs(units, memory))
        self.cover({new: old})
        placed = self.placed(together)
        if max(self.needs(units, placed)) <= before:
            return placed
        self.uncover({new: old})
        return memory

    def set_apart(self, together: Sequence[list[Unit]], memory: MemoryPlan) -> MemoryPlan:
        """Intermediates get memory of their own, all but small ones, where less memory is then in use at most.

        The arena is as large as it ever must be until it is needed for the last time, also while saved activations are
        still many, or gradients many already.
        """
        limits = self.limits
        if memory.size < limits.planned_bytes:
            return memory
        units = flat(together)
        most = max(self.needs(units, memory))
        least = max(limits.apart_bytes, memory.size // limits.apart_divisor)
        alone = {name for name in memory.offsets if hint(self.nbytes(name)) >= least}
        pairs = memory.in_place.items()
        over = {new: old for new, old in pairs if new in alone and old in alone and self.overwriting.alike(new, old)}
        self.apart = alone - over.keys()
        self.cover(over)
        placed = self.placed(together)
        total = max(self.needs(units, placed))
        if total + total // limits.apart_saves < most:
            return placed
        self.apart = set()
        self.uncover(over)
        return memory

    def largest_apart(self, together: Sequence[list[Unit]], memory: MemoryPlan) -> MemoryPlan:
        """The largest intermediate gets memory of its own, where it is half of the arena, which stays to the end.

        Then the next one, if it is half of what is left. No more: programs that share an arena do not share the memory
        of these.
        """
        if memory.size < self.limits.shared_bytes:
            return memory
        units = flat(together)
        while memory.offsets:
            largest = max(memory.offsets, key=lambda name: hint(self.nbytes(name)))
            written_over = largest in memory.in_place or largest in memory.in_place.values()
            if written_over or 2 * hint(self.nbytes(largest)) < memory.size:
                break
            self.apart.add(largest)
            placed = self.placed(together)
            if max(self.needs(units, placed)) >= max(self.needs(units, memory)):
                self.apart.remove(largest)
                break
            memory = placed
        return memory

    def needs(self, units: Sequence[Unit], memory: MemoryPlan) -> list[int]:
        """Bytes in use in each unit: the arena, until nobody needs it, and all other memory."""
        kept = self.outputs | set(self.updates.values())
        other = Profile(units, self.outside, kept, self.over_others).live
        ended = self.arena_end(units, memory)
        return [size + memory.size if at <= ended else size for at, size in enumerate(other)] or [0]

    def arena_end(self, units: Sequence[Unit], memory: MemoryPlan) -> int:
        """The last unit that uses the arena; before the first one where none does."""
        uses = (at for at, u in enumerate(units) for name in (*u.writes, *u.reads) if name in memory.offsets)
        return max(uses, default=-1)

    def breaks(self, units: Sequence[Unit], memory: MemoryPlan) -> set[int]:
        """Numbers of kernels that do not follow in the run of those before them.

        A run takes memory for all that it makes before it begins, and what it reads is there until it ends. So a run
        ends where more memory would be in use than kernels by themselves ever need.
        """
        needs = self.needs(units, memory)
        limit = max(needs) + max(needs) // self.limits.break_saves
        found: set[int] = set()
        used = 0
        for at, unit in enumerate(units):
            kernels = at and unit.number in self.fused.groups and units[at - 1].number in self.fused.groups
            used = used + sum(map(self.outside, unit.writes)) if kernels else needs[at]
            if used > limit:
                found.add(unit.number)
                used = needs[at]
        return found

    def inside(self, name: str) -> int:
        """Bytes that a buffer takes in the arena."""
        return aligned(hint(self.nbytes(name))) if self.in_arena(name) else 0

    def outside(self, name: str) -> int:
        """Bytes that a buffer takes in other memory, from its first use to its last."""
        if isinstance(self.program.nodes[name], Input):
            return 0 if name in self.caller_owned else hint(self.nbytes(name))
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
            or name in self.over_others
            or name in self.covered
            or name in self.apart
            or isinstance(node, (Input, Constant, Item))
            or isinstance(node.meta, tuple)
        ):
            return False
        return not isinstance(node, Extern) or writes_into(node)


def writes_into(node: Extern) -> bool:
    """Whether it writes into a given tensor without a copy of its own."""
    return facts_of(node.target).into


def flat(together: Sequence[list[Unit]]) -> list[Unit]:
    """All units in order."""
    return [unit for step in together for unit in step]


def joined(step: list[Unit]) -> Unit:
    """Units that run at the same time as one."""
    if len(step) == 1:
        return step[0]
    reads = tuple(dict.fromkeys(name for unit in step for name in unit.reads))
    writes = tuple(name for unit in step for name in unit.writes)
    return Unit(step[0].number, reads, writes, step[0].position)
