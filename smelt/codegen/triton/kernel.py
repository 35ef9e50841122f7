"""Renders one group of the schedule as the text of one Triton function.

A program computes a tile. Rows that are too long for it are walked once for each phase: a phase computes the reductions
whose operands are known, and the next phase uses the results. If a tile has whole rows, each value is computed once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from smelt.abi.faults import Check
from smelt.abi.kernel_source import Config, KernelSource
from smelt.base.errors import CompileError
from smelt.codegen.parameters import FAULT
from smelt.codegen.phases import Phases
from smelt.codegen.scope import V
from smelt.codegen.triton.library import module_head
from smelt.codegen.triton.online import online_sums
from smelt.codegen.triton.reductions import LARGEST_INDEX, Accumulator
from smelt.codegen.triton.target import MEMORY_TYPES
from smelt.codegen.triton.tiles import STAGES, Axis, Form, Tiling, is_fixed, make_tiling, padded
from smelt.codegen.triton.vector_access import WORD, accesses
from smelt.codegen.triton.vector_rows import WordRows
from smelt.loops.ir import Index, Reduction
from smelt.schedule.group import Group, Member, NestLevel
from smelt.schedule.plan import Schedule
from smelt.schedule.realize import metas_of
from smelt.shapes.expr import flat_index, variable
from smelt.shapes.size import IntLike, Symbol, known_less

MIN_FLOAT32 = -3.4028234663852886e38
"""The least finite float32 number."""

MIN_VECTOR_STORES = 3
"""Minimum number of row values that a kernel stores for them to be stored as vectors: with several (rows, 1) stores of
which one value depends on another, Triton (3.6) moves layout conversions before the definitions of their operands, and
fails with "operand does not dominate this use".
"""

Extent = tuple[IntLike, str | None]


@dataclass(frozen=True)
class TritonKernel:
    """A kernel's source, its arguments (buffers, symbols and streams, in order), and the extents of its grid.

    Attributes:
        computes: values that it writes; empty for a kernel that computes a product.
        scatter_step: whether a scatter's kernel writes the "base" or the "elements"; else empty.
        checks: checks of values, in the order of their numbers in the source (from 1).
    """

    source: KernelSource
    buffers: tuple[str, ...]
    symbols: tuple[Symbol, ...]
    extents: tuple[Extent, ...]
    streams: tuple[int, ...] = ()
    computes: tuple[str, ...] = ()
    scatter_step: str = ""
    checks: tuple[Check, ...] = ()


def render_kernel(group: Group, plan: Schedule, autotune: bool = False) -> TritonKernel:
    """Render the kernel of a group of pointwise values and reductions."""
    tiling, label = make_tiling(group, plan, autotune), group.label()
    first = KernelRenderer(tiling, plan, label)
    kernel = first.render()
    if tiling.words is None:
        return kernel
    without = WithoutWords(tiling, plan, label)
    without.checks = first.checks  # both kernels refer to the checks by the same name
    other = without.render()
    if other.buffers != kernel.buffers or other.symbols != kernel.symbols:
        raise CompileError(f"codegen: {label} has other parameters where words are not read")
    return replace(kernel, source=replace(kernel.source, unaligned=other.source.source), checks=other.checks)


def pointer_type(buffer: str, plan: Schedule) -> str:
    """Returns the type of a pointer to a buffer in a kernel's signature."""
    return "*i64" if buffer == FAULT else f"*{MEMORY_TYPES[metas_of(plan.program.nodes[buffer]).dtype]}"


