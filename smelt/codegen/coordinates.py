"""A group's loop variables in the coordinates of its memory: ordered by strides, split at divisions, merged.

This is the first step for every target; nest.py (CPU) and triton/tiles.py (GPU) continue from its result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from smelt.loops.ir import Index
from smelt.schedule.dependencies import Names
from smelt.schedule.group import Group, NestLevel, Role, substituted
from smelt.schedule.plan import Schedule
from smelt.schedule.realize import metas_of
from smelt.shapes.expr import Atom, Expr, Quotient, Remainder, Var, flat_index, variable
from smelt.shapes.size import IntLike, exact_quotient, hint, known_divides, known_less, same


class Coordinates:
    """The members, the variables from outermost to innermost with their roles, and the limits of variables that stop
    early.

    `limits`: (base, limit) by variable: iterations in which `base + variable` >= limit are skipped.
    """

    def __init__(self, group: Group, plan: Schedule) -> None:
        self.plan = plan
        self.group = group
        self.members = dict(group.members)
        self.roles = dict(group.roles)
        self.order = list(group.order)
        self.names = Names(count=1_000_000)
        self.limits = {low: (variable(high) * low.size, total) for low, (high, total) in group.limits.items()}
        self.flattened: dict[
            tuple[str, Index], tuple[Expr, int]
        ] = {}  # each step needs the offsets of all accesses, and changes only a few of them

    def arrange(self) -> None:
        """Split variables that are operands of divisions, order them by strides, and merge neighbours that form one
        loop.
        """
        self.split_divisions()
        strides = self.strides()
        self.order.sort(key=lambda v: -strides.get(v, 0.0))
        self.merge_neighbours()

    def of(self, role: Role) -> list[Var]:
        return [v for v in self.order if self.roles[v] is role]

    def substitute(self, values: dict[Atom, Expr]) -> None:
        self.members = substituted(self.members, values)

    def replace(self, var: Var, pieces: Sequence[Var], value: Expr) -> None:
        """Replace `var` by `pieces` (outermost first)."""
        at = self.order.index(var)
        self.order[at : at + 1] = list(pieces)
        role = self.roles.pop(var)
        self.roles |= dict.fromkeys(pieces, role)
        self.substitute({var: value})
        self.limits = {low: (base.substitute({var: value}), limit) for low, (base, limit) in self.limits.items()}
        if var in self.limits:
            base, limit = self.limits.pop(var)
            self.limits[pieces[-1]] = (base + value - variable(pieces[-1]), limit)

    def offsets(self) -> Iterable[tuple[Expr, int]]:
        """Yields the memory offsets of all accesses, each with its element's bytes (weighted for writes), and index
        expressions that are used as numbers, with 0.
        """
        for member in self.members.values():
            if member.name in self.plan.stored and member.nest_level is not NestLevel.COLUMN:
                expr, size = self.offset(member.name, member.index)
                yield expr, size * self.plan.machine.loops.write_weight
            for read in member.reads:
                if read.name in self.plan.stored and read.name not in self.members:
                    yield self.offset(read.name, read.index)
            for expr in member.index_values:
                yield expr, 0

    def offset(self, name: str, index: Index) -> tuple[Expr, int]:
        known = self.flattened.get((name, index))
        if known is None:
            size = metas_of(self.plan.program.nodes[name]).dtype.itemsize
            known = self.flattened[name, index] = flat_index(index, self.plan.strides[name]), size
        return known

    def rival(self, least: int) -> Var | None:
        """Returns the variable along which most accesses that are strided along the last variable are contiguous; None
        if either variable is shorter than `least`, or no access is strided.
        """
        if not self.order:
            return None
        last = self.order[-1]
        rivals: dict[Var, int] = {}
        for expr, size in self.offsets():
            if size and abs(hint(expr.coefficient(last))) > 1:
                for atom, c in expr.terms:
                    if isinstance(atom, Var) and same(c, 1) and atom in self.order:
                        rivals[atom] = rivals.get(atom, 0) + size
        if not rivals:
            return None
        other = max(rivals, key=lambda v: rivals[v])
        return other if min(hint(other.size), hint(last.size)) >= least else None

    def split_divisions(self) -> None:
        """Split each variable v for which v // k or v % k is computed and k divides its size."""
        for _ in range(16):
            cut = self.find_cut()
            if cut is None:
                return
            var, by = cut
            high, low = self.names.fresh(var.size // by), self.names.fresh(by)
            self.replace(var, (high, low), variable(high) * by + variable(low))

    def find_cut(self) -> tuple[Var, IntLike] | None:
        known = set(self.order)
        for expr, _ in self.offsets():
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
        """Returns for each variable the mean logarithm of its strides, weighted by bytes moved; the variable with the
        largest becomes outermost.
        """
        total: dict[Var, float] = {}
        weights: dict[Var, float] = {}
        for expr, size in self.offsets():
            used = [(a, c) for a, c in expr.terms if isinstance(a, Var)]
            weight = size * math.prod(hint(a.size) for a, _ in used)
            for var, c in used:
                total[var] = total.get(var, 0.0) + weight * math.log2(abs(hint(c)) + 1)
                weights[var] = weights.get(var, 0.0) + weight
        return {v: total[v] / weights[v] if weights[v] else 0.0 for v in total}

    def merge_neighbours(self) -> None:
        """Merge neighbours u, v of one role if every offset has coefficient(u) == coefficient(v) * size(v)."""
        changed = True
        while changed:
            changed = False
            forms = [expr for expr, _ in self.offsets()]
            for u, v in zip(self.order, self.order[1:], strict=False):
                if self.roles[u] is self.roles[v] and self.mergeable(u, v, forms):
                    joined = self.names.fresh(u.size * v.size)
                    at = self.order.index(u)
                    self.order[at : at + 2] = [joined]
                    self.roles[joined] = self.roles.pop(u)
                    self.roles.pop(v)
                    joint_index = variable(joined)
                    self.substitute({u: joint_index // v.size, v: joint_index % v.size})
                    changed = True
                    break

    def mergeable(self, u: Var, v: Var, forms: Sequence[Expr]) -> bool:
        """Whether two neighbours form one loop in all offsets."""
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
