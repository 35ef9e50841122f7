"""Turns a group's variables into the loops of a kernel: roles, order by strides, splits, merges, chunks, tiles.

First part of codegen. The result is a group in new coordinates: kept loops (parallel), folded loops, inner loops with
the contiguous one last. Divisions by a factor of a variable are removed by splitting the variable.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from smelt.schedule.dependencies import Names
from smelt.schedule.group import Group, Member, Place, Role
from smelt.schedule.plan import Schedule
from smelt.schedule.realize import metas_of
from smelt.shapes.expr import Atom, Expr, Quotient, Remainder, Var, flat_index, variable
from smelt.shapes.size import (
    IntLike,
    Size,
    content,
    exact_quotient,
    hint,
    is_symbolic,
    known_divides,
    known_less,
    same,
)

PARALLEL_WORK = 32768
"""Element operations below which a kernel stays on one thread."""

CHUNK = 4096
BLOCK = 512
"""Elements whose sum is taken before it is added to the row's: rounding errors stay near those of pairwise sums."""

COLUMNS = 2048
SYMBOLIC_COLUMNS = 512
"""Columns at a time where their number is symbolic: few, because all accumulators are cleared."""

UNROLL = 4
WRITE_WEIGHT = 8
TILE = 32


@dataclass
class Nest:
    """Loops of one kernel.

    `work`: element operations of all loops, where that depends on symbolic sizes: what `parallel` is decided by then.
    `limits`: variables that stop early, `limit` being the first value of `base + variable` that is out.
    `unrolled`: a short variable that is no loop: column reductions take its values at once and add their sum.
    `tail`: the variable that was cut for that, where a few of its values may be left over.
    `tiled`: the inner loops are a tile over two variables, each contiguous in some tensor.
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

    def size(self, loops: Sequence[Var]) -> IntLike:
        """Iterations of some of the loops."""
        return math.prod(v.size for v in loops)

    def rest(self) -> Nest:
        """The loops over what unrolling left over."""
        assert self.tail is not None
        whole = variable(self.tail)
        values: dict[Atom, Expr] = {self.folded[-1]: whole // UNROLL}
        if self.unrolled is not None:
            values[self.unrolled] = whole % UNROLL
        members = {name: m.substituted(values) for name, m in self.members.items()}
        return replace(self, members=members, folded=[*self.folded[:-1], self.tail], unrolled=None)


def chunk_size(size: IntLike, wanted: int) -> int:
    """The largest divisor up to `wanted`, unless it is much smaller."""
    whole = content(size)
    return next((s for s in range(wanted, wanted // 4, -1) if whole % s == 0), wanted)


def make_nest(group: Group, plan: Schedule) -> Nest:
    """Choose the loops of a group."""
    return _Builder(group, plan).build()


class _Builder:
    def __init__(self, group: Group, plan: Schedule) -> None:
        self.plan = plan
        self.group = group
        self.members = dict(group.members)
        self.roles = dict(group.roles)
        self.order = list(group.order)
        self.names = Names(count=1_000_000)
        self.limits = {low: (variable(high) * low.size, total) for low, (high, total) in group.limits.items()}
        self.tiled = False
        self.unrolled: Var | None = None
        self.tail: Var | None = None

    def build(self) -> Nest:
        self.split_divisions()
        strides = self.strides()
        self.order.sort(key=lambda v: -strides.get(v, 0.0))
        self.merge_neighbours()
        if self.group.flat:
            self.flat_roles()
        else:
            self.block_sums()
        self.narrow_columns()
        self.unroll_columns()
        kept, folded, inner = (self.of(role) for role in (Role.KEPT, Role.FOLDED, Role.INNER))
        work = math.prod(v.size for v in self.order) * max(1, min(8, self.ops()))
        outside = math.prod(v.size for v in kept)
        parallel = not same(outside, 1) and (isinstance(work, Size) or (work >= PARALLEL_WORK and outside > 1))
        return Nest(
            self.members, kept, folded, inner, parallel, self.group.flat, self.limits, self.tiled, self.unrolled,
            self.tail, work if isinstance(work, Size) else None,
        )  # fmt: skip

    def ops(self) -> int:
        return sum(m.cost + len(m.reads) for m in self.members.values())

    def of(self, role: Role) -> list[Var]:
        return [v for v in self.order if self.roles[v] is role]

    def substitute(self, values: dict[Atom, Expr]) -> None:
        self.members = {name: m.substituted(values) for name, m in self.members.items()}

    def replace(self, var: Var, pieces: Sequence[Var], value: Expr) -> None:
        """Put `pieces` (outermost first) in the place of `var`."""
        at = self.order.index(var)
        self.order[at : at + 1] = list(pieces)
        role = self.roles.pop(var)
        self.roles |= dict.fromkeys(pieces, role)
        self.substitute({var: value})
        self.limits = {low: (base.substitute({var: value}), limit) for low, (base, limit) in self.limits.items()}
        if var in self.limits:
            base, limit = self.limits.pop(var)
            self.limits[pieces[-1]] = (base + value - variable(pieces[-1]), limit)

    def places(self) -> Iterable[tuple[Expr, int]]:
        """Memory places of all accesses with the bytes of one element, and index numbers."""
        for member in self.members.values():
            if member.name in self.plan.stored and member.place is not Place.COLUMN:
                expr, size = self.place(member.name, member.index)
                # loops follow what is written: strided reads can be staged, strided writes cannot
                yield expr, size * WRITE_WEIGHT
            for read in member.reads:
                if read.name in self.plan.stored and read.name not in self.members:
                    yield self.place(read.name, read.index)
            for expr in member.places:
                yield expr, 0

    def place(self, name: str, index: Sequence[Expr]) -> tuple[Expr, int]:
        size = metas_of(self.plan.program.nodes[name]).dtype.itemsize
        return flat_index(index, self.plan.strides[name]), size

    def split_divisions(self) -> None:
        """Split v wherever v // k or v % k is computed and k divides its size."""
        for _ in range(16):
            cut = self.find_cut()
            if cut is None:
                return
            var, by = cut
            high, low = self.names.fresh(var.size // by), self.names.fresh(by)
            self.replace(var, (high, low), variable(high) * by + variable(low))

    def find_cut(self) -> tuple[Var, IntLike] | None:
        known = set(self.order)
        for expr, _ in self.places():
            for atom in expr.divisions():
                assert isinstance(atom, (Quotient, Remainder))
                for inner, c in atom.of.terms:
                    if not (isinstance(inner, Var) and inner in known and known_less(0, c)):
                        continue
                    by = exact_quotient(atom.by, c)
                    if by is None or same(by, 1) or same(by, inner.size):
                        continue
                    if known_less(0, by) and known_divides(by, inner.size):
                        return inner, by
        return None

    def strides(self) -> dict[Var, float]:
        """For each variable the mean logarithm of its stride, weighed by bytes moved: large belongs outside."""
        total: dict[Var, float] = {}
        weights: dict[Var, float] = {}
        for expr, size in self.places():
            used = [(a, c) for a, c in expr.terms if isinstance(a, Var)]
            weight = size * math.prod(hint(a.size) for a, _ in used)
            for var, c in used:
                total[var] = total.get(var, 0.0) + weight * math.log2(abs(hint(c)) + 1)
                weights[var] = weights.get(var, 0.0) + weight
        return {v: total[v] / weights[v] if weights[v] else 0.0 for v in total}

    def merge_neighbours(self) -> None:
        """Join u, v of one role where every place has coefficient(u) == coefficient(v) * size(v)."""
        changed = True
        while changed:
            changed = False
            forms = [expr for expr, _ in self.places()]
            own = [m for m in self.members.values() if m.name not in self.plan.stored or m.place is Place.COLUMN]
            for u, v in zip(self.order, self.order[1:], strict=False):
                if self.roles[u] is self.roles[v] and self.mergeable(u, v, forms, own):
                    joined = self.names.fresh(u.size * v.size)
                    at = self.order.index(u)
                    self.order[at : at + 2] = [joined]
                    self.roles[joined] = self.roles.pop(u)
                    self.roles.pop(v)
                    whole = variable(joined)
                    self.substitute({u: whole // v.size, v: whole % v.size})
                    changed = True
                    break

    def mergeable(self, u: Var, v: Var, forms: Sequence[Expr], own: Sequence[Member]) -> bool:
        if same(u.size, 0) or same(v.size, 0):
            return False
        if any(x == low or base.coefficient(x) for low, (base, _) in self.limits.items() for x in (u, v)):
            return False
        for expr in forms:
            if not same(expr.coefficient(u), expr.coefficient(v) * v.size):
                return False
            for atom, _ in expr.terms:
                if isinstance(atom, (Quotient, Remainder)) and any(a in (u, v) for a in atom.of.atoms()):
                    return False
        return True

    def block_sums(self) -> None:
        """Long row sums run in blocks, whose sums are added up: fewer roundings follow one another."""
        inner = self.of(Role.INNER)
        if inner and hint(inner[-1].size) >= 2 * BLOCK and self.group.has(Place.ROW):
            self.chunk(inner[-1], BLOCK, Role.INNER)

    def narrow_columns(self) -> None:
        """Without row values, a wide column kernel takes a few cache lines of columns at a time, in parallel."""
        inner = self.of(Role.INNER)
        width = math.prod(hint(v.size) for v in inner)
        symbolic = is_symbolic(v.size for v in inner)  # accumulators have a fixed size
        if not self.group.has(Place.COLUMN) or self.group.has(Place.ROW) or self.group.has(Place.OUTER):
            return
        if not inner or (width < 2 * COLUMNS and not symbolic):
            return
        for var in inner[:-1]:
            self.roles[var] = Role.KEPT
        if isinstance(inner[-1].size, Size):
            self.chunk(inner[-1], SYMBOLIC_COLUMNS, Role.KEPT)
        elif inner[-1].size >= 2 * COLUMNS:
            self.chunk(inner[-1], COLUMNS, Role.KEPT)
        rank = {Role.KEPT: 0, Role.FOLDED: 1, Role.INNER: 2}
        self.order.sort(key=lambda v: rank[self.roles[v]])

    def unroll_columns(self) -> None:
        """Take four rows at a time: a quarter of the accumulator traffic, and of the roundings in a row."""
        folded = self.of(Role.FOLDED)
        if not folded or self.group.has(Place.ROW) or self.group.has(Place.OUTER):
            return
        last = folded[-1]
        if not known_divides(UNROLL, last.size) and not isinstance(last.size, Size):
            return
        if sum(m.ops for m in self.members.values()) > 40:
            return
        limit = self.limits.pop(last, None)
        high, low = self.names.fresh(last.size // UNROLL), self.names.fresh(UNROLL)
        self.replace(last, (high, low), variable(high) * UNROLL + variable(low))
        self.order.remove(low)
        self.unrolled = low
        if limit is not None:
            self.limits[last] = limit
        if limit is not None or not known_divides(UNROLL, last.size):
            self.tail = last

    def flat_roles(self) -> None:
        """A pointwise kernel: everything but the contiguous loop is parallel; long loops are cut into chunks."""
        if not self.order:
            return
        last = self.order[-1]
        self.roles = dict.fromkeys(self.order, Role.KEPT)
        self.roles[last] = Role.INNER
        if self.tile():
            return
        outside = math.prod(hint(v.size) for v in self.order[:-1])
        if (isinstance(last.size, Size) or last.size >= 2 * CHUNK) and outside < 64:
            self.chunk(last, CHUNK, Role.KEPT)

    def chunk(self, var: Var, wanted: int, role: Role) -> None:
        """Cut a long inner loop into chunks of about `wanted`; the last may be short."""
        high, _ = self.cut(var, chunk_size(var.size, wanted))
        self.roles[high] = role

    def cut(self, var: Var, size: int) -> tuple[Var, Var]:
        """(which piece, the place in it): pieces of `size`, of which the last may be short."""
        count = (var.size + size - 1) // size
        high, low = self.names.fresh(count), self.names.fresh(size)
        short = not same(count * size, var.size)
        assert not (short and var in self.limits), "parts are cut in equal pieces"
        self.replace(var, (high, low), variable(high) * size + variable(low))
        if short:
            self.limits[low] = (variable(high) * size, var.size)
        return high, low

    def tile(self) -> bool:
        """Where some access is contiguous along another loop than the innermost, walk both in small tiles."""
        last = self.order[-1]
        rivals: dict[Var, int] = {}
        for expr, size in self.places():
            if size and abs(hint(expr.coefficient(last))) > 1:
                for atom, c in expr.terms:
                    if isinstance(atom, Var) and same(c, 1) and atom in self.order:
                        rivals[atom] = rivals.get(atom, 0) + size
        if not rivals:
            return False
        other = max(rivals, key=lambda v: rivals[v])
        if hint(other.size) < TILE // 2 or hint(last.size) < TILE // 2:
            return False
        pieces: list[Var] = []
        for var in (other, last):
            size = chunk_size(var.size, TILE)
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