class TileKernel(WordRows):
    """Base of kernels over a tile: opens axes, defines loop variables, collects parameters."""

    def __init__(
        self, plan: Schedule, axes: list[Axis], configs: tuple[Config, ...], extents: tuple[Extent, ...]
    ) -> None:
        super().__init__(plan)
        self.axes, self.configs, self.extents = axes, configs, extents
        self.row_vectors = False

    def shape(self) -> str:
        return "[" + ", ".join(axis.block for axis in self.axes) + "]"

    def arranged(self, axis: Axis) -> str:
        """Returns the indices within a block, along its axis of the tile."""
        text = f"tl.arange(0, {axis.block})"
        if len(self.axes) > 1:
            text += "[" + ", ".join(":" if a is axis else "None" for a in self.axes) + "]"
        return text

    def zeros(self, axes: int) -> str:
        return " + ".join(f"{a.name}index * 0" for a in self.axes if axes & self.bit(a))

    def decide_width(self, offsets: list[tuple[IntLike, IntLike]]) -> None:
        """Use int64 for index arithmetic if an offset may exceed 32 bits."""
        sizes = [axis.size for axis in self.axes]
        self.wide = not all(known_less(high, 2**31) for _, high in offsets) or not all(
            known_less(size, 2**31 - 2**20) for size in sizes
        )

    def open_axis(self, axis: Axis, start: str) -> None:
        """Define an axis's index, its variables and the mask of its valid elements; `start`: text of the block's first
        index.
        """
        bit, name = self.bit(axis), f"{axis.name}index"
        inner = self.arranged(axis) + (".to(tl.int64)" if self.wide else "")
        self.scopes.line(f"{name} = {start} + {inner}" if start else f"{name} = {inner}", bit)
        self.starts[axis.name] = start
        if self.words is not None and axis is self.axes[-1]:
            self.open_words(axis, self.words)
            return
        if not self.always_inside(axis):
            mask = f"{axis.name}mask"
            self.scopes.line(f"{mask} = {name} < {self.bound(axis)}", bit)
            self.axis_masks[bit] = V(mask, torch.bool, bit)
        self.decode(axis.variables, name, bit, axis.name)

    def decode(self, variables: list, index: str, bit: int, stem: str) -> None:
        """Split an index into variables, of which the last varies fastest."""
        step: list[str] = []
        for number, var in reversed(list(enumerate(variables))):
            text = index if not step else f"{index} // ({' * '.join(step)})"
            if number:
                text = f"({text}) % {self.size(var.size)}"
            self.names[var], self.depths[var] = f"{stem}{number}", bit
            self.scopes.line(f"{stem}{number} = {text}", bit)
            step.append(self.size(var.size))

    def bound(self, axis: Axis) -> str:
        """Returns the number of elements of an axis."""
        return self.size(axis.size)

    def always_inside(self, axis: Axis) -> bool:
        """Whether no block of any configuration reaches beyond the axis, so that it needs no mask."""
        blocks = [dict(config.constants)[axis.block] for config in self.configs]
        return is_fixed(axis.size) and all(int(axis.size) % block == 0 for block in blocks)

    def program_start(self, axis: Axis, dimension: int) -> str:
        wide = ".to(tl.int64)" if self.wide else ""
        return f"tl.program_id({dimension}){wide} * {axis.block}"

    def store(self, name: str, index: Index, value: V, atomic: bool = False) -> None:
        """Write a value at the end of its scope, after all loads: the output may be in the memory of an input."""
        dtype = metas_of(self.plan.program.nodes[name]).dtype
        text = f"{value.text}.to(tl.uint8)" if dtype is torch.bool else value.text
        words = self.in_words(name, flat_index(index, self.plan.strides[name]))
        if words is not None and not atomic:
            self.store_words(*words, text)
            return
        # the full tile, since each of its elements adds, even if all add to one element
        full_tile = sum(map(self.bit, self.axes))
        address, masks, axes = self.address(name, index, full_tile if atomic else value.depth)
        if atomic:
            guard = f", mask={masks}" if masks else ""
            self.scopes.line(f"tl.atomic_add({address}, {text}{guard}, sem='relaxed')", axes)
            return
        arguments = [address, text, masks] if masks else [address, text]
        if self.row_vectors and axes == value.depth == self.bit(self.axes[0]):
            arguments = [f"tl.reshape({each}, [{self.axes[0].block}])" for each in arguments]
        self.scopes.later(f"tl.store({', '.join(arguments)})", axes)

    def finish(self, label: str) -> TritonKernel:
        """Returns the finished kernel."""
        buffers, symbols = tuple(self.arguments.buffers), tuple(self.arguments.symbols)
        signature = [(f"a{number}", pointer_type(name, self.plan)) for number, name in enumerate(buffers)]
        signature += [(f"z{number}", "i64") for number in range(len(symbols))]
        signature += [(f"u{number}", "i64") for number in range(len(self.arguments.streams))]
        constants = [name for name, _ in self.configs[0].constants]
        parameters = ", ".join([*(name for name, _ in signature), *(f"{c}: tl.constexpr" for c in constants)])
        body = "\n".join("    " + line for line in self.scopes.finish()) or "    pass"
        text = f"{module_head(self.used)}\n\n@triton.jit\ndef kernel({parameters}):\n{body}\n"
        divisible = tuple(name for (name, kind), b in zip(signature, buffers, strict=False) if b != FAULT)
        source = KernelSource(text, tuple(signature), divisible, self.configs, label)
        return TritonKernel(
            source, buffers, symbols, self.extents, tuple(self.arguments.streams), checks=tuple(self.checks)
        )


