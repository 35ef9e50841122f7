"""Schedules a loop program: kernels and externs in order, buffers with strides and offsets.

let products write outputs -> realize -> split long reductions -> fuse -> drop buffers that only their kernel reads ->
join products with prologues and epilogues -> order -> bundle -> memory plan
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from smelt.base.options import Options
from smelt.graph.ir.meta import TensorMeta
from smelt.graph.ir.schema import is_collective, is_wait
from smelt.loops.ir import Extern, Input, Item, LoopProgram, Scatter
from smelt.schedule.buffer_assignment import BufferAssignment, flat
from smelt.schedule.dependencies import Names
from smelt.schedule.fuse import Decision, Fused, fuse
from smelt.schedule.group import Group, NestLevel, looks_up, may_refuse
from smelt.schedule.horizontal_fusion import Mobile, Profile, gather
from smelt.schedule.inplace import Overwriting
from smelt.schedule.machine import CPU, Machine
from smelt.schedule.memory import MemoryPlan
from smelt.schedule.order import CycleError, Timing, Unit, order_units
from smelt.schedule.products import Product, ProductSearch, splits_well
from smelt.schedule.products_write_outputs import products_write_outputs
from smelt.schedule.realize import Realized, StridedView, metas_of, realize
from smelt.schedule.repeated_blocks import fuse_blocks
from smelt.schedule.sharing import find_sharing, shared_buffers
from smelt.schedule.split import split_reductions
from smelt.schedule.stages import Stage, Stages
from smelt.shapes.size import IntLike, hint, is_symbolic, same


@dataclass(frozen=True)
class Watched:
    """Facts about buffers for the debug mode for memory, in which each buffer has its own allocation.

    Attributes:
        lines: the user's line from which a value comes, by name of the value, if known.
        shared: buffers whose memory is reused after their last use when this mode is off.
    """

    lines: dict[str, str]
    shared: frozenset[str]


@dataclass
class Schedule:
    """A scheduled program: all information that codegen needs.

    Attributes:
        program: the loop program with split reductions.
        steps: numbers of groups and externs in execution order.
        groups: the kernels' groups by number.
        externs: externs by number.
        stored: names of the buffers that exist.
        strides: element strides of each buffer.
        views: extern arguments that are strided views of buffers.
        memory: arena offsets; buffers in it are neither inputs nor outputs.
        last_use: step after which a buffer is not needed.
        over_inputs: for each output that overwrites the input whose new value it is, that input.
        over_others: for each value that overwrites an intermediate, that intermediate; neither is in the arena.
        dedicated: intermediates with a separate allocation, which is made with them and freed after their last use.
        products: matrix products, by number of the unit, that one kernel may compute with their prologue and epilogue.
            Their groups are also in `groups`, for the alternative, in which the library's call runs between separate
            kernels.
        bundles: groups that follow each other in `steps` and may run at the same time, each list in order.
        breaks: groups before which a run of kernels ends, so that memory is freed before more is allocated.
        needed: peak bytes in use, in the arena and outside of it, without caller-owned inputs.
        watched: facts that host programs report about buffers in the debug mode for memory; None in other modes.
        machine: the machine for which the program was planned.
        stages: stages of results that are returned before the program ends; empty: all are returned at its end.
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
    dedicated: set[str] = field(default_factory=set)
    breaks: set[int] = field(default_factory=set)
    needed: int = 0
    watched: Watched | None = None
    machine: Machine = CPU
    stages: list[Stage] = field(default_factory=list)

    @functools.cached_property
    def on_gpu(self) -> bool:
        """Whether the kernels run on a GPU; False also for Triton kernels interpreted over tensors of the CPU."""
        metas = (node.meta for node in self.program.nodes.values() if isinstance(node.meta, TensorMeta))
        return any(meta.device.type == "cuda" for meta in metas)

    @property
    def arena_end(self) -> int:
        """Returns the last step that uses the arena; -1 if none does."""
        return max((self.last_use[name] for name in self.memory.offsets), default=-1)

    def made_by(self, number: int) -> list[str]:
        """Returns the values that the kernels of a unit compute."""
        product = self.products.get(number)
        if product is None:
            return list(self.groups[number].members)
        return [product.name, *(name for group in product.group_numbers for name in self.groups[group].members)]

    def read_by(self, number: int) -> list[str]:
        """Returns the buffers that a unit reads and does not make, each once."""
        product, extern = self.products.get(number), self.externs.get(number)
        if extern is not None and product is None:
            return list(dict.fromkeys(self.buffer_of(name) for name in extern.inputs))
        groups = [number] if product is None else product.group_numbers
        factors = [] if product is None else [operand.view.base for operand in product.operands]
        made = self.made_by(number)
        read = (name for group in groups for name in self.groups[group].accesses)
        return [name for name in dict.fromkeys([*factors, *read]) if name not in made]

    def starts_in_place(self, node: Scatter) -> bool:
        """Whether a scatter writes into the memory of its base, so that the base is not copied first."""
        overwrites = (self.over_inputs, self.over_others, self.memory.in_place)
        return any(over.get(node.name) == node.inputs[0] for over in overwrites)

    def buffer_of(self, name: str) -> str:
        """Returns the buffer that contains an argument of an extern."""
        view = self.views.get(name)
        return view.base if view is not None else name


