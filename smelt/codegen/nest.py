"""Turns a group's variables into the loops of a kernel: roles, order by strides, splits, merges, chunks, tiles.

This is the first step of codegen for the CPU. The result is a group in new coordinates: kept loops (parallel), folded
loops, inner loops with the contiguous one last. Divisions by a factor of a variable are removed by splitting the
variable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from smelt.codegen.coordinates import Coordinates
from smelt.schedule.group import Group, Member, NestLevel, Role, substituted
from smelt.schedule.plan import Schedule
from smelt.shapes.expr import Atom, Expr, Var, variable
from smelt.shapes.size import (
    IntLike,
    Size,
    content,
    hint,
    is_symbolic,
    known_divides,
    known_less,
    same,
)

BLOCK_ELEMENTS = 512
"""Number of elements of a partial row sum, which keeps rounding errors near those of pairwise summation."""

MIN_BLOCK_PASSES = 16
"""Minimum number of iterations of a partial sum; above it, their number is about the square root of the number of all
iterations.
"""

SYMBOLIC_BLOCK_PASSES = 64
"""Number of iterations of a partial sum if the total is symbolic; the next level adds up as many partial sums."""

UNROLLED_ELEMENTS = 4
"""Number of elements of a folded dimension that one iteration of a column reduction adds."""


@dataclass(frozen=True)
class Block:
    """A loop in which partial sums are added to the next level, at low bits of its counter, so that rounding is like
    that of pairwise summation.
    """

    var: Var
    ends: tuple[int, ...]


@dataclass
class Nest:
    """The loops of one kernel.

    `work`: number of element operations of all loops if sizes are symbolic; it decides at run time whether the loops
    are parallel. `limits`: (base, limit) by variable: iterations in which `base + variable` >= limit are skipped.
    `unrolled`: a short variable without a loop: column reductions add the sum of its values in one iteration. `tail`:
    the variable that was split to unroll it, if some of its values may be left over. `row_block`: the folded loop whose
    partial column sums are blocked; `inner_block`: the same for an inner loop and row sums. `tiled`: the inner loops
    are a tile over two variables, each contiguous in some tensor.
    """

    members: dict[str, Member]
    kept: list[Var]
    folded: list[Var]
    inner: list[Var]
    parallel: bool
    flat: bool
    limits: dict[Var, tuple[Expr, IntLike]] = field(default_factory=dict)
    tiled: bool = False
    unrolled: Var | None = None
    tail: Var | None = None
    work: IntLike | None = None
    row_block: Block | None = None
    inner_block: Block | None = None

    def size(self, loops: Sequence[Var]) -> IntLike:
        """Returns the number of iterations of these loops."""
        return math.prod(v.size for v in loops)

    def increasing(self, offset: Expr) -> bool:
        """Whether an expression is known to increase over the inner loops."""
        if not offset.is_linear():
            return False
        reach: IntLike = 0
        for var in reversed(self.inner):
            step = offset.coefficient(var)
            if same(step, 0):
                continue
            if not known_less(reach, step):
                return False
            reach = reach + step * (var.size - 1)
        return True

    def rest(self) -> Nest:
        """Returns the nest for the values that unrolling left over."""
        assert self.tail is not None
        tail_index = variable(self.tail)
        values: dict[Atom, Expr] = {self.folded[-1]: tail_index // UNROLLED_ELEMENTS}
        if self.unrolled is not None:
            values[self.unrolled] = tail_index % UNROLLED_ELEMENTS
        members = substituted(self.members, values)
        return replace(self, members=members, folded=[*self.folded[:-1], self.tail], unrolled=None, row_block=None)


def chunk_size(size: IntLike, wanted: int) -> int:
    """Returns the largest divisor of `size` up to `wanted`, or `wanted` if the divisor is much smaller."""
    divisor = content(size)
    return next((s for s in range(wanted, wanted // 4, -1) if divisor % s == 0), wanted)


def make_block(loops: Sequence[Var]) -> Block | None:
    """Returns the blocking of a sum over all iterations of nested loops; None if there are too few iterations
    for it.
    """
    symbolic = is_symbolic(v.size for v in loops)
    passes = math.prod(hint(v.size) for v in loops)
    if passes < 4 * MIN_BLOCK_PASSES and not symbolic:
        return None
    wanted = SYMBOLIC_BLOCK_PASSES if symbolic else 1 << (math.isqrt(passes).bit_length() - 1)
    for var in reversed(loops):
        if isinstance(var.size, Size) or var.size > wanted:
            ends = (wanted, wanted * SYMBOLIC_BLOCK_PASSES) if symbolic else (wanted,)
            return Block(var, tuple(n - 1 for n in ends))
        wanted = max(1, wanted >> (var.size - 1).bit_length())
    return None


def make_nest(group: Group, plan: Schedule) -> Nest:
    """Choose the loops of a group."""
    return _Builder(group, plan).build()


class _Builder(Coordinates):
    def __init__(self, group: Group, plan: Schedule) -> None:
        super().__init__(group, plan)
        self.loops = plan.machine.loops
        self.tiled = False
        self.unrolled: Var | None = None
        self.tail: Var | None = None

    def build(self) -> Nest:
        self.arrange()
        if self.group.flat:
            self.flat_roles()
        else:
            self.block_sums()
        self.narrow_columns()
        self.unroll_columns()
        kept, folded, inner = (self.of(role) for role in (Role.KEPT, Role.FOLDED, Role.INNER))
        work = math.prod(v.size for v in self.order) * max(1, min(8, self.ops()))
        outside = math.prod(v.size for v in kept)
        parallel = not same(outside, 1) and (
            isinstance(work, Size) or (work >= self.loops.min_parallel_operations and outside > 1)
        )
        return Nest(
            self.members, kept, folded, inner, parallel, self.group.flat, self.limits, self.tiled, self.unrolled,
            self.tail, work if isinstance(work, Size) else None,
            make_block(folded) if self.group.has(NestLevel.COLUMN) else None,
            make_block(inner[:-1]) if self.group.has(NestLevel.ROW) else None,
        )  # fmt: skip

    def ops(self) -> int:
        return sum(m.cost + len(m.reads) for m in self.members.values())

    def block_sums(self) -> None:
        """Divide long row sums into blocks, to reduce the number of consecutive roundings."""
        inner = self.of(Role.INNER)
        if inner and hint(inner[-1].size) >= 2 * BLOCK_ELEMENTS and self.group.has(NestLevel.ROW):
            self.chunk(inner[-1], BLOCK_ELEMENTS, Role.INNER)

    def narrow_columns(self) -> None:
        """Split wide column kernels without row values into parallel blocks of a few cache lines of columns."""
        inner = self.of(Role.INNER)
        width = math.prod(hint(v.size) for v in inner)
        symbolic = is_symbolic(v.size for v in inner)  # accumulators have a fixed size
        if not self.group.has(NestLevel.COLUMN) or self.group.has(NestLevel.ROW) or self.group.has(NestLevel.OUTER):
            return
        if not inner or (width < 2 * self.loops.columns and not symbolic):
            return
        for var in inner[:-1]:
            self.roles[var] = Role.KEPT
        if isinstance(inner[-1].size, Size):
            self.chunk(inner[-1], self.loops.symbolic_columns, Role.KEPT)
        elif inner[-1].size >= 2 * self.loops.columns:
            self.chunk(inner[-1], self.loops.columns, Role.KEPT)
        rank = {Role.KEPT: 0, Role.FOLDED: 1, Role.INNER: 2}
        self.order.sort(key=lambda v: rank[self.roles[v]])

    def unroll_columns(self) -> None:
        """Unroll four rows, which divides the accumulator traffic and the number of consecutive roundings by four."""
        folded = self.of(Role.FOLDED)
        if not folded or self.group.has(NestLevel.ROW) or self.group.has(NestLevel.OUTER):
            return
        last = folded[-1]
        if not known_divides(UNROLLED_ELEMENTS, last.size) and not isinstance(last.size, Size):
            return
        if sum(m.ops for m in self.members.values()) > 40:
            return
        limit = self.limits.pop(last, None)
        high, low = self.names.fresh(last.size // UNROLLED_ELEMENTS), self.names.fresh(UNROLLED_ELEMENTS)
        self.replace(last, (high, low), variable(high) * UNROLLED_ELEMENTS + variable(low))
        self.order.remove(low)
        self.unrolled = low
        if limit is not None:
            self.limits[last] = limit
        if limit is not None or not known_divides(UNROLLED_ELEMENTS, last.size):
            self.tail = last

    def flat_roles(self) -> None:
        """Set the roles of a pointwise kernel: all but the contiguous loop are parallel; long loops are split into
        chunks.
        """
        if not self.order:
            return
        last = self.order[-1]
        self.roles = dict.fromkeys(self.order, Role.KEPT)
        self.roles[last] = Role.INNER
        if self.tile():
            return
        outside = math.prod(hint(v.size) for v in self.order[:-1])
        if (isinstance(last.size, Size) or last.size >= 2 * self.loops.chunk_elements) and outside < 64:
            self.chunk(last, self.loops.chunk_elements, Role.KEPT)

    def chunk(self, var: Var, wanted: int, role: Role) -> None:
        """Split a long inner loop into chunks of about `wanted` elements; the last chunk may be short."""
        high, _ = self.cut(var, chunk_size(var.size, wanted))
        self.roles[high] = role

    def cut(self, var: Var, size: int) -> tuple[Var, Var]:
        """Split a variable into (chunk, position in the chunk), by chunks of `size` of which the last may be short."""
        count = (var.size + size - 1) // size
        high, low = self.names.fresh(count), self.names.fresh(size)
        short = not same(count * size, var.size)
        assert not (short and var in self.limits), "a loop within a short chunk can only be split evenly"
        self.replace(var, (high, low), variable(high) * size + variable(low))
        if short:
            self.limits[low] = (variable(high) * size, var.size)
        return high, low

    def tile(self) -> bool:
        """Walk two loops in small tiles if an access is contiguous along a loop other than the innermost; returns
        whether the nest is tiled.
        """
        other = self.rival(self.loops.tile_side // 2)
        if other is None:
            return False
        pieces: list[Var] = []
        for var in (other, self.order[-1]):
            size = chunk_size(var.size, self.loops.tile_side)
            if not isinstance(var.size, Size) and size >= var.size:
                pieces.append(var)
                continue
            high, low = self.cut(var, size)
            self.roles[high] = Role.KEPT
            pieces.append(low)
        self.order = [v for v in self.order if v not in pieces] + pieces
        for var in pieces:
            self.roles[var] = Role.INNER
        self.tiled = True
        return True
