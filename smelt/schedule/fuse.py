"""Fusion: groups that touch the same buffers are merged greedily, the largest saving of memory traffic first.

A saving is counted in bytes: a buffer that one group writes and the other reads need not be read back (nor written,
if nothing else reads it); a buffer that both read is read once. Every refusal is recorded with its reason.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from smelt.loops.ir import Constant, Extern, Input, LoopProgram, Node, Pointwise, Reduction, Scatter
from smelt.schedule.dependencies import Names
from smelt.schedule.group import Group, Role, group_of
from smelt.schedule.machine import CPU, Machine
from smelt.schedule.merge import merge, merge_beside, only_columns
from smelt.schedule.precedence import Precedence
from smelt.schedule.realize import Realized, adds_up, metas_of
from smelt.schedule.split import PARTIAL_SUFFIX
from smelt.shapes.size import hint


@dataclass(frozen=True)
class Decision:
    """One attempt to merge: the two groups' labels, the bytes that it would save, and the refusal (None: merged)."""

    left: str
    right: str
    saved: int
    refusal: str | None


@dataclass
class Fused:
    """Groups and other nodes (externs, inputs, constants) by number, the order among them, and every decision.

    `after`: for some stored values, other values for which their kernel waits without reading them. `often_read`:
    buffers outside of repeated blocks for which pairs of groups that only read them were not tried, since there are too
    many.
    """

    groups: dict[int, Group]
    others: dict[int, Node]
    number_of: dict[str, int]
    decisions: list[Decision] = field(default_factory=list)
    order: Precedence = field(default_factory=lambda: Precedence({}))
    after: dict[str, list[str]] = field(default_factory=dict)
    often_read: set[str] = field(default_factory=set)


def fuse(
    program: LoopProgram,
    real: Realized,
    names: Names,
    machine: Machine = CPU,
    stands_for: Mapping[str, int] | None = None,
) -> Fused:
    """Form the groups of a program.

    Args:
        stands_for: if repeated blocks were left out of the program: for each value of a block, the number of blocks for
            which the value's block stands.
    """
    fusion = _Fusion(program, real, names, machine)
    if stands_for is not None:
        fusion.find_often_read(stands_for)
    fusion.run()
    return fusion.result


