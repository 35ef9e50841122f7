"""Renders scatter kernels: they copy the base, then write or add at data-dependent positions.

Dimensions that reach the target unchanged never collide, so they run in parallel and in vectors; the others run in
order. Results do not depend on the number of threads, and no atomics are needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from smelt.codegen.cpp.body import BAD, BodyRenderer, store_text
from smelt.codegen.cpp.kernel import Kernel, finish
from smelt.codegen.cpp.target import ROUNDING, Renderer
from smelt.codegen.parameters import FAULT, Arguments
from smelt.codegen.scope import Scopes, close_parallel
from smelt.loops.ir import Index, Scatter
from smelt.schedule.dependencies import Names
from smelt.schedule.group import Group, fresh_index
from smelt.schedule.plan import Schedule
from smelt.shapes.expr import Expr, Var, variable
from smelt.shapes.size import IntLike, Size, content, same


def render_scatter(group: Group, plan: Schedule, target: Renderer) -> Kernel:
    """Render the kernel of a group that is one scatter."""
    (member,) = group.members.values()
    assert isinstance(member.node, Scatter)
    return _ScatterRenderer(member.node, plan, target).render()


class _ScatterRenderer(BodyRenderer):
    def __init__(self, node: Scatter, plan: Schedule, target: Renderer) -> None:
        super().__init__(plan, target, Scopes(), Arguments(), set())
        self.node = node
        self.fresh = Names()
        self.refused: list[str] = []
        self.arguments.written.add(node.name)

    def render(self) -> Kernel:
        if not self.plan.starts_in_place(self.node):
            self.copy()
        self.update()
        return finish(self)

    def loop(self, var: Var, name: str) -> None:
        self.scopes.open()
        self.names[var] = name
        self.depths[var] = self.scopes.depth

    def close(self, var: Var, *pragmas: str) -> None:
        name, bound = self.names[var], self.size(var.size)
        self.scopes.close([*pragmas, f"for (int64_t {name} = 0; {name} < {bound}; {name}++) {{"], ["}"])

    def parallel(self, loops: Sequence[IntLike]) -> str | None:
        """Returns the OpenMP clause of a loop with enough work for several threads, or None."""
        work = math.prod(loops)
        if isinstance(work, Size):
            return f"if(parallel: {self.size(work)} >= {self.plan.machine.loops.min_parallel_operations})"
        return "" if work >= self.plan.machine.loops.min_parallel_operations else None

    def copy(self) -> None:
        index, order = fresh_index(self.node.meta.shape, self.fresh)
        for number, var in enumerate(order):
            self.loop(var, f"i{number}")
        self.scalar_depth = self.scopes.depth
        value = self.node.base(self, index)
        self.assign(index, value.text)
        clause = self.parallel([v.size for v in order])
        for var in reversed(order):
            pragmas = []
            if var is order[-1]:
                pragmas.append("simd")
            if var is order[0] and clause is not None:
                pragmas.insert(0, "parallel for")
                pragmas.append(clause)
            text = [f"#pragma omp {' '.join(filter(None, pragmas))}"] if pragmas else []
            self.close(var, *text)

    def assign(self, index: Index, text: str) -> None:
        element, _ = self.element(self.node.name, index, write=True)
        self.store(element, text)

    def store(self, element: str, text: str) -> None:
        allowed = f"if (!({' | '.join(self.refused)})) " if self.refused else ""
        self.scopes.line(f"{allowed}{element} = {store_text(self.node.meta.dtype, text, self.used)};")

    def met_fault(self, test: str, depth: int) -> None:
        """Return from the kernel at a refused index before an input is overwritten; as in eager, later elements are not
        written.
        """
        if self.node.name not in self.plan.over_inputs:
            return
        if depth > self.scalar_depth:
            self.refused.append(f"({test})")
        else:
            leave = "continue" if depth else "return"
            self.scopes.line(f"if (*{self.arguments.pointer(FAULT)}) {leave};", depth)

    def inner_columns(self, last: Var) -> tuple[Var | None, Var]:
        """Returns the loop over the last dimension as (loop over chunks, or None if it is not split; loop within a
        chunk).
        """
        most = self.plan.machine.loops.scatter_columns
        width = next((w for w in range(most, most // 4, -1) if content(last.size) % w == 0), 0)
        if width and not same(width, last.size):
            return Var("uh", last.size // width), Var("ul", width)
        return None, last

    def update(self) -> None:
        node = self.node
        index: list[Expr] = [variable(Var(f"u{d}", n)) for d, n in enumerate(node.ranges)]
        free = [(d, Var(f"u{d}", node.ranges[d])) for d in node.parallel if not same(node.ranges[d], 1)]
        serial = [Var(f"u{d}", n) for d, n in enumerate(node.ranges) if not same(n, 1) and d not in node.parallel]
        outer, inner = [v for _, v in free], None
        if free and free[-1][0] == len(node.ranges) - 1:
            high, inner = self.inner_columns(outer.pop())
            if high is not None:
                index[-1] = variable(high) * inner.size + variable(inner)
                outer.append(high)
        clause = self.parallel(node.ranges)
        if outer:
            self.open_parallel(outer)
        self.write_all(tuple(index), serial, inner)
        if outer:
            pragma = [] if clause is None else [f"#pragma omp parallel for schedule(static) {clause}".rstrip()]
            close_parallel(self.scopes, [(self.names[v], v.size) for v in outer], pragma, self.size)

    def write_all(self, index: Index, serial: Sequence[Var], inner: Var | None) -> None:
        """Write the loops that one thread runs, in the program's order; the innermost loop is over columns."""
        for number, var in enumerate(serial):
            self.loop(var, f"r{number}")
        if inner is not None:
            self.loop(inner, "c")
        self.scalar_depth = self.scopes.depth - (inner is not None)
        self.write_one(index)
        if inner is not None:
            self.close_inner(inner)
        for var in reversed(serial):
            self.close(var)

    def open_parallel(self, outer: Sequence[Var]) -> None:
        """Open one parallel loop over all indices of these dimensions, with a variable for each dimension."""
        self.scopes.open()
        for number, var in enumerate(outer):
            self.names[var], self.depths[var] = f"k{number}", self.scopes.depth

    def close_inner(self, inner: Var) -> None:
        flag = self.flags.pop(BAD, None)
        if flag is None:
            self.close(inner, "#pragma omp simd")
            return
        self.scopes.line(f"int {flag} = 0;", self.scopes.depth - 1)
        self.close(inner, f"#pragma omp simd reduction(|:{flag})")
        self.scopes.line(f"if ({flag}) *{self.flag_target(BAD)} = {flag};")

    def write_one(self, index: Index) -> None:
        node = self.node
        value = node.body(self, index)
        target = node.target(self, index)
        if not node.accumulate:
            self.assign(target, value.text)
            return
        element, _ = self.element(node.name, target, write=True)
        dtype = node.meta.dtype
        old = self.call(f"{ROUNDING[dtype]}_load", element) if dtype in ROUNDING else element
        text = self.target.op("add", dtype, [old, value.text])
        if dtype in ROUNDING:
            text = self.call(f"{ROUNDING[dtype]}_round", text)
        self.store(element, text)
