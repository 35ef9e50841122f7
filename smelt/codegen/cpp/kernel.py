"""Renders one group of the schedule as the text of one C++ function.

A kernel walks its rows (kept and folded loops); in each row the inner loops run once per phase: a phase computes the
row reductions whose operands are known, and the next phase may use their results. Values that several phases need are
recomputed if that is cheap, else kept in a row buffer on the stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from smelt.base.errors import CompileError
from smelt.codegen.cpp.body import FAR, BodyRenderer, store_text
from smelt.codegen.cpp.reductions import Accumulator, fold
from smelt.codegen.cpp.target import ROUNDING, Renderer
from smelt.codegen.nest import UNROLLED_ELEMENTS, Block, Nest, make_nest
from smelt.codegen.parameters import FAULT, Arguments
from smelt.codegen.phases import Phases
from smelt.codegen.scope import Scopes, V, close_parallel
from smelt.loops.facts import FOLDS, PERIODIC
from smelt.loops.ir import Index, Reduction
from smelt.schedule.dependencies import row_major
from smelt.schedule.group import MAX_COLUMN_WIDTH, Group, Member, NestLevel
from smelt.schedule.plan import Schedule
from smelt.schedule.realize import metas_of
from smelt.shapes.expr import Expr, Var, constant, flat_index, variable
from smelt.shapes.size import Size, Symbol, hint, known_less, same


@dataclass(frozen=True)
class Kernel:
    """The text of a kernel's body, its parameters (buffers in order, C types; symbols; streams), and the functions it
    calls.

    `forms`: the body exists in two forms, for all arguments of sin and cos (FAR) and a fast one. The fast form sets
    `*far` if an argument was too large for it; then the FAR form recomputes everything.
    """

    lines: tuple[str, ...]
    buffers: tuple[str, ...]
    types: tuple[str, ...]
    used: frozenset[str]
    symbols: tuple[Symbol, ...] = ()
    streams: tuple[int, ...] = ()
    forms: bool = False

    def signature(self) -> str:
        """Returns the C parameter list."""
        pointers = [f"{t} *a{i}" for i, t in enumerate(self.types)]
        symbols = [f"int64_t z{i}" for i in range(len(self.symbols))]
        return ", ".join([*pointers, *symbols, *(f"int64_t u{i}" for i in range(len(self.streams)))])

    def function(self, name: str) -> str:
        """Returns the text of the exported C function."""
        body = "\n".join("    " + line for line in self.lines)
        signature = self.signature()
        if not self.forms:
            return f'extern "C" void {name}({signature}) {{\n{body}\n}}\n'
        given = ", ".join(p.split("*")[-1].split()[-1] for p in signature.split(", "))
        return (
            f"template <bool FAR> static void {name}_form({signature}, int *far) {{\n{body}\n}}\n"
            f'extern "C" void {name}({signature}) {{\n    int far = 0;\n    {name}_form<false>({given}, &far);\n'
            f"    if (far) {name}_form<true>({given}, &far);\n}}\n"
        )


def render_kernel(group: Group, plan: Schedule, target: Renderer) -> Kernel:
    """Render the kernel of a group. With row buffers and a symbolic width it has a second form for rows too wide for
    them.
    """
    nest, arguments = make_nest(group, plan), Arguments()
    one = KernelRenderer(nest, plan, target, arguments)
    kernel, width = one.render(), one.phases.width
    if not one.phases.temporaries or not isinstance(width, Size):
        return kernel
    wide = KernelRenderer(nest, plan, target, arguments, keep=False).render()
    test = f"if ({one.whole_size(width)} <= {one.phases.room}) {{"
    lines = [test, *indented(kernel.lines), "} else {", *indented(wide.lines), "}"]
    return replace(wide, lines=tuple(lines), used=kernel.used | wide.used, forms=kernel.forms or wide.forms)


def indented(lines: Sequence[str]) -> list[str]:
    """Returns the lines indented as a block."""
    return ["    " + line for line in lines]


def finish(body: BodyRenderer) -> Kernel:
    """Returns the kernel that a body renderer has written."""
    types = []
    for name in body.arguments.buffers:
        if name == FAULT:
            types.append("int64_t")
            continue
        memory = body.target.memory_types[metas_of(body.plan.program.nodes[name]).dtype]
        types.append(memory if name in body.arguments.written else f"const {memory}")
    lines = tuple(body.scopes.stack[0].lines + body.scopes.stack[0].late)
    arguments = body.arguments
    numbers = tuple(arguments.symbols), tuple(arguments.streams)
    return Kernel(lines, tuple(arguments.buffers), tuple(types), frozenset(body.used), *numbers)


@dataclass
class _Loop:
    """Facts about the current inner loop, from which its vector pragma is written."""

    clauses: list[str] = field(default_factory=list)
    vector: bool = True
    folds: list[Accumulator] = field(default_factory=list)


class KernelRenderer(BodyRenderer):
    """Renders a nest; overrides how values of the group's own members are computed."""

    def __init__(self, nest: Nest, plan: Schedule, target: Renderer, arguments: Arguments, keep: bool = True) -> None:
        super().__init__(plan, target, Scopes(), arguments, set())
        self.nest = nest
        self.phases = Phases(nest, plan, keep)
        self.results: dict[str, V] = {}
        self.phase = 0
        self.written: dict[str, int] = {}
        self.temporaries: dict[str, tuple[str, Index, int]] = {}
        self.columns: dict[str, Accumulator] = {}
        self.row_depth = 0
        self.forms = False
        self.once = any(
            n in plan.memory.in_place or n in plan.over_inputs or n in plan.over_others for n in nest.members
        )

    def render(self) -> Kernel:
        self.arguments.written |= {n for n in self.nest.members if n in self.plan.stored}
        self.name_loops()
        if self.nest.kept:
            self.scopes.open()
        self.declare_columns()
        self.rows()
        if self.nest.tail is not None:
            self.names[self.nest.tail] = self.names[self.nest.folded[-1]]
            self.depths[self.nest.tail] = self.depths[self.nest.folded[-1]]
            self.nest = self.nest.rest()
            self.phases = Phases(self.nest, self.plan)
            self.rows()
        self.store_columns()
        if self.nest.kept:
            self.close_kept()
        return replace(finish(self), forms=self.forms)

    def far(self, op: str, dtype: torch.dtype, argument: V) -> str:
        """Vector loops use the fast sin and cos, valid up to 1e8; for larger arguments the kernel is rerun in the FAR
        form.

        A kernel that overwrites buffers that it reads cannot be rerun, so it has no fast form.
        """
        if op not in PERIODIC or dtype is torch.float64 or dtype is torch.float16:
            return "false"
        if self.once or argument.depth <= self.scalar_depth:
            return "true"
        self.forms = True
        key = (FAR, argument.text)
        if self.scopes.find(key) is None:
            self.scopes.remember(key, V("", torch.bool, argument.depth))
            self.scopes.line(f"{self.inner_flag(FAR)} |= is_far({argument.text});", argument.depth)
        return "FAR"

    def rows(self) -> None:
        """Write the folded loops and their bodies."""
        for _ in self.nest.folded:
            self.scopes.open()
        self.row_depth = self.scopes.depth
        self.scalar_depth = self.row_depth + max(len(self.nest.inner) - 1, 0)
        self.declare_temporaries()
        for phase in range(self.phases.count):
            self.render_phase(phase)
        self.outer_stores(self.phases.count)
        width = self.size(self.nest.size(self.nest.inner))
        for var in reversed(self.nest.folded):
            name, start, bound = self.names[var], "0", self.row_bound(var)
            if self.nest.tail is not None and var is self.nest.folded[-1]:
                text = bound
                bound = text if self.nest.unrolled is None else f"{text} / {UNROLLED_ELEMENTS}"
                start = "0" if self.nest.unrolled is not None else f"{text} / {UNROLLED_ELEMENTS} * {UNROLLED_ELEMENTS}"
            ends = [*self.end_of_pass(var, self.nest.row_block, [*self.columns.values()], width), "}"]
            self.scopes.close([f"for (int64_t {name} = {start}; {name} < {bound}; {name}++) {{"], ends)

    # loops

    def row_bound(self, var: Var) -> str:
        """Returns the end of a folded loop; for an unrolled one, the end of the variable that was split for it."""
        tail = self.nest.tail
        if tail is not None and var is self.nest.folded[-1]:
            var = tail
        if var not in self.nest.limits:
            return self.size(var.size)
        depth = self.depth_of(self.nest.limits[var][0])
        return self.scopes.define("int64_t", self.bound(var), torch.int64, depth, "n").text

    def name_loops(self) -> None:
        depth = 1 if self.nest.kept else 0
        for stem, loops in (("k", self.nest.kept), ("r", self.nest.folded), ("i", self.nest.inner)):
            for number, var in enumerate(loops):
                self.names[var] = f"{stem}{number}"
                if stem != "k":
                    depth += 1
                self.depths[var] = depth

    def close_kept(self) -> None:
        pragma = ["#pragma omp parallel for schedule(static)"] if self.nest.parallel else []
        if pragma and self.nest.work is not None:
            pragma[0] += (
                f" if(parallel: {self.size(self.nest.work)} >= {self.plan.machine.loops.min_parallel_operations})"
            )
        close_parallel(self.scopes, [(self.names[v], v.size) for v in self.nest.kept], pragma, self.size)

    def open_inner(self) -> None:
        for _ in self.nest.inner:
            self.scopes.open()

    def close_inner(self, loop: _Loop, before: Sequence[str] = (), after: Sequence[str] = ()) -> None:
        """Close the inner loops; the lines `before` and `after` are written around the innermost one."""
        for level, var in reversed(list(enumerate(self.nest.inner))):
            innermost = level == len(self.nest.inner) - 1
            short = innermost and known_less(var.size, 2**31)
            name, bound = self.names[var], self.int_size(var.size) if short else self.size(var.size)
            counter = "int" if short else "int64_t"
            head: list[str] = []
            if var in self.nest.limits:
                bound = self.scopes.name("n")
                head.append(f"const {counter} {bound} = {self.bound(var)};")
            if innermost:
                head += before
                # Even a short loop with a partial sum or masked loads gets the pragma: GCC 12 would otherwise unroll
                # it, vectorise the loop around it, and mix up the lanes of masked values (-O3, AVX).
                if loop.vector and (hint(var.size) >= 4 or before or self.met_mask):
                    head.append(" ".join(["#pragma omp simd", *loop.clauses]))
            head.append(f"for ({counter} {name} = 0; {name} < {bound}; {name}++) {{")
            self.scopes.close(
                head, [*self.end_of_pass(var, self.nest.inner_block, loop.folds), "}", *(after if innermost else ())]
            )

    def end_of_pass(self, var: Var, block: Block | None, sums: Sequence[Accumulator], width: str = "") -> list[str]:
        """Returns the lines at the end of an iteration, which add the sum of a completed block of iterations to the
        next level.
        """
        if block is None or block.var is not var:
            return []
        return [line for one in sums for line in one.add_full_partials(self.names[var], width)]

    def inner_offset(self) -> Expr:
        """Returns the row-major offset inside the inner loops."""
        sizes = [v.size for v in self.nest.inner]
        return flat_index([variable(v) for v in self.nest.inner], row_major(sizes))

    # tiles

    def from_memory(self, name: str, index: Index) -> V:
        if self.nest.tiled and not self.masks and name not in self.arguments.written:
            rows, columns = self.nest.inner
            offset = flat_index(index, self.plan.strides[name])
            if same(offset.coefficient(rows), 1) and hint(offset.coefficient(columns)) > 1 and offset.is_linear():
                return self.staged(name, offset)
        return super().from_memory(name, index)

    def staged(self, name: str, offset: Expr) -> V:
        """Returns an element of a tensor that is contiguous along the tile's outer loop: the tensor's tile is first
        copied to the stack in the tensor's order, so that each cache line is fetched once.
        """
        rows, columns = self.nest.inner
        pitch = rows.size + 1  # an odd row length distributes a column of the copy over all cache sets
        dtype = metas_of(self.plan.program.nodes[name]).dtype
        ctype = self.target.value_types[dtype]
        outside = Expr(tuple(t for t in offset.terms if t[0] not in (rows, columns)), offset.const)
        key = ("tile", name, offset)
        array = self.scopes.find(key)
        if array is None:
            array = self.scopes.remember(key, V(self.scopes.name("w"), dtype, self.row_depth))
            step = self.size(offset.coefficient(columns))
            element = f"{self.arguments.pointer(name)}[{self.text_of(outside)} + {step} * y + x]"
            element = self.call(f"{ROUNDING[dtype]}_load", element) if dtype in ROUNDING else element
            for line in (
                f"alignas(64) {ctype} {array.text}[{columns.size * pitch}];",
                f"for (int64_t y = 0; y < {self.bound(columns)}; y++) {{",
                "    #pragma omp simd",
                f"    for (int x = 0; x < {self.bound(rows)}; x++) {array.text}[{pitch} * y + x] = {element};",
                "}",
            ):
                self.scopes.line(line, self.row_depth)
        text = f"{array.text}[{pitch} * {self.names[columns]} + {self.names[rows]}]"
        return self.scopes.define(ctype, text, dtype, self.depths[columns])

    def bound(self, var: Var) -> str:
        """Returns the end of a loop."""
        if var not in self.nest.limits:
            return self.size(var.size)
        base, limit = self.nest.limits[var]
        rest = " - ".join([self.size(limit), *(f"{self.atom_text(a)} * {self.size(c)}" for a, c in base.terms)])
        return f"({rest} < {var.size} ? {rest} : {var.size})"

    # phases

    def render_phase(self, phase: int) -> None:
        self.phase = phase
        self.outer_stores(phase)
        rows, columns, stores = self.phases.roots(phase)
        if not rows and not columns and not stores:
            return
        loop = _Loop()
        folds = loop.folds
        for member in rows:
            one = self.fold_of_row(member)
            for line in one.declare:
                self.scopes.line(line, self.row_depth)
            folds.append(one)
            loop.clauses += one.clauses
            loop.vector &= one.vector
        self.open_inner()
        self.update_folds(rows, folds)
        for member in columns:
            self.accumulate_column(member)
        for member in stores:
            for one_row in self.unrolled(member):
                self.store(one_row)
        before = [line for one in folds for line in one.begin_partial]
        after = [line for one in folds for line in one.end_partial]
        self.note_faults(loop, before, after)
        self.close_inner(loop, before, after)
        self.name_results(rows, folds)
        for member in stores:
            self.written[member.name] = phase

    def update_folds(self, rows: Sequence[Member], folds: Sequence[Accumulator]) -> None:
        """Fold the current element of the inner loop into the row reductions of a phase."""
        for member, one in zip(rows, folds, strict=True):
            value = self.evaluate(member)
            assert isinstance(member.node, Reduction)
            where = "" if one.vector else self.text_of(member.source[member.node.dims[0]])
            for line in one.update(value.text, where):
                self.scopes.line(line)

    def note_faults(self, loop: _Loop, before: list[str], after: list[str]) -> None:
        """Append to `before` the lines that clear the inner loop's flags, and to `after` the lines that write them to
        their targets.
        """
        for stem, flag in self.flags.items():
            before.append(f"int {flag} = 0;")
            after.append(f"if ({flag}) *{self.flag_target(stem)} = {flag};")
            loop.clauses.append(f"reduction(|:{flag})")
        self.flags.clear()

    def name_results(self, rows: Sequence[Member], folds: Sequence[Accumulator]) -> None:
        """Define constants for the results of row reductions in the row's loop."""
        for member, one in zip(rows, folds, strict=True):
            dtype = metas_of(member.node).dtype
            text, ctype = self.rounded(one.result, dtype), self.target.value_types[dtype]
            name = self.scopes.name("f")
            self.scopes.line(f"const {ctype} {name} = {text};", self.row_depth)
            self.results[member.name] = V(name, dtype, self.row_depth)

    def fold_of_row(self, member: Member) -> Accumulator:
        node = member.node
        assert isinstance(node, Reduction)
        ordered = not FOLDS[node.kind].finds or self.nest.increasing(member.source[node.dims[0]])
        ends = self.nest.inner_block.ends if self.nest.inner_block is not None else ()
        return fold(node.kind, node.dtype, self.scopes.name("s"), len(self.nest.inner) > 1, ordered, ends)

    def evaluate(self, member: Member) -> V:
        return member.node.body(self, member.source)

    def rounded(self, text: str, dtype: torch.dtype) -> str:
        """Returns the float32 result of a fold rounded to a low-precision dtype."""
        return self.call(f"{ROUNDING[dtype]}_round", text) if dtype in ROUNDING else text

    def outer_stores(self, phase: int) -> None:
        for member in self.phases.outer_stores(phase):
            self.store(member)

    def store(self, member: Member) -> None:
        value = self.load(member.name, member.index)
        self.write(member, value)

    def write(self, member: Member, value: V) -> None:
        """Write a store at the end of its loop body, after all loads: the output may be in the memory of an input."""
        depth = self.scopes.depth
        element, _ = self.element(member.name, member.index, write=True)
        dtype = metas_of(member.node).dtype
        self.scopes.later(f"{element} = {store_text(dtype, value.text, self.used)};", depth)

    # values of members

    def is_member(self, name: str, index: Index) -> bool:
        member = self.nest.members.get(name)
        return member is not None and member.index == index

    def value_of(self, name: str, index: Index) -> V:
        member = self.nest.members.get(name)
        if member is not None and member.nest_level in (NestLevel.ROW, NestLevel.COLUMN):
            if name in self.results:
                return self.results[name]
            return self.from_memory(name, index)
        if member is None and name in self.plan.stored:
            return self.from_memory(name, index)
        if self.written.get(name, self.phase) < self.phase:
            return self.from_memory(name, index)
        kept = self.temporaries.get(name)
        if kept is not None and kept[1] == index and kept[2] < self.phase:
            return self.temporary(name, kept[0])
        value = self.inlined(name, index)
        if name in self.phases.temporaries and kept is None and not self.masks:
            if self.phase == self.phases.depth(name) and value.depth == self.scopes.depth:
                self.keep_temporary(name, index, value)
        return value

    def temporary(self, name: str, array: str) -> V:
        dtype = metas_of(self.plan.program.nodes[name]).dtype
        text = f"{array}[{self.text_of(self.inner_offset())}]"
        return self.scopes.define(self.target.value_types[dtype], text, dtype, self.scopes.depth)

    def keep_temporary(self, name: str, index: Index, value: V) -> None:
        array = self.phases.temporaries[name]
        self.temporaries[name] = (array, index, self.phase)
        self.scopes.line(f"{array}[{self.text_of(self.inner_offset())}] = {value.text};")

    def declare_temporaries(self) -> None:
        width = self.phases.room
        for name, array in self.phases.temporaries.items():
            ctype = self.target.value_types[metas_of(self.plan.program.nodes[name]).dtype]
            self.scopes.line(f"alignas(64) {ctype} {array}[{width}];", self.row_depth)

    # column reductions

    def declare_columns(self) -> None:
        columns = sum(m.nest_level is NestLevel.COLUMN for m in self.nest.members.values())
        width = room = self.nest.size(self.nest.inner)
        if columns and isinstance(width, Size):
            room = 4 * MAX_COLUMN_WIDTH // columns
            if not width <= room:  # with row values, all columns must be complete in one pass
                raise CompileError(f"codegen: {columns} column accumulators of {width} elements")
        for member in self.nest.members.values():
            if member.nest_level is NestLevel.COLUMN:
                assert isinstance(member.node, Reduction)
                ends = self.nest.row_block.ends if self.nest.row_block is not None else ()
                one = fold(member.node.kind, member.node.dtype, self.scopes.name("b"), False, ends=ends)
                self.columns[member.name] = one
                for array in one.levels:
                    self.scopes.line(f"alignas(64) {one.ctype} {array}[{room}];")
                    self.scopes.line(f"for (int i = 0; i < {self.size(width)}; i++) {array}[i] = {one.start};")

    def accumulate_column(self, member: Member) -> None:
        assert isinstance(member.node, Reduction)
        one = self.columns[member.name]
        slot = f"{one.name}[{self.text_of(self.inner_offset())}]"
        values = [self.evaluate(m).text for m in self.unrolled(member)]
        if member.node.kind == "sum" and len(values) > 1:
            values = [" + ".join(f"({a} + {b})" for a, b in zip(values[::2], values[1::2], strict=True))]
        for value in values:
            self.scopes.line(one.update_slot(slot, value))

    def unrolled(self, member: Member) -> list[Member]:
        """Returns the values of a member at each value of the unrolled variable."""
        var = self.nest.unrolled
        if var is None:
            return [member]
        return [member.substituted({var: constant(i)}) for i in range(UNROLLED_ELEMENTS)]

    def store_columns(self) -> None:
        members = [m for m in self.nest.members.values() if m.nest_level is NestLevel.COLUMN]
        if not members:
            return
        self.open_columns()
        for member in members:
            assert isinstance(member.node, Reduction)
            dtype = metas_of(member.node).dtype
            offset, levels = self.text_of(self.inner_offset()), self.columns[member.name].levels
            text = self.rounded(" + ".join(f"{level}[{offset}]" for level in levels), dtype)
            self.write(member, self.scopes.define(self.target.value_types[dtype], text, dtype, self.scopes.depth))
        self.close_inner(_Loop())

    def open_columns(self) -> None:
        """Open the inner loops a second time, directly inside the kept loops, for results of column reductions."""
        shift = len(self.nest.folded)
        for var in self.nest.inner:
            self.depths[var] -= shift
        self.open_inner()
