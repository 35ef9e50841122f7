"""The schedule of a program: kernels and externs in order, buffers with strides and places. Input of codegen.

realize -> split long reductions -> fuse -> drop buffers nobody else reads -> order -> memory plan
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from smelt.base.options import Options
from smelt.loops.ir import Constant, Extern, Input, Item, LoopProgram
from smelt.schedule.dependencies import Names
from smelt.schedule.fuse import Decision, Fused, fuse
from smelt.schedule.group import Group, Place
from smelt.schedule.memory import MemoryPlan, plan_memory
from smelt.schedule.order import Unit, order_units
from smelt.schedule.realize import Realized, StridedView, metas_of, realize
from smelt.schedule.split import split_reductions
from smelt.shapes.expr import flat_index
from smelt.shapes.size import IntLike, hint

WRITE_INTO = frozenset({"mm", "bmm"})
"""Externs that write into a given tensor without a copy of their own."""


@dataclass
class Schedule:
    """Everything codegen needs.

    Attributes:
        program: loop program, with split reductions.
        steps: numbers of groups and externs in execution order.
        groups: kernels by number.
        externs: externs by number.
        stored: buffers that exist.
        strides: element strides of each buffer.
        views: extern arguments that are strided views of buffers.
        memory: arena offsets; buffers in it are neither inputs nor outputs.
        last_use: step after which a buffer is not needed.
    """

    program: LoopProgram
    steps: list[int]
    groups: dict[int, Group]
    externs: dict[int, Extern]
    stored: set[str]
    strides: dict[str, tuple[IntLike, ...]]
    views: dict[str, StridedView]
    memory: MemoryPlan
    last_use: dict[str, int]
    decisions: list[Decision]

    def buffer_of(self, name: str) -> str:
        """The buffer that holds a value that an extern takes."""
        view = self.views.get(name)
        return view.base if view is not None else name


def schedule(program: LoopProgram, options: Options) -> Schedule:
    """Plan a loop program."""
    names = Names()
    real = realize(program)
    program = split_reductions(program, real, names)
    fused = fuse(program, real, names)
    stored = real.stored - _private(program, real, fused)
    return _Planner(program, real, fused, stored).plan()


def _private(program: LoopProgram, real: Realized, fused: Fused) -> set[str]:
    """Buffers that only their own kernel reads."""
    shared = {o.name for o in program.outputs if o.name is not None}
    for node in fused.others.values():
        for name in node.inputs:
            view = real.views.get(name)
            shared.add(view.base if view is not None else name)
    for group in fused.groups.values():
        shared |= {name for name in group.accesses if name not in group.members}
        # parts of a kernel that finish after its loops are only reached through memory
        shared |= {name for name, m in group.members.items() if group.scatter or m.place is Place.COLUMN}
    return {name for group in fused.groups.values() for name in group.members if name not in shared}


class _Planner:
    def __init__(self, program: LoopProgram, real: Realized, fused: Fused, stored: set[str]) -> None:
        self.program, self.real, self.fused, self.stored = program, real, fused, stored
        self.outputs = {o.name for o in program.outputs if o.name is not None}
        self.externs = {n: node for n, node in fused.others.items() if isinstance(node, Extern)}

    def plan(self) -> Schedule:
        units = order_units(self.units(), self.occupied, self.outputs)
        sizes = {name: self.nbytes(name) for unit in units for name in unit.writes if self.in_arena(name)}
        memory = plan_memory(units, sizes, self.may_overwrite)
        last = {name: step for step, unit in enumerate(units) for name in (*unit.writes, *unit.reads)}
        return Schedule(
            self.program, [u.number for u in units], self.fused.groups, self.externs, self.stored, self.real.strides,
            self.real.views, memory, last, self.fused.decisions,
        )  # fmt: skip

    def units(self) -> Iterable[Unit]:
        for number, group in self.fused.groups.items():
            reads = tuple(self.source(n) for n in group.accesses if n not in group.members)
            writes = tuple(n for n in group.members if n in self.stored)
            yield Unit(number, reads, writes, group.position)
        items: dict[str, list[str]] = {}
        for node in self.fused.others.values():
            if isinstance(node, Item):
                items.setdefault(node.inputs[0], []).append(node.name)
        for number, node in self.externs.items():
            reads = tuple(dict.fromkeys(self.source(self.buffer(name)) for name in node.inputs))
            writes = tuple(items.get(node.name, [])) if isinstance(node.meta, tuple) else (node.name,)
            yield Unit(number, reads, writes or (node.name,), number)

    def buffer(self, name: str) -> str:
        view = self.real.views.get(name)
        return view.base if view is not None else name

    def source(self, name: str) -> str:
        """The buffer a read waits for."""
        return name

    def nbytes(self, name: str) -> IntLike:
        return metas_of(self.program.nodes[name]).nbytes

    def occupied(self, name: str) -> int:
        node = self.program.nodes[name]
        return 0 if isinstance(node, (Input, Constant)) or isinstance(node.meta, tuple) else hint(self.nbytes(name))

    def in_arena(self, name: str) -> bool:
        """Intermediates of kernels, and of externs that can write into them."""
        node = self.program.nodes[name]
        if name in self.outputs or isinstance(node, (Input, Constant, Item)) or isinstance(node.meta, tuple):
            return False
        return not isinstance(node, Extern) or getattr(node.target, "name", "") in WRITE_INTO

    def may_overwrite(self, number: int, output: str, source: str) -> bool:
        group = self.fused.groups.get(number)
        if group is None or not group.flat:
            return False
        nodes = self.program.nodes
        made, read = metas_of(nodes[output]), metas_of(nodes[source])
        if made.dtype.itemsize != read.dtype.itemsize:
            return False
        place = flat_index(group.members[output].index, self.real.strides[output])
        return all(flat_index(i, self.real.strides[source]) == place for i in group.accesses[source])