def schedule(
    program: LoopProgram,
    options: Options,
    updates: Mapping[int, str] | None = None,
    machine: Machine = CPU,
    caller_owned: Container[int] = frozenset(),
    split_products: bool = False,
    stage_bytes: int = 0,
) -> Schedule:
    """Plan a loop program.

    Args:
        updates: for positions of outputs, the input whose new value the output is. A kernel writes the new value over
            the input if it is the input's last reader and reads it element by element.
        machine: the machine for which the program is planned.
        caller_owned: positions of inputs whose buffers outlive the call. The memory of other inputs, such as tensors
            that a forward saved, is free after their last use.
        split_products: whether tensor cores may compute large float32 products, as products of several TF32 terms.
        stage_bytes: bytes of results in a stage, which is returned as soon as its results are final; 0: one stage at
            the end.
    """
    try:
        return _scheduled(program, options, updates, machine, caller_owned, split_products, stage_bytes)
    except CycleError:
        if not machine.repeats:
            raise
    # kernels of one block, copied to all blocks, may wait for each other in a cycle; fusing the whole program avoids it
    return _scheduled(
        program, options, updates, replace(machine, repeats=False), caller_owned, split_products, stage_bytes
    )


def _scheduled(
    program: LoopProgram,
    options: Options,
    updates: Mapping[int, str] | None,
    machine: Machine,
    caller_owned: Container[int],
    split_products: bool,
    stage_bytes: int,
) -> Schedule:
    names = Names()
    program = products_write_outputs(program, updates or {})
    real = realize(program, machine)
    program, fused = _grouped(program, real, names, machine)
    stored = real.stored - _private(program, real, fused)
    products: dict[int, Product] = {}
    kept = {name for at, name in enumerate(program.inputs) if at in caller_owned}

    def planned(products: dict[int, Product]) -> Schedule:
        return _Planner(program, real, fused, stored, updates or {}, products, kept, machine, stage_bytes).plan()

    if machine.templates and (options.templates or split_products):
        # Groups that share a launch add hardly any time; joined with a product they would need separate launches
        # whenever the library computes the product.
        shared = {n for bundle in planned({}).bundles for n in bundle} if options.max_autotune else set()

        def wanted(product: Product) -> bool:
            return options.templates or splits_well(product, machine.products)

        products = ProductSearch(program, real, fused, stored, names, machine, wanted, shared).find()
        if (
            options.gemm == "auto"
        ):  # without a prologue or epilogue to save memory traffic, the library's kernels are faster
            products = {
                n: p
                for n, p in products.items()
                if p.group_numbers or (split_products and splits_well(p, machine.products))
            }
    return planned(products)


