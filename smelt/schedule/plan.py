"""The schedule of a program: kernels and externs in order, buffers with strides and places. Input of codegen.

realize -> split long reductions -> fuse -> drop buffers nobody else reads -> join products with what is around them
-> order -> bundle -> memory plan
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from smelt.base.options import Options
from smelt.loops.ir import Constant, Extern, Input, Item, LoopProgram, Pointwise, Scatter
from smelt.schedule.bundle import MOVED, ROOM, TINY, Mobile, Profile, gather
from smelt.schedule.dependencies import Names, operands_first
from smelt.schedule.fuse import Decision, Fused, fuse
from smelt.schedule.group import Group, Place, looks_up
from smelt.schedule.machine import CPU, Machine
from smelt.schedule.memory import MemoryPlan, aligned, plan_memory
from smelt.schedule.order import CycleError, Unit, order_units
from smelt.schedule.products import Product, ProductSearch, in_parts
from smelt.schedule.realize import Realized, StridedView, metas_of, realize
from smelt.schedule.split import split_reductions
from smelt.shapes.expr import flat_index
from smelt.shapes.size import IntLike, hint, is_symbolic, same, same_all

WRITE_INTO = frozenset({"mm", "bmm"})
"""Externs that write into a given tensor without a copy of their own."""

LARGE = 1 << 16
"""Bytes of an intermediate whose memory is worth to be planned together with that of a result."""

SHARE = 16
"""It is at least this part of the arena: few are, and the arena is planned anew for each."""

TRIED = 12
"""Intermediates that are tried outside of the arena at most."""


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
        over_inputs: outputs that are written over the input whose new value they are.
        over_others: outputs that are written over an intermediate, which therefore is not in the arena.
        apart: intermediates with memory of their own, which is taken when they are made and free after their last use.
        products: matrix products that one kernel may compute together with what is around them, by number of the
            unit. Their groups are among `groups`, for the other way to run the unit: around the library's call.
        bundles: groups that follow each other in `steps` and may run at the same time, each list in order.
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
    over_inputs: dict[str, str]
    over_others: dict[str, str] = field(default_factory=dict)
    products: dict[int, Product] = field(default_factory=dict)
    bundles: list[list[int]] = field(default_factory=list)
    apart: set[str] = field(default_factory=set)

    def made_by(self, number: int) -> list[str]:
        """Values that the kernels of a unit compute."""
        product = self.products.get(number)
        if product is None:
            return list(self.groups[number].members)
        return [product.name, *(name for part in product.parts for name in self.groups[part].members)]

    def buffer_of(self, name: str) -> str:
        """The buffer that holds a value that an extern takes."""
        view = self.views.get(name)
        return view.base if view is not None else name


def schedule(
    program: LoopProgram,
    options: Options,
    updates: Mapping[int, str] | None = None,
    machine: Machine = CPU,
    releases: bool = True,
    parts: bool = False,
) -> Schedule:
    """Plan a loop program.

    Args:
        updates: position of an output -> the input whose new value it is. Where the input is read for the last time by
            the kernel that makes the new value, element by element, the kernel writes over it.
        machine: for which it is.
        releases: whether inputs may be freed after their last use: nobody else holds what a forward saves.
        parts: whether tensor cores may multiply large products of float32, in parts.
    """
    names = Names()
    real = realize(program, machine)
    program = split_reductions(program, real, names, machine)
    fused = fuse(program, real, names, machine)
    stored = real.stored - _private(program, real, fused)
    products: dict[int, Product] = {}
    if machine.templates and (options.templates or parts):
        wanted = (lambda product: True) if options.templates else in_parts
        products = ProductSearch(program, real, fused, stored, names, machine, wanted).find()
    return _Planner(program, real, fused, stored, updates or {}, products, releases, machine).plan()


def _private(program: LoopProgram, real: Realized, fused: Fused) -> set[str]:
    """Buffers that only their own kernel reads."""
    shared = {o.name for o in program.outputs if o.name is not None}
    for node in fused.others.values():
        for name in node.inputs:
            view = real.views.get(name)
            shared.add(view.base if view is not None else name)
    for group in fused.groups.values():
        shared |= {name for name in group.accesses if name not in group.members}
        # parts of a kernel that finish after its loops are only reached through memory, unless something follows them
        followed = group.has(Place.AFTER)
        late = {name for name, m in group.members.items() if m.place is Place.COLUMN and not followed}
        shared |= group.members.keys() if group.scatter else late
    return {name for group in fused.groups.values() for name in group.members if name not in shared}


def _may_run_again(group: Group) -> bool:
    """Whether its kernel may be run a second time, on the same inputs: sin and cos are first computed quickly."""
    return any(isinstance(m.node, Pointwise) and m.node.op in ("sin", "cos") for m in group.members.values())


class _Planner:
    def __init__(
        self,
        program: LoopProgram,
        real: Realized,
        fused: Fused,
        stored: set[str],
        updates: Mapping[int, str],
        products: dict[int, Product],
        releases: bool,
        machine: Machine,
    ) -> None:
        self.program, self.real, self.fused, self.stored = program, real, fused, stored
        self.products, self.releases, self.machine = products, releases, machine
        self.over_others: dict[str, str] = {}
        self.apart: set[str] = set()
        self.unit_of = {part: number for number, product in products.items() for part in product.parts}
        self.in_units = {product.name for product in products.values()}
        self.outputs = {o.name for o in program.outputs if o.name is not None}
        self.externs = {n: node for n, node in fused.others.items() if isinstance(node, Extern)}
        self.updates = self.possible_updates(updates)

    def plan(self) -> Schedule:
        """Order, bundles (where they are wanted), memory."""
        together = [[unit] for unit in self.ordered()]
        memory = self.placed(together)
        if self.machine.bundles:
            together, memory = self.bundled(together, memory)
        if self.machine.takes_over:
            memory = self.set_apart(together, self.taken_over(together, memory))
        units = [unit for step in together for unit in step]
        written_in = {name: step for step in together for unit in step for name in unit.writes}
        last = {name: step for step, unit in enumerate(units) for name in (*unit.writes, *unit.reads)}
        reader = {name: step for step, each in enumerate(together) for unit in each for name in unit.reads}
        writer = {name: step for step, each in enumerate(together) for unit in each for name in unit.writes}
        over = {
            new: old
            for new, old in self.updates.items()
            if reader.get(old, -1) < writer[new]
            or (reader[old] == writer[new] and self.overwrites(written_in[new], new, old))
        }
        return Schedule(
            self.program, [u.number for u in units], self.fused.groups, self.externs, self.stored, self.real.strides,
            self.real.views, memory, last, self.fused.decisions, over, self.over_others, self.products,
            [[unit.number for unit in step] for step in together if len(step) > 1], self.apart,
        )  # fmt: skip

    def placed(self, together: Sequence[list[Unit]]) -> MemoryPlan:
        """Places in the arena for units in order, of which some run at the same time."""
        written_in = {name: step for step in together for unit in step for name in unit.writes}
        sizes = {name: self.nbytes(name) for name in written_in if self.in_arena(name)}

        def may_overwrite(_: int, output: str, source: str) -> bool:
            return self.overwrites(written_in[output], output, source)

        return plan_memory([_joined(step) for step in together], sizes, may_overwrite)

    def overwrites(self, step: list[Unit], output: str, source: str) -> bool:
        """Whether a unit may write a value over a buffer that it ends, which none that runs at the same time reads."""
        writer = next(unit for unit in step if output in unit.writes)
        alone = all(source not in unit.reads for unit in step if unit is not writer)
        return alone and source in writer.reads and self.may_overwrite(writer.number, output, source)

    def bundled(self, alone: list[list[Unit]], memory: MemoryPlan) -> tuple[list[list[Unit]], MemoryPlan]:
        """The units in order, those that may run at the same time together, in an arena that is hardly larger.

        Args:
            alone: the units in order, each by itself.
            memory: their places then.
        """
        units = [unit for (unit,) in alone]
        mobile = {n: self.mobile(g) for n, g in self.fused.groups.items() if self.may_move(n, g)}
        place = {unit.number: at for at, unit in enumerate(units)}
        after: dict[int, set[int]] = {}
        for waiting in (self.before_updates(units), self.waits()):
            for number, others in waiting.items():
                after.setdefault(number, set()).update(n for n in others if place[n] < place[number])
        kept = self.outputs | set(self.updates.values())
        for most in (MOVED, TINY):
            accounts = [Profile(units, account, kept, memory.in_place) for account in (self.inside, self.outside)]
            together = gather(units, mobile, after, accounts, most)
            placed = self.placed(together)
            if placed.size <= memory.size + sum(account.highest for account in accounts) // 64 + 2 * ROOM:
                return together, placed
        return alone, memory

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
        return alike and hint(made.nbytes) >= LARGE and self.may_overwrite(unit.number, new, old)

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
        return [_joined(run) for run in runs]

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

    def may_move(self, number: int, group: Group) -> bool:
        """Whether a kernel may share a launch: it computes elements one by one, of sizes that are known."""
        if not group.flat or number in self.unit_of or looks_up(group):
            return False
        return not is_symbolic(v.size for v in group.order) and not any(same(v.size, 0) for v in group.order)

    def mobile(self, group: Group) -> Mobile:
        kind = tuple((metas_of(m.node).dtype, m.ops, m.cost, len(m.reads)) for m in group.members.values())
        alone = self.updates.keys()
        handed = (n for n in group.accesses if n not in alone and not isinstance(self.program.nodes[n], Input))
        return Mobile(sum(hint(self.nbytes(name)) for name in handed), kind)

    def ordered(self) -> list[Unit]:
        """All units; one that writes over an input comes after all others that read it, if that is possible.

        And after all that may find an index out of range: such a call must leave its inputs alone. (Gradients scattered
        to rows need no such care: the rows were looked up before.)
        """
        units = list(self.units())
        waits = self.waits()
        if not self.updates:
            return order_units(units, self.occupied, self.outputs, waits)
        after = self.before_updates(units)
        for number, others in waits.items():
            after.setdefault(number, set()).update(others)
        try:
            return order_units(units, self.occupied, self.outputs, after)
        except CycleError:
            return order_units(units, self.occupied, self.outputs, waits)

    def waits(self) -> dict[int, set[int]]:
        """For some units, others that they wait for without reading anything of theirs."""
        found: dict[int, set[int]] = {}
        for name, sources in self.fused.after.items():
            unit = self.unit_with(name)
            found.setdefault(unit, set()).update({self.unit_with(source) for source in sources} - {unit})
        return found

    def unit_with(self, name: str) -> int:
        """The number of the unit that makes a value."""
        node = self.program.nodes[name]
        number = self.fused.number_of[node.inputs[0] if isinstance(node, Item) else name]
        return self.unit_of.get(number, number)

    def before_updates(self, units: Iterable[Unit]) -> dict[int, set[int]]:
        """For each unit that writes over an input, those that it should wait for."""
        readers: dict[str, set[int]] = {}
        writer: dict[str, int] = {}
        for unit in units:
            writer |= dict.fromkeys(unit.writes, unit.number)
            for name in unit.reads:
                readers.setdefault(name, set()).add(unit.number)
        doubtful = {number for number, group in self.fused.groups.items() if looks_up(group)}  # in no product
        after: dict[int, set[int]] = {}
        for new, old in self.updates.items():
            after.setdefault(writer[new], set()).update((readers.get(old, set()) | doubtful) - {writer[new]})
        return after

    def possible_updates(self, updates: Mapping[int, str]) -> dict[str, str]:
        """Outputs that a kernel may write over the input that they are the new value of."""
        group = {
            name: self.unit_of.get(number, number)
            for number, each in self.fused.groups.items()
            for name in each.members
        }
        names = [o.name for o in self.program.outputs]
        found: dict[str, str] = {}
        for position, old in updates.items():
            new = names[position]
            if new is None or new not in group or new not in self.stored or names.count(new) > 1 or old in names:
                continue
            made, read = metas_of(self.program.nodes[new]), metas_of(self.program.nodes[old])
            alike = made.dtype == read.dtype and same_all(made.shape, read.shape)
            if alike and same_all(self.real.strides[new], self.real.strides[old]):
                if self.may_overwrite(group[new], new, old):
                    found[new] = old
        return found

    def units(self) -> Iterable[Unit]:
        for product in self.products.values():
            yield self.product_unit(product)
        for number, group in self.fused.groups.items():
            if number in self.unit_of:
                continue
            reads = tuple(self.source(n) for n in group.accesses if n not in group.members)
            writes = tuple(n for n in group.members if n in self.stored)
            yield Unit(number, reads, writes, group.position)
        items: dict[str, list[str]] = {}
        for node in self.fused.others.values():
            if isinstance(node, Item):
                items.setdefault(node.inputs[0], []).append(node.name)
        for number, node in self.externs.items():
            if node.name in self.in_units:
                continue
            reads = tuple(dict.fromkeys(self.source(self.buffer(name)) for name in node.inputs))
            writes = tuple(items.get(node.name, [])) if isinstance(node.meta, tuple) else (node.name,)
            yield Unit(number, reads, writes or (node.name,), number)

    def product_unit(self, product: Product) -> Unit:
        """A product with the groups around it: whichever way it runs, what it reads is there to the end."""
        groups = [self.fused.groups[part] for part in product.parts]
        writes = dict.fromkeys([product.name, *(n for g in groups for n in g.members if n in self.stored)])
        reads = dict.fromkeys([o.view.base for o in product.operands])
        reads |= dict.fromkeys(name for g in groups for name in g.accesses if name not in g.members)
        last = max([product.number, *(g.position for g in groups)])
        return Unit(product.number, tuple(n for n in reads if n not in writes), tuple(writes), last)

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

    def reads_ahead(self, number: int, source: str) -> bool:
        """Whether the unit of a product reads a buffer for other elements than the one that it computes just then."""
        product = self.products[number]
        before = (self.fused.groups[part] for part in product.prologues)
        return source in {o.view.base for o in product.operands} or any(source in g.accesses for g in before)

    def adds_to(self, node: object, group: Group, source: str) -> bool:
        """Whether a scatter starts from a copy of this buffer, of the same strides, and reads it for nothing else."""
        assert isinstance(node, Scatter)
        made, read = metas_of(node), metas_of(self.program.nodes[source])
        if node.inputs[0] != source or len(group.accesses[source]) > 1 or made.dtype != read.dtype:
            return False
        return same_all(self.real.strides[node.name], self.real.strides[source])

    def may_overwrite(self, number: int, output: str, source: str) -> bool:
        group = self.fused.groups.get(number)
        if group is None or _may_run_again(group):
            return False
        if group.scatter:
            return self.machine.takes_over and self.adds_to(group.members[output].node, group, source)
        if not group.flat and group.members[output].place is not Place.AFTER:
            return False
        if number in self.products and (output not in group.members or self.reads_ahead(number, source)):
            return False
        nodes = self.program.nodes
        made, read = metas_of(nodes[output]), metas_of(nodes[source])
        if made.dtype.itemsize != read.dtype.itemsize:
            return False
        if not self.machine.overwrites_unused and not _reads(group, output, source):
            return False
        place = flat_index(group.members[output].index, self.real.strides[output])
        return all(flat_index(i, self.real.strides[source]) == place for i in group.accesses.get(source, ()))


def _reads(group: Group, output: str, source: str) -> bool:
    """Whether a member is computed from `source`."""

    def operands(name: str) -> Iterable[str]:
        return (read.name for read in group.members[name].reads) if name in group.members else ()

    return source in operands_first([output], operands)


def _joined(step: list[Unit]) -> Unit:
    """Units that run at the same time as one."""
    if len(step) == 1:
        return step[0]
    reads = tuple(dict.fromkeys(name for unit in step for name in unit.reads))
    writes = tuple(name for unit in step for name in unit.writes)
    return Unit(step[0].number, reads, writes, step[0].position)
