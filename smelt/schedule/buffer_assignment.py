"""Assigns memory to the buffers of a program: in the arena, in another buffer's memory, or by a separate allocation."""

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
from smelt.schedule.sharing import shared_buffers
from smelt.shapes.size import IntLike, hint


class BufferAssignment:
    """The memory assignment of one program's buffers.

    Attributes:
        over_others: for each value that overwrites an intermediate's memory, that intermediate; neither is in the
            arena.
        overwritten: the intermediates that values of `over_others` overwrite.
        dedicated: intermediates that have a separate allocation.

    Args:
        caller_owned: inputs whose buffers outlive the call, so that their memory is not free after their last use.
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
        # if an output is a view of other memory, the caller keeps that memory, too
        self.outputs |= shared_buffers(overwriting.sharing, self.outputs)
        self.over_others: dict[str, str] = {}
        self.overwritten: set[str] = set()
        self.dedicated: set[str] = set()

    def plan_arena(self, unit_steps: Sequence[list[Unit]]) -> MemoryPlan:
        """Plan arena offsets for steps in order; the units of one step run at the same time."""
        written_in = {name: step for step in unit_steps for unit in step for name in unit.writes}
        sizes = {name: self.nbytes(name) for name in written_in if self.in_arena(name)}

        def may_overwrite(_: int, output: str, source: str) -> bool:
            return self.overwriting.overwrites(written_in[output], output, source)

        return plan_memory(
            [joined(step) for step in unit_steps], sizes, may_overwrite, self.limits.max_compared_buffers
        )

    def take_over(self, unit_steps: Sequence[list[Unit]], memory: MemoryPlan) -> MemoryPlan:
        """Let outputs that overwrite an intermediate have that intermediate's memory from the start.

        An intermediate of the arena is moved into the output's allocation only if it is large and total memory does not
        grow. A result of an extern already has its own allocation, which becomes the output's.
        """
        limits, units = self.limits, flat(unit_steps)
        last = {name: at for at, unit in enumerate(units) for name in (*unit.writes, *unit.reads)}
        peak: int | None = None  # of `memory`; None: not known
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
                            peak = max(self.needs(units, memory)) if peak is None else peak
                            memory, peak = self.cheaper(units, unit_steps, (memory, peak), new, old)
                    elif (
                        self.is_fresh(old)
                        and hint(self.nbytes(old)) >= limits.min_dedicated_bytes
                        and self.may_take_over(unit, new, old)
                    ):
                        self.cover({new: old})
                        peak = None
        return memory

    def cover(self, over: Mapping[str, str]) -> None:
        """Place values (keys) in the memory of others (values), outside of the arena."""
        self.over_others |= over
        self.overwritten |= {*over.values()}

    def uncover(self, over: Mapping[str, str]) -> None:
        """Undo `cover`."""
        self.over_others = {new: old for new, old in self.over_others.items() if new not in over}
        self.overwritten -= {*over.values()}

    def is_fresh(self, name: str) -> bool:
        """Whether a value is an extern's result outside of the arena whose memory no other value uses."""
        node = self.program.nodes[name]
        maker = self.program.nodes[node.inputs[0]] if isinstance(node, Item) else node
        fresh = isinstance(maker, Extern) and facts_of(maker.target).fresh
        return fresh and name not in self.outputs and name not in self.dedicated and name not in self.overwritten

    def may_take_over(self, unit: Unit, new: str, old: str) -> bool:
        """Whether an output may have the memory of an intermediate."""
        if new not in self.outputs or new in self.updates or new in self.over_others:
            return False
        return self.overwriting.alike(new, old) and self.overwriting.may_overwrite(unit.number, new, old)

    def cheaper(
        self, units: Sequence[Unit], unit_steps: Sequence[list[Unit]], now: tuple[MemoryPlan, int], new: str, old: str
    ) -> tuple[MemoryPlan, int]:
        """Returns the plan in which an output has an intermediate's memory if peak memory does not grow, else the plan
        `now`; with the peak in bytes.
        """
        self.cover({new: old})
        plan = self.plan_arena(unit_steps)
        peak = max(self.needs(units, plan))
        if peak <= now[1]:
            return plan, peak
        self.uncover({new: old})
        return now

    def dedicate(self, unit_steps: Sequence[list[Unit]], memory: MemoryPlan) -> MemoryPlan:
        """Give all but small intermediates a separate allocation, if that lowers peak memory.

        The arena keeps its full size until its last use, even while saved activations or gradients take most memory.
        """
        limits = self.limits
        if memory.size < limits.planned_bytes:
            return memory
        units = flat(unit_steps)
        most = max(self.needs(units, memory))
        least = max(limits.min_dedicated_bytes, memory.size // limits.dedicated_divisor)
        alone = {name for name in memory.offsets if hint(self.nbytes(name)) >= least}
        pairs = memory.in_place.items()
        over = {new: old for new, old in pairs if new in alone and old in alone and self.overwriting.alike(new, old)}
        self.dedicated = alone - over.keys()
        self.cover(over)
        plan = self.plan_arena(unit_steps)
        total = max(self.needs(units, plan))
        if total + total // limits.dedicated_saving_divisor < most:
            return plan
        self.dedicated = set()
        self.uncover(over)
        return memory

    def dedicate_largest(self, unit_steps: Sequence[list[Unit]], memory: MemoryPlan) -> MemoryPlan:
        """Give the largest intermediate a separate allocation if it takes at least half of an arena that programs
        share.

        Repeat while the next largest takes half of the remaining arena. Smaller ones stay in the arena, because
        programs that share an arena do not share dedicated allocations.
        """
        if memory.size < self.limits.shared_bytes:
            return memory
        units = flat(unit_steps)
        while memory.offsets:
            largest = max(memory.offsets, key=lambda name: hint(self.nbytes(name)))
            written_over = largest in memory.in_place or largest in memory.in_place.values()
            if written_over or 2 * hint(self.nbytes(largest)) < memory.size:
                break
            self.dedicated.add(largest)
            plan = self.plan_arena(unit_steps)
            if max(self.needs(units, plan)) >= max(self.needs(units, memory)):
                self.dedicated.remove(largest)
                break
            memory = plan
        return memory

    def needs(self, units: Sequence[Unit], memory: MemoryPlan) -> list[int]:
        """Returns the bytes in use while each unit runs: the arena until its last use, and all other memory."""
        kept = self.outputs | set(self.updates.values())
        other = Profile(units, self.outside, kept, self.over_others).live
        ended = self.arena_end(units, memory)
        return [size + memory.size if at <= ended else size for at, size in enumerate(other)] or [0]

    def arena_end(self, units: Sequence[Unit], memory: MemoryPlan) -> int:
        """Returns the position of the last unit that uses the arena; -1 if none does."""
        uses = (at for at, u in enumerate(units) for name in (*u.writes, *u.reads) if name in memory.offsets)
        return max(uses, default=-1)

    def breaks(self, units: Sequence[Unit], memory: MemoryPlan) -> set[int]:
        """Returns the numbers of kernels before which a run (kernels launched by one call) must end.

        A run allocates all its results before it begins and keeps all buffers that it reads until it ends. Therefore a
        run ends before a kernel with which its peak memory would exceed that of kernels launched one by one.
        """
        needs = self.needs(units, memory)
        limit = max(needs) + max(needs) // self.limits.break_saving_divisor
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
        """Returns the bytes that a buffer takes in the arena."""
        return aligned(hint(self.nbytes(name))) if self.in_arena(name) else 0

    def outside(self, name: str) -> int:
        """Returns the bytes that a buffer takes outside of the arena, from its first use to its last."""
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
        """Whether a value is an intermediate in the arena: made by a kernel, or by an extern that can write into it."""
        node = self.program.nodes[name]
        if (
            name in self.outputs
            or name in self.over_others
            or name in self.overwritten
            or name in self.dedicated
            or isinstance(node, (Input, Constant, Item))
            or isinstance(node.meta, tuple)
        ):
            return False
        return not isinstance(node, Extern) or writes_into(node)


def writes_into(node: Extern) -> bool:
    """Whether an extern writes its result into a given tensor without a copy."""
    return facts_of(node.target).into


def flat(unit_steps: Sequence[list[Unit]]) -> list[Unit]:
    """Returns the units of all steps, in order."""
    return [unit for step in unit_steps for unit in step]


def joined(step: list[Unit]) -> Unit:
    """Returns a single unit that reads and writes the buffers of all units of a step."""
    if len(step) == 1:
        return step[0]
    reads = tuple(dict.fromkeys(name for unit in step for name in unit.reads))
    writes = tuple(name for unit in step for name in unit.writes)
    return Unit(step[0].number, reads, writes, step[0].position)