def _grouped(program: LoopProgram, real: Realized, names: Names, machine: Machine) -> tuple[LoopProgram, Fused]:
    """Returns the program with long reductions split, and its groups."""
    split = split_reductions(program, real, names, machine)
    fused = fuse_blocks(program, split, real, names, machine) if machine.repeats else None
    return split, fused or fuse(split, real, names, machine)


def _private(program: LoopProgram, real: Realized, fused: Fused) -> set[str]:
    """Returns the buffers that only their own kernel reads."""
    shared = {o.name for o in program.outputs if o.name is not None}
    for node in fused.others.values():
        for name in node.inputs:
            view = real.views.get(name)
            shared.add(view.base if view is not None else name)
    for group in fused.groups.values():
        shared |= _through_memory(group)
    return {name for group in fused.groups.values() for name in group.members if name not in shared}


def _through_memory(group: Group) -> set[str]:
    """Returns the buffers that must exist for a group: buffers of others that it reads, and its own values that are
    complete only in memory (results of a scatter, and of column reductions unless later members use them in the
    kernel).
    """
    read = {name for name in group.accesses if name not in group.members}
    if group.scatter:
        return read | group.members.keys()
    followed = group.has(NestLevel.AFTER)
    return read | {name for name, m in group.members.items() if m.nest_level is NestLevel.COLUMN and not followed}


