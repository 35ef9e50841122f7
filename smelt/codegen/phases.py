"""Chooses the pass over a row in which each value of a kernel is computed, and the values kept for later passes."""

from __future__ import annotations

from collections.abc import Iterable

from smelt.codegen.nest import Nest
from smelt.loops.ir import Pointwise
from smelt.schedule.dependencies import operands_first, weight
from smelt.schedule.group import Member, NestLevel
from smelt.schedule.plan import Schedule
from smelt.schedule.realize import metas_of
from smelt.shapes.size import Size, hint, known_equal


class Phases:
    """Phases of a nest: phase p runs after the row reductions of phases below p.

    `keep`: whether values may be kept in row buffers. If the width is symbolic, the buffers have room for a maximum
    width.
    """

    def __init__(self, nest: Nest, plan: Schedule, keep: bool = True) -> None:
        self.nest, self.plan, self.nodes, self.keep = nest, plan, plan.program.nodes, keep
        self.limits = plan.machine.loops
        self.nest_size = nest.size([*nest.kept, *nest.folded, *nest.inner])
        self.width = nest.size(nest.inner)
        self.room = self.limits.row_buffer_bytes // 8 if isinstance(self.width, Size) else self.width
        self._depth: dict[str, int] = {}
        self._cost: dict[str, int] = {}
        self.temporaries: dict[str, str] = {}
        self.count = 1 + max((self.depth_of_source(m) for m in nest.members.values()), default=0)
        self.choose_temporaries()

    def depth_of_source(self, member: Member) -> int:
        """Returns the phase in which a member is computed."""
        return max((self.depth(name) for name in member.node.inputs), default=0)

    def depth(self, name: str) -> int:
        """Returns the first phase in which a value is available."""
        if name not in self._depth:
            for needed in operands_first([name], self.needs):
                if needed not in self._depth:
                    self._depth[needed] = self._depth_of(needed)
        return self._depth[name]

    def needs(self, name: str) -> Iterable[str]:
        """Returns the operands that decide the phase of a value and have no phase yet."""
        member = self.nest.members.get(name)
        if name in self._depth or (name in self.plan.stored and member is None):
            return ()
        return () if member is not None and member.nest_level is NestLevel.COLUMN else self.nodes[name].inputs

    def _depth_of(self, name: str) -> int:
        member = self.nest.members.get(name)
        if member is None and name in self.plan.stored:
            return 0
        if member is not None and member.nest_level is NestLevel.ROW:
            return self.depth_of_source(member) + 1
        if member is not None and member.nest_level is NestLevel.COLUMN:
            return 0
        return max((self.depth(source) for source in self.nodes[name].inputs), default=0)

    def roots(self, phase: int) -> tuple[list[Member], list[Member], list[Member]]:
        """Returns (row reductions, column reductions, inner stores) of a phase."""
        rows, columns, stores = [], [], []
        for member in self.nest.members.values():
            if self.depth_of_source(member) != phase:
                continue
            if member.nest_level is NestLevel.ROW:
                rows.append(member)
            elif member.nest_level is NestLevel.COLUMN:
                columns.append(member)
            elif member.nest_level is NestLevel.INNER and member.name in self.plan.stored:
                stores.append(member)
        return rows, columns, stores

    def outer_stores(self, phase: int) -> list[Member]:
        """Returns the stored values of the row scope that become available just before a phase."""
        found = []
        for member in self.nest.members.values():
            if member.name not in self.plan.stored:
                continue
            if (member.nest_level is NestLevel.OUTER and self.depth_of_source(member) == phase) or (
                member.nest_level is NestLevel.ROW and self.depth_of_source(member) + 1 == phase
            ):
                found.append(member)
        return found

    def choose_temporaries(self) -> None:
        """Choose the values to keep, from users to operands: costly values that a later phase also needs."""
        needed = self.needed_in()
        if not self.keep:
            return
        total = 0
        for name in needed:
            node = self.nodes[name]
            row = self.room * 8
            keeps = (
                len(needed[name]) > 1
                and isinstance(node, Pointwise)
                and not node.view
                and not self.is_stored(name)
                and known_equal(node.meta.numel, self.nest_size)
                and row <= self.limits.row_buffer_bytes
                and total + row <= self.limits.row_buffers_bytes
                and self.cost(name) > self.limits.min_kept_additions
            )
            if keeps:
                self.temporaries[name] = f"w{len(self.temporaries)}"
                total += row
            self.propagate_phases(name, needed)

    def needed_in(self) -> dict[str, set[int]]:
        """Returns the values computed in the inner loops, users before operands, each with an empty set of phases."""
        order = operands_first(self.nest.members, self.computed_operands)
        needed: dict[str, set[int]] = {name: set() for name in reversed(order)}
        for member in self.nest.members.values():
            needed[member.name].add(self.depth_of_source(member))
        return needed

    def computed_operands(self, name: str) -> Iterable[str]:
        """Returns the operands that the kernel itself computes."""
        return (s for s in self.nodes[name].inputs if s in self.nest.members or s not in self.plan.stored)

    def propagate_phases(self, name: str, needed: dict[str, set[int]]) -> None:
        """Add the phases that need `name` to those of its operands; only the first phase if the value is kept."""
        member = self.nest.members.get(name)
        phases = needed[name]
        if member is not None and member.nest_level in (NestLevel.ROW, NestLevel.COLUMN):
            phases = {self.depth_of_source(member)}
        elif self.is_stored(name) or name in self.temporaries:
            phases = {self.depth(name)}
        elif member is not None and member.nest_level is NestLevel.OUTER:
            return
        for source in self.nodes[name].inputs:
            if source in needed:
                needed[source] |= phases

    def is_stored(self, name: str) -> bool:
        return name in self.nest.members and name in self.plan.stored

    def cost(self, name: str) -> int:
        """Returns the cost, in additions, of computing a value from memory and row scalars."""
        if name not in self._cost:
            for needed in operands_first([name], self.costing):
                if needed not in self._cost:
                    self._cost[needed] = self._cost_of(needed)
        return self._cost[name]

    def costing(self, name: str) -> Iterable[str]:
        """Returns the operands that contribute to the cost of a value and have no cost yet."""
        return () if name in self._cost or self.is_leaf(name) else self.nodes[name].inputs

    def is_leaf(self, name: str) -> bool:
        """Whether a value's cost does not depend on its operands."""
        node = self.nodes[name]
        computed = isinstance(node, Pointwise) and name not in self.plan.stored
        return not computed or hint(metas_of(node).numel) * 4 < hint(self.nest_size)

    def _cost_of(self, name: str) -> int:
        node = self.nodes[name]
        if not isinstance(node, Pointwise) or name in self.plan.stored:
            return 1
        if hint(metas_of(node).numel) * 4 < hint(self.nest_size):
            return 0
        own = 0 if node.view else weight(node.op)
        return own + sum(self.cost(source) for source in node.inputs)