class _Fusion:
    def __init__(self, program: LoopProgram, real: Realized, names: Names, machine: Machine) -> None:
        self.program, self.real, self.names, self.machine = program, real, names, machine
        self.outputs = {o.name for o in program.outputs}
        self.users = program.users()
        self.result = Fused({}, {}, {})
        self.groups = self.result.groups
        self.touching: dict[str, set[int]] = {}
        self.refused: set[tuple[int, int]] = set()
        self.version: dict[int, int] = {}
        self._order = {name: i for i, name in enumerate(program.nodes)}
        self._form()
        self.extern_reads = {self.buffer_of(n) for node in self.result.others.values() for n in node.inputs}
        self._connect()

    def _form(self) -> None:
        for position, (name, node) in enumerate(self.program.nodes.items()):
            if isinstance(node, (Pointwise, Reduction, Scatter)):
                if name not in self.real.stored:
                    continue
                group = group_of(position, node, self.program, self.real, self.names)
                group.position = position
                self.groups[position] = group
                for buffer in group.accesses:
                    self.touching.setdefault(buffer, set()).add(position)
            else:
                self.result.others[position] = node
            self.result.number_of[name] = position
            self.version[position] = 0

    def find_often_read(self, stands_for: Mapping[str, int]) -> None:
        """Find the buffers outside of repeated blocks that too many groups read if all blocks are counted."""
        copies = {self.result.number_of[name]: n for name, n in stands_for.items() if name in self.result.number_of}
        for name, touching in self.touching.items():
            count = sum(copies.get(number, 1) for number in touching)
            if name not in stands_for and count > self.machine.fusion.readers:
                self.result.often_read.add(name)

    def _connect(self) -> None:
        numbers = self.result.number_of
        direct = {n: {numbers[name] for name in self.reads(n)} - {n} for n in numbers.values()}
        for name, other in self.program.after.items():
            late = [n for n in (name + PARTIAL_SUFFIX, name) if n in numbers]
            if late:
                self.result.after[late[0]] = sources = self.stored_below(other)
                direct[numbers[late[0]]] |= {numbers[source] for source in sources}
        self.order = self.result.order = Precedence(direct)

    def reads(self, number: int) -> Iterable[str]:
        """Returns the buffers that a unit reads and does not make."""
        group = self.groups.get(number)
        if group is not None:
            return (name for name in group.accesses if name not in group.members)
        node = self.result.others[number]
        return (self.buffer_of(name) for name in node.inputs)

    def stored_below(self, name: str) -> list[str]:
        """Returns the nearest buffers, except inputs and constants, from which a value is computed; only the value
        itself if it has a buffer.
        """
        found: dict[str, None] = {}
        seen, waiting = {name}, [name]
        while waiting:
            name = waiting.pop()
            if name in self.result.number_of:
                if not isinstance(self.program.nodes[name], (Input, Constant)):
                    found[name] = None
                continue
            operands = [n for n in self.program.nodes[name].inputs if n not in seen]
            seen.update(operands)
            waiting += operands
        return list(found)

    def buffer_of(self, name: str) -> str:
        view = self.real.views.get(name)
        return view.base if view is not None else name

    def run(self) -> None:
        heap: list[tuple[int, int, int, int, int]] = []
        for number in list(self.groups):
            self._offer(number, heap, only_later=True)
        while heap:
            saved, a, b, version_a, version_b = heapq.heappop(heap)
            current = self.version.get(a) == version_a and self.version.get(b) == version_b
            if current and self._try(a, b, -saved):
                self._offer(min(a, b), heap, only_later=False)
        if self.machine.column_epilogues:
            self._merge_final_reductions()

    def _merge_final_reductions(self) -> None:
        """Merge the final reductions of partial results of one kernel: each merge saves a launch."""
        families: dict[tuple[object, ...], list[int]] = {}
        for number, group in self.groups.items():
            if only_columns(group):
                makers = {self.result.number_of[name] for name in group.accesses if name.endswith(PARTIAL_SUFFIX)}
                sizes = [tuple(v.size for v in group.variables(role)) for role in Role]
                if len(makers) == 1:
                    families.setdefault((*makers, *sizes), []).append(number)
        for first, *others in families.values():
            for other in others:
                self._try(first, other, 0, beside=True)

    def _offer(self, number: int, heap: list[tuple[int, int, int, int, int]], only_later: bool) -> None:
        group = self.groups[number]
        partners: set[int] = set()
        for name in group.accesses:
            touching = self.touching[name]
            few = len(touching) <= self.machine.fusion.readers and name not in self.result.often_read
            if name in group.members or few:
                partners |= touching
            elif self.result.number_of[name] in self.groups:
                partners.add(self.result.number_of[name])
        for other in partners:
            if other == number or (only_later and other < number):
                continue
            saved = self._saving(group, self.groups[other])
            if saved > 0:
                a, b = min(number, other), max(number, other)
                # equal savings: the nearest groups first, so that equal layers fuse alike
                heapq.heappush(heap, (-saved, a, b, self.version[a], self.version[b]))

    def _saving(self, a: Group, b: Group) -> int:
        saved = small = 0
        for name in self._shared(a, b):
            size = _bytes(self.program.nodes[name])
            if name in a.members or name in b.members:
                saved += max(size, 1)
                members = {*a.members, *b.members}
                if name not in self.outputs and self._only_read_by(name, members):
                    saved += size
            elif size >= self.machine.fusion.shared_bytes:
                saved += size
            else:
                small += size
        return saved + small if saved else 0

    def _only_read_by(self, name: str, members: set[str]) -> bool:
        numbers = {self.result.number_of[m] for m in members}
        if not self.touching.get(name, set()) <= numbers:
            return False
        return name not in self.extern_reads

    def _shared(self, a: Group, b: Group) -> list[str]:
        if len(a.accesses) > len(b.accesses):
            a, b = b, a
        return [name for name in a.accesses if name in b.accesses]

    def _through_shared(self, a: Group, b: Group) -> Group | str:
        """Merge two groups by a buffer that both touch, trying the largest first; a string is the refusal."""
        shared = sorted(self._shared(a, b), key=lambda n: -_bytes(self.program.nodes[n]))
        return merge(a, b, shared, self.program, self.names, self.machine)

    def _try(self, number_a: int, number_b: int, saved: int, beside: bool = False) -> bool:
        """Merge two groups if possible, and record the decision. `beside`: they share no buffer."""
        a, b = self.groups[number_a], self.groups[number_b]
        refusal: str | None = None
        if self.order.between(number_a, number_b):
            refusal = "another kernel must run between them"
        else:
            merged = merge_beside(a, b, self.names, self.machine) if beside else self._through_shared(a, b)
            if isinstance(merged, str):
                refusal = merged
            elif self._waiting(merged) > (most := self.machine.realization.waiting):
                refusal = f"more than {most} large results would wait to be added up"
        self.result.decisions.append(Decision(a.label(), b.label(), saved, refusal))
        if refusal is not None:
            return False
        assert isinstance(merged, Group)
        self._replace(number_a, number_b, merged)
        return True

    def _waiting(self, group: Group) -> int:
        """Returns the number of large results of externs that the group sums."""
        limits = self.machine.realization
        if len(group.accesses) <= limits.waiting:
            return 0
        return sum(
            name not in self.outputs and adds_up(self.program, self.users, name, limits) for name in group.accesses
        )

    def _replace(self, a: int, b: int, merged: Group) -> None:
        merged.number = a
        merged.members = dict(sorted(merged.members.items(), key=lambda item: self._order[item[0]]))
        self.groups[a] = merged
        del self.groups[b]
        del self.version[b]
        self.version[a] += 1
        for name in merged.members:
            self.result.number_of[name] = a
        for name in merged.accesses:
            self.touching[name].discard(b)
            self.touching[name].add(a)
        self.order.join(a, b)


def _bytes(node: Node) -> int:
    if isinstance(node, Extern) and isinstance(node.meta, tuple):
        return 0
    return hint(metas_of(node).nbytes)