class _Planner:
    def __init__(
        self,
        program: LoopProgram,
        real: Realized,
        fused: Fused,
        stored: set[str],
        updates: Mapping[int, str],
        products: dict[int, Product],
        caller_owned: Container[str],
        machine: Machine,
        stage_bytes: int,
    ) -> None:
        self.program, self.real, self.fused, self.stored = program, real, fused, stored
        self.stage_bytes = stage_bytes
        self.stages: Stages | None = None
        self.products, self.machine = products, machine
        self.unit_of = {group: number for number, product in products.items() for group in product.group_numbers}
        self.in_units = {product.name for product in products.values()}
        self.sharing = find_sharing(program, real.views)
        self.externs = {n: node for n, node in fused.others.items() if isinstance(node, Extern)}
        self.overwriting = Overwriting(program, real, fused, products, machine, self.sharing)
        self.updates = self.overwriting.possible_updates(updates, stored, self.unit_of)
        self.buffers = BufferAssignment(program, real, fused, self.overwriting, self.updates, caller_owned)
        self.outputs = self.buffers.outputs

    def over_inputs(self, unit_steps: list[list[Unit]]) -> dict[str, str]:
        """Returns for some new values the input that they overwrite; no step after that of the write reads the old
        value.
        """
        reader = {name: step for step, each in enumerate(unit_steps) for unit in each for name in unit.reads}
        writer = {name: step for step, each in enumerate(unit_steps) for unit in each for name in unit.writes}
        return {
            new: old
            for new, old in self.updates.items()
            if reader.get(old, -1) < writer[new]
            or (reader[old] == writer[new] and self.overwriting.overwrites(unit_steps[writer[new]], new, old))
        }

    def plan(self) -> Schedule:
        """Order the units, form bundles if the machine supports them, and plan memory."""
        units = self.ordered()
        if self.stage_bytes and not self.updates and not self.program.symbols:
            self.stages = Stages(units, self.program, self.sharing, self.stage_bytes, self.waits())
            units = self.stages.ordered(units)
        unit_steps = [[unit] for unit in units]
        memory = self.buffers.plan_arena(unit_steps)
        if self.machine.bundles:
            unit_steps, memory = self.bundled(unit_steps, memory)
        units, breaks = flat(unit_steps), set[int]()
        if self.machine.takes_over:
            memory = self.buffers.dedicate(unit_steps, self.buffers.take_over(unit_steps, memory))
            breaks = self.buffers.breaks(units, memory)
        else:
            memory = self.buffers.dedicate_largest(unit_steps, memory)
        last = {name: step for step, unit in enumerate(units) for name in (*unit.writes, *unit.reads)}
        over = self.over_inputs(unit_steps)
        stages = [] if self.stages is None else self.stages.ends(unit_steps)
        breaks |= {
            units[stage.last + 1].number for stage in stages[:-1]
        }  # a run of kernels must not extend beyond its stage
        return Schedule(
            self.program, [u.number for u in units], self.fused.groups, self.externs, self.stored, self.real.strides,
            self.real.views, memory, last, self.fused.decisions, over, self.buffers.over_others, self.products,
            [[unit.number for unit in step] for step in unit_steps if len(step) > 1], self.buffers.dedicated,
            breaks, max(self.buffers.needs(units, memory)), machine=self.machine, stages=stages,
        )  # fmt: skip

    def bundled(self, alone: list[list[Unit]], memory: MemoryPlan) -> tuple[list[list[Unit]], MemoryPlan]:
        """Returns steps of units that may run at the same time, and an arena for them, or `alone` if the arena would
        grow much.

        Args:
            alone: the units in order, one per step.
            memory: the arena for `alone`.
        """
        units = [unit for (unit,) in alone]
        mobile = {n: self.mobile(g) for n, g in self.fused.groups.items() if self.may_move(n, g)}
        position = {unit.number: at for at, unit in enumerate(units)}
        after: dict[int, set[int]] = {}
        for waiting in (self.before_updates(units), self.waits()):
            for number, others in waiting.items():
                after.setdefault(number, set()).update(n for n in others if position[n] < position[number])
        gates = {} if self.stages is None else self.stages.gates(units, mobile)
        for number, others in gates.items():
            after.setdefault(number, set()).update(others)
        kept = self.outputs | set(self.updates.values())
        limits = self.machine.bundling
        for most in (limits.moved_bytes, limits.tiny_bytes):
            accounts = [
                Profile(units, account, kept, memory.in_place, limits.room_bytes)
                for account in (self.buffers.inside, self.buffers.outside)
            ]
            unit_steps = gather(units, mobile, after, accounts, most, limits)
            plan = self.buffers.plan_arena(unit_steps)
            if plan.size <= memory.size + sum(account.highest for account in accounts) // 64 + 2 * limits.room_bytes:
                return unit_steps, plan
        return alone, memory

    def may_move(self, number: int, group: Group) -> bool:
        """Whether a kernel may share a launch: it is pointwise and has fixed sizes."""
        if not group.flat or number in self.unit_of or looks_up(group):
            return False
        return not is_symbolic(v.size for v in group.order) and not any(same(v.size, 0) for v in group.order)

    def mobile(self, group: Group) -> Mobile:
        kind = tuple((metas_of(m.node).dtype, m.ops, m.cost, len(m.reads)) for m in group.members.values())
        alone = self.updates.keys()
        handed = (n for n in group.accesses if n not in alone and not isinstance(self.program.nodes[n], Input))
        return Mobile(sum(hint(self.buffers.nbytes(name)) for name in handed), kind)

    def ordered(self) -> list[Unit]:
        """Returns all units in order; a unit that overwrites an input comes after all others that read it, if possible.

        It also comes after all units with a check that may fail, since a failing call must not change its inputs. (The
        target rows of scattered gradients need no check: the forward looked them up.)
        """
        units = list(self.units())
        waits = self.waits()
        if not self.updates:
            return order_units(units, self.buffers.occupied, self.outputs, waits)
        after = self.before_updates(units)
        for number, others in waits.items():
            after.setdefault(number, set()).update(others)
        try:
            return order_units(units, self.buffers.occupied, self.outputs, after)
        except CycleError:
            return order_units(units, self.buffers.occupied, self.outputs, waits)

    def waits(self) -> dict[int, set[int]]:
        """Returns for some units other units for which they wait without reading their results."""
        found: dict[int, set[int]] = {}
        for name, sources in self.fused.after.items():
            unit = self.unit_with(name)
            found.setdefault(unit, set()).update({self.unit_with(source) for source in sources} - {unit})
        return found

    def unit_with(self, name: str) -> int:
        """Returns the number of the unit that makes a value."""
        node = self.program.nodes[name]
        number = self.fused.number_of[node.inputs[0] if isinstance(node, Item) else name]
        return self.unit_of.get(number, number)

    def before_updates(self, units: Iterable[Unit]) -> dict[int, set[int]]:
        """Returns for each unit that overwrites an input the units that should run before it."""
        readers: dict[str, set[int]] = {}
        writer: dict[str, int] = {}
        for unit in units:
            writer |= dict.fromkeys(unit.writes, unit.number)
            for name in unit.reads:
                readers.setdefault(name, set()).add(unit.number)
        doubtful = {n for n, group in self.fused.groups.items() if n not in self.unit_of and may_refuse(group)}
        after: dict[int, set[int]] = {}
        for new, old in self.updates.items():
            after.setdefault(writer[new], set()).update((readers.get(old, set()) | doubtful) - {writer[new]})
        return after

    def units(self) -> Iterable[Unit]:
        """Yields all units. A read of a view is a read of its buffer, which therefore lives as long as its views."""
        for unit in self.plain_units():
            more = shared_buffers(self.sharing, unit.reads) - {*unit.reads, *unit.writes}
            yield replace(unit, reads=(*unit.reads, *sorted(more))) if more else unit

    def plain_units(self) -> Iterable[Unit]:
        for product in self.products.values():
            yield self.product_unit(product)
        for number, group in self.fused.groups.items():
            if number in self.unit_of:
                continue
            reads = tuple(n for n in group.accesses if n not in group.members)
            writes = tuple(n for n in group.members if n in self.stored)
            yield Unit(number, reads, writes, group.position)
        items: dict[str, list[str]] = {}
        for node in self.fused.others.values():
            if isinstance(node, Item):
                items.setdefault(node.inputs[0], []).append(node.name)
        for number, node in self.externs.items():
            if node.name in self.in_units:
                continue
            reads = tuple(dict.fromkeys(self.buffer(name) for name in node.inputs))
            writes = tuple(items.get(node.name, [])) if isinstance(node.meta, tuple) else (node.name,)
            yield Unit(number, reads, writes or (node.name,), number, _timing(node))

    def product_unit(self, product: Product) -> Unit:
        """Returns a product's unit with its prologues and epilogue; its operands live to its end, whichever alternative
        runs.
        """
        groups = [self.fused.groups[number] for number in product.group_numbers]
        writes = dict.fromkeys([product.name, *(n for g in groups for n in g.members if n in self.stored)])
        reads = dict.fromkeys([o.view.base for o in product.operands])
        reads |= dict.fromkeys(name for g in groups for name in g.accesses if name not in g.members)
        last = max([product.number, *(g.position for g in groups)])
        return Unit(product.number, tuple(n for n in reads if n not in writes), tuple(writes), last)

    def buffer(self, name: str) -> str:
        view = self.real.views.get(name)
        return view.base if view is not None else name


def _timing(node: Extern) -> Timing:
    if not is_collective(node.target):
        return Timing.ANY
    return Timing.WAITS if is_wait(node.target) else Timing.BEGINS


def watch(plan: Schedule, lines: Mapping[str, str]) -> Schedule:
    """Returns the schedule of the debug mode for memory: without bundles and without reuse of memory.

    In this schedule a host program can check each buffer (`Watch` of runtime/watched_memory.py).

    Outputs still overwrite inputs, because the caller sees that.

    Args:
        lines: the user's line from which a value comes, by name of the value.
    """
    shared = plan.memory.offsets.keys() | set(plan.over_others.values())
    return replace(
        plan,
        memory=MemoryPlan(),
        dedicated=plan.dedicated | shared,
        over_others={},
        bundles=[],
        watched=Watched(dict(lines), frozenset(shared)),
    )