class KernelRenderer(TileKernel):
    """Renders a tiling; overrides how values of the group's own members are computed."""

    def __init__(self, tiling: Tiling, plan: Schedule, label: str) -> None:
        super().__init__(plan, tiling.axes, tiling.configs, tiling.extents)
        self.tiling, self.label = tiling, label
        self.nest, self.words = tiling.nest, tiling.words
        self.phases = Phases(tiling.nest, plan, keep=False)
        self.results: dict[str, V] = {}
        self.columns: dict[str, tuple[Accumulator, str]] = {}
        self.online: dict[str, str] = {}
        if len(self.axes) == 2 and self.tiling.form is not Form.FLAT:
            rows = (m for m in self.nest.members.values() if m.nest_level in (NestLevel.ROW, NestLevel.OUTER))
            self.row_vectors = sum(m.name in plan.stored for m in rows) >= MIN_VECTOR_STORES
        if tiling.online:
            self.online = online_sums(self.nest.members, self.phases, plan)

    def render(self) -> TritonKernel:
        self.arguments.written |= {n for n in self.nest.members if n in self.plan.stored}
        self.decide_width(self.reach())
        self.open_grid()
        match self.tiling.form:
            case Form.FLAT:
                self.flat()
            case Form.ROW | Form.COLUMN if self.walked is None:
                self.whole_rows()
            case Form.ROW | Form.COLUMN | Form.MIXED:
                self.walk()
        return replace(self.finish(self.label), computes=tuple(n for n in self.nest.members if n in self.plan.stored))

    @property
    def walked(self) -> Axis | None:
        return next((axis for axis in self.axes if axis.walked), None)

    def reach(self) -> list[tuple[IntLike, IntLike]]:
        """Returns the ranges of all offsets that the kernel touches."""
        found = []
        for member in self.nest.members.values():
            accesses = [(read.name, read.index) for read in member.reads]
            accesses += [(member.name, member.index)] if member.name in self.plan.stored else []
            for name, index in accesses:
                if name in self.plan.stored:
                    found.append(flat_index(index, self.plan.strides[name]).range())
            found += [offset.range() for offset in member.index_values]
        return found

    def open_grid(self) -> None:
        shared = [axis for axis in self.axes if not axis.walked and not axis.single_block]
        own = bool(self.tiling.program)
        first = own and not self.tiling.rows_last
        if own:
            wide = ".to(tl.int64)" if self.wide else ""
            self.scopes.line(f"kindex = tl.program_id({0 if first else len(shared)}){wide}")
            self.decode(self.tiling.program, "kindex", 0, "k")
        for dimension, axis in enumerate(shared, first):
            self.open_axis(axis, self.program_start(axis, dimension))
        for axis in self.axes:
            if axis.single_block:
                self.open_axis(axis, "")
                self.add_limits(axis)

    def add_limits(self, axis: Axis) -> None:
        """Also mask elements of an axis that are beyond the end of a short last chunk."""
        bit = self.bit(axis)
        for var, (base, limit) in self.nest.limits.items():
            if var in axis.variables:
                offset = base + variable(var)
                text = f"({self.text_of(offset)}) < {self.size(limit)}"
                known = self.axis_masks.get(bit)
                depth = self.depth_of(offset) | bit
                if known is not None:
                    text, depth = f"{known.text} & ({text})", depth | known.depth
                self.axis_masks[bit] = self.scopes.define("", text, torch.bool, depth, "m")

    # forms

    def flat(self) -> None:
        for axis in self.axes:
            self.add_limits(axis)
        for member in self.nest.members.values():
            if member.name in self.plan.stored:
                self.store(member.name, member.index, self.load(member.name, member.index))

    def whole_rows(self) -> None:
        for phase in range(self.phases.count + 1):
            self.outer_stores(phase)
            if phase == self.phases.count:
                break
            rows, columns, stores = self.phases.roots(phase)
            for member in (*rows, *columns):
                self.results[member.name] = self.fold_now(member)
            for member in stores:
                self.store(member.name, member.index, self.load(member.name, member.index))
            for member in columns:
                self.store(member.name, member.index, self.results[member.name])

    def walk_once(self, axis: Axis, phase: int) -> None:
        """Write the loop of one phase: its reductions and stores."""
        rows, columns, stores = self.phases.roots(phase)
        rows = [member for member in rows if member.name not in self.results]
        if not rows and not columns and not stores:
            return
        folds = {m.name: self.start(m) for m in (*rows, *columns)}

        def loop() -> None:
            self.open_loop(axis)
            for member in (*rows, *columns):
                self.take(member, *folds[member.name])
            for member in stores:
                self.store(member.name, member.index, self.load(member.name, member.index))
            self.close_loop(axis)

        self.by_words(loop)
        for member in (*rows, *columns):
            if member.name in self.online:
                self.end_online(member, *folds[member.name])
            else:
                self.results[member.name] = self.end(*folds[member.name])
        for member in columns:
            if member.name in self.plan.stored:
                self.store(member.name, member.index, self.results[member.name])

    def by_words(self, loop: Callable[[], None]) -> None:
        """Write a loop that reads rows in words, and a second loop for rows whose last word reaches beyond a buffer's
        end.
        """
        words, last = self.words, ""
        if words is not None:
            read = accesses(self.nest.members.values(), self.plan)
            last = self.reaches_past_end(name for name, offset in read if words.holds(offset))
        if not last:
            loop()
            return
        for self.one_by_one, head in ((True, f"if {last}:"), (False, f"if {last} == 0:")):
            self.scopes.open()
            loop()
            self.scopes.close([head], [])

    def walk(self) -> None:
        """Write a loop over the walked axis for each phase; the mixed form has one loop, as tiles have whole rows."""
        axis = self.walked
        assert axis is not None
        if self.tiling.form is Form.MIXED:
            self.start_columns()
            self.open_loop(axis)
            self.whole_rows_of_loop()
            self.close_loop(axis)
            self.end_columns()
            return
        for phase in range(self.phases.count):
            self.outer_stores(phase)
            self.walk_once(axis, phase)
        self.outer_stores(self.phases.count)
        for member in self.nest.members.values():
            if member.nest_level is NestLevel.AFTER and member.name in self.plan.stored:
                self.store(member.name, member.index, self.load(member.name, member.index))

    def whole_rows_of_loop(self) -> None:
        for phase in range(self.phases.count + 1):
            self.outer_stores(phase)
            if phase == self.phases.count:
                break
            rows, columns, stores = self.phases.roots(phase)
            for member in rows:
                self.results[member.name] = self.fold_now(member)
            for member in columns:
                self.take(member, *self.columns[member.name])
            for member in stores:
                self.store(member.name, member.index, self.load(member.name, member.index))

    def open_loop(self, axis: Axis) -> None:
        self.scopes.open()
        self.scopes.walked = self.bit(axis)
        self.axis_masks.pop(self.bit(axis), None)
        self.open_axis(axis, f"{axis.name}start")
        self.add_limits(axis)

    def close_loop(self, axis: Axis) -> None:
        self.scopes.walked = 0
        size = self.size(axis.size) if self.words is None else str(padded(axis.size, self.words))
        span = f"0, {size}, {axis.block}"
        staged = STAGES in dict(self.configs[0].constants)
        head = f"for {axis.name}start in {f'tl.range({span}, num_stages={STAGES})' if staged else f'range({span})'}:"
        self.scopes.close([head], [])

    def start_columns(self) -> None:
        for member in self.nest.members.values():
            if member.nest_level is NestLevel.COLUMN:
                self.columns[member.name] = self.start(member)

    def end_columns(self) -> None:
        for member in self.nest.members.values():
            if member.nest_level is NestLevel.COLUMN:
                self.store(member.name, member.index, self.end(*self.columns[member.name]))

    # folds

    def fold_of(self, member: Member) -> Accumulator:
        """Returns the accumulator of a member: row reductions fold the last axis of the tile, column reductions the
        walked axis.
        """
        assert isinstance(member.node, Reduction)
        mixed_column = self.tiling.form is Form.MIXED and member.nest_level is NestLevel.COLUMN
        fold = Accumulator(member.node.kind, member.node.dtype, 0 if mixed_column else len(self.axes) - 1)
        self.used |= fold.functions
        return fold

    def operand(self, member: Member, fold: Accumulator) -> V:
        """Returns the folded value of a member over the tile, with the neutral element outside of the folded axis."""
        value = member.node.body(self, member.source)
        text = fold.prepared(value.text)
        everywhere = (1 << len(self.axes)) - 1
        if value.depth != everywhere:
            text = f"tl.broadcast_to({text}, {self.shape()})"
        mask = self.axis_masks.get(1 << fold.axis)
        ends = self.ends_of(self.axes[fold.axis])
        if mask is not None and ends:
            result = self.scopes.name("t")
            self.scopes.line(f"{result} = {text}", everywhere)
            self.scopes.line(f"if {ends}:", everywhere)
            self.scopes.line(f"    {result} = tl.where({mask.text}, {result}, {fold.start})", everywhere)
            return V(result, value.dtype, everywhere)
        inside = [mask.text] if mask is not None else []
        # values computed from indices alone count as loaded if another value is loaded
        loaded = value.depth & self.loaded & (1 << fold.axis)
        if self.one_row() and not loaded and self.arguments.buffers:
            inside.append(self.spread_over_threads())
        if inside:
            text = f"tl.where({' & '.join(inside)}, {text}, {fold.start})"
        return self.scopes.define("", text, value.dtype, everywhere)

    def one_row(self) -> bool:
        """Whether a tile may be one whole row."""
        shapes = (dict(config.constants) for config in self.configs)
        return self.walked is None and len(self.axes) == 2 and any(shape[self.axes[0].block] == 1 for shape in shapes)

    def spread_over_threads(self) -> str:
        """Returns a condition that is always true, and that distributes a folded row over the threads.

        Triton (3.6) gives a row without a load the layout of the (1, 1) store of its fold: one thread has the whole row
        and adds it element by element, with the rounding error of such a sum. A load determines the layout; the load in
        this condition reads nothing, as its mask is false everywhere.
        """
        everywhere = (1 << len(self.axes)) - 1
        offset = " + ".join(f"{axis.name}index" for axis in self.axes)
        pointer = self.arguments.pointer(next(iter(self.arguments.buffers)))
        loaded = self.scopes.define(
            "", f"tl.load({pointer} + ({offset}), ({offset}) < 0, other=0)", torch.int32, everywhere
        )
        return f"({loaded.text} == 0)"

    def positions(self, member: Member, fold: Accumulator) -> V:
        """Returns the index along the folded dimension, for argmax and argmin."""
        assert isinstance(member.node, Reduction)
        text = f"tl.broadcast_to({self.number(member.source[member.node.dims[0]])}, {self.shape()})"
        mask = self.axis_masks.get(1 << fold.axis)
        if mask is not None:
            text = f"tl.where({mask.text}, {text}, {LARGEST_INDEX})"
        return self.scopes.define("", text, torch.int64, (1 << len(self.axes)) - 1, "p")

    def kept_axes(self, fold: Accumulator) -> int:
        return ((1 << len(self.axes)) - 1) & ~(1 << fold.axis)

    def fold_now(self, member: Member) -> V:
        """Fold rows that are whole in the tile."""
        fold = self.fold_of(member)
        value = self.operand(member, fold)
        axes = self.kept_axes(fold)
        if not fold.finds:
            return self.scopes.define("", fold.fold_tile(value.text), metas_of(member.node).dtype, axes, "f")
        positions = self.positions(member, fold)
        return self.found(fold, value.text, positions.text)

    def found(self, fold: Accumulator, value: str, positions: str) -> V:
        name = self.scopes.name("f")
        axes = self.kept_axes(fold)
        pair = f"tl.reduce(({value}, {positions}), {fold.axis}, best_{fold.combine})"
        self.scopes.line(f"_, {name}_at = {pair}", axes)
        return self.scopes.define("", f"tl.expand_dims({name}_at, {fold.axis})", torch.int64, axes, "f")

    def start(self, member: Member) -> tuple[Accumulator, str]:
        """Define accumulators over the tile."""
        fold, name = self.fold_of(member), self.scopes.name("s")
        if member.name in self.online:
            # the least finite number, not -inf: subtracting it from masked elements must not give NaN
            shape = f"[{self.axes[0].block}, {self.axes[1].block} // {self.word_of(member)}]"
            self.scopes.line(f"{name} = tl.full({shape}, {MIN_FLOAT32}, {fold.accumulator_type})", 0)
            self.scopes.line(f"{name}_sum = tl.full({shape}, 0, {fold.accumulator_type})", 0)
            return fold, name
        self.scopes.line(f"{name} = tl.broadcast_to({fold.start}, {self.shape()})", 0)
        if fold.finds:
            self.scopes.line(f"{name}_at = tl.full({self.shape()}, {LARGEST_INDEX}, tl.int64)", 0)
        return fold, name

    def take(self, member: Member, fold: Accumulator, name: str) -> None:
        """Write the lines that fold a tile into the accumulators."""
        everywhere = (1 << len(self.axes)) - 1
        value = self.operand(member, fold)
        if fold.finds:
            positions = self.positions(member, fold)
            pair = f"best_{fold.combine}({name}, {name}_at, {value.text}, {positions.text})"
            self.scopes.line(f"{name}, {name}_at = {pair}", everywhere)
            return
        if member.name in self.online:
            self.used.add("online_step")
            self.scopes.line(f"{name}, {name}_sum = online_step({name}, {name}_sum, {value.text})", everywhere)
            return
        self.scopes.line(f"{name} = {fold.step(name, value.text)}", everywhere)

    def end(self, fold: Accumulator, name: str) -> V:
        """Define the results of the accumulators."""
        if fold.finds:
            return self.found(fold, name, f"{name}_at")
        return self.scopes.define("", fold.fold_tile(name), fold.dtype, self.kept_axes(fold), "f")

    def word_of(self, member: Member) -> int:
        """Returns the number of elements of a member's operand that a thread reads at once."""
        if self.words is not None:
            return self.words.size
        nodes = self.plan.program.nodes
        sizes = [metas_of(nodes[read.name]).dtype.itemsize for read in member.reads if read.name in self.plan.stored]
        return WORD // max(sizes, default=4)

    def end_online(self, member: Member, fold: Accumulator, name: str) -> None:
        """Define the results of a maximum and of the sum that was folded with it."""
        self.used.add("online_end")
        axes, top, total = self.kept_axes(fold), self.scopes.name("f"), self.scopes.name("f")
        self.scopes.line(f"{top}, {total} = online_end({name}, {name}_sum, {fold.axis})", axes)
        self.results[member.name] = V(top, torch.float32, axes)
        self.results[self.online[member.name]] = V(total, torch.float32, axes)

    # values of members

    def outer_stores(self, phase: int) -> None:
        for member in self.phases.outer_stores(phase):
            self.store(member.name, member.index, self.load(member.name, member.index))

    def is_member(self, name: str, index: Index) -> bool:
        member = self.nest.members.get(name)
        return member is not None and member.index == index

    def value_of(self, name: str, index: Index) -> V:
        member = self.nest.members.get(name)
        if member is not None and member.nest_level in (NestLevel.ROW, NestLevel.COLUMN):
            if name in self.results:
                return self.results[name]
            raise CompileError(f"codegen: {name} is read before it is folded")
        if member is None and name in self.plan.stored:
            return self.from_memory(name, index)
        return self.inlined(name, index)


class WithoutWords(KernelRenderer):
    """A kernel that reads rows element by element, for pointers that are not aligned to words."""

    def __init__(self, tiling: Tiling, plan: Schedule, label: str) -> None:
        super().__init__(tiling, plan, label)
        self.words = None

    def always_inside(self, axis: Axis) -> bool:
        """Returns False, because blocks cover rows and the words around them."""
        return axis is not self.axes[-1] and super().always_inside(axis)
