"""A group of values computed by one loop nest, in coordinates that all its members share.

Loop shape of every group (each level may be empty):

    for kept variables (parallel):          # K
        clear column accumulators
        for folded variables:               # R: what column reductions sum over
            for inner variables: ...        # I: row reductions, then what uses them; vectorised
        finish column accumulators
        for inner variables: ...            # `after`: what is computed from them, once for each (K, I)

A `row` reduction folds the inner variables and yields one value per (K, R); a `column` reduction folds R and yields one
value per (K, I). A group of pointwise values only is `flat`: all its variables are equal and get their roles when it
joins another group, or from codegen.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from smelt.loops.facts import FOLDS
from smelt.loops.ir import Index, LoopProgram, Pointwise, Reduction, Scatter
from smelt.schedule.dependencies import Access, Names, Reads, trace
from smelt.schedule.realize import Realized, metas_of
from smelt.shapes.expr import Atom, Expr, Runtime, Var, flat_index, variable
from smelt.shapes.size import IntLike, hint, same

MAX_COLUMN_WIDTH = 4096
"""Maximum number of elements of one column accumulator, so that it stays in the first-level cache next to a few input
streams.
"""


class Role(enum.Enum):
    """The role of a loop variable in its group."""

    KEPT = "kept"
    FOLDED = "folded"
    INNER = "inner"


class NestLevel(enum.Enum):
    """The level of the loop nest at which a member's value exists."""

    INNER = "inner"
    OUTER = "outer"
    ROW = "row"
    COLUMN = "column"
    AFTER = "after"


@dataclass(slots=True)
class Member:
    """A value of the group. `index`: the index of its element; `source`: for a reduction, the index over all variables
    of the element that it folds.

    `levels`: nesting depth of inlined bodies between it and the buffers that it reads. `checks`: whether its
    computation contains a check that may fail, other than the check of a scatter's target indices.
    """

    node: Pointwise | Reduction | Scatter
    index: Index
    source: Index
    reads: tuple[Access, ...]
    index_values: tuple[Expr, ...]
    cost: int
    ops: int
    levels: int
    nest_level: NestLevel
    checks: bool

    @property
    def name(self) -> str:
        return self.node.name

    def substituted(self, values: dict[Atom, Expr]) -> Member:
        """Returns the member in other coordinates."""
        return substituted({self.name: self}, values)[self.name]


def substituted(members: Mapping[str, Member], values: dict[Atom, Expr]) -> dict[str, Member]:
    """Returns the members in other coordinates. Members share few distinct indices, so each index is
    substituted once.
    """
    if not values:
        return dict(members)
    known: dict[Index, Index] = {}

    def moved(index: Index) -> Index:
        found = known.get(index)
        if found is None:
            found = known[index] = tuple([i.substitute(values) for i in index])
        return found

    return {
        name: replace(
            member,
            index=moved(member.index),
            source=moved(member.source),
            reads=tuple([Access(read.name, moved(read.index)) for read in member.reads]),
            index_values=moved(member.index_values),
        )
        for name, member in members.items()
    }


@dataclass(frozen=True)
class EqualLayerGroup:
    """Another layer's group that is equal except for names of buffers (in the same order) and random streams.

    `streams`: for each random stream of the other group, the corresponding stream of this group.
    """

    group: Group
    streams: Mapping[int, int]


@dataclass
class Group:
    """Members by name in program order, and the loop variables from outermost to innermost.

    `limits`: for each variable `low` within a chunk that stops early in the last chunk, (high, total): iterations with
    high * size + low >= total are skipped. `like`: the group of another layer of which this group is a copy.
    """

    number: int
    members: dict[str, Member]
    order: list[Var]
    roles: dict[Var, Role]
    flat: bool
    scatter: bool = False
    position: int = 0
    accesses: dict[str, list[Index]] = field(default_factory=dict)
    limits: dict[Var, tuple[Var, IntLike]] = field(default_factory=dict)
    like: EqualLayerGroup | None = None

    def __post_init__(self) -> None:
        if not self.accesses:
            self.collect()

    def collect(self) -> None:
        """Fill `accesses`: every buffer that is read or written, with its distinct indices; own values come first."""
        found: dict[str, dict[Index, None]] = {}
        for member in self.members.values():
            found.setdefault(member.name, {})[member.index] = None
        for member in self.members.values():
            for access in member.reads:
                found.setdefault(access.name, {})[access.index] = None
        self.accesses = {name: list(indices) for name, indices in found.items()}

    def variables(self, role: Role) -> list[Var]:
        """Returns the variables of a role, outermost first."""
        return [v for v in self.order if self.roles[v] is role]

    def has(self, nest_level: NestLevel) -> bool:
        """Whether some member exists at this level."""
        return any(member.nest_level is nest_level for member in self.members.values())

    def label(self) -> str:
        """Returns the names of the members, shortened."""
        names = list(self.members)
        return "+".join(names[:4]) + (f"+{len(names) - 4} more" if len(names) > 4 else "")

    def size(self, *roles: Role) -> int:
        """Returns the number of iterations over the variables of these roles (all if none is given), by the example's
        sizes.
        """
        count = 1
        for v in self.order:
            if not roles or self.roles[v] in roles:
                count *= hint(v.size)
        return count


def fresh_index(shape: Sequence[IntLike], names: Names) -> tuple[Index, list[Var]]:
    """Returns an index of one fresh variable per dimension whose size is not 1, and these variables."""
    index, order = [], []
    for size in shape:
        if same(size, 1):
            index.append(Expr((), 0))
            continue
        var = names.fresh(size)
        order.append(var)
        index.append(variable(var))
    return tuple(index), order


def _loops_by_dimension(shape: Sequence[IntLike], order: Sequence[Var]) -> list[Var | None]:
    """Returns the loop variable of each dimension, None for size 1. It is found by position, because a variable of size
    0 occurs in no expression.
    """
    sized = iter(order)
    return [None if same(n, 1) else next(sized) for n in shape]


def group_of(
    number: int, node: Pointwise | Reduction | Scatter, program: LoopProgram, real: Realized, names: Names
) -> Group:
    """Make the group of one value."""
    if isinstance(node, Scatter):
        return _scatter_group(number, node, program, real, names)
    shape = node.source_shape if isinstance(node, Reduction) else metas_of(node).shape
    source, order = fresh_index(shape, names)
    reads = trace(program, real.stored - {node.name}, node.body, source)
    if isinstance(node, Pointwise):
        return pointwise_group(number, node, source, order, reads)
    kept = [e for d, e in enumerate(source) if d not in node.dims]
    by_dim = _loops_by_dimension(shape, order)
    reduced = [v for d, v in enumerate(by_dim) if v is not None and d in node.dims]
    others = [v for d, v in enumerate(by_dim) if v is not None and d not in node.dims]
    roles, nest_level = reduction_roles(node, reads.accesses, reduced, others, program, real)
    member = _member(node, tuple(kept), source, reads, nest_level)
    rank = {Role.KEPT: 0, Role.FOLDED: 1, Role.INNER: 2}
    group = Group(number, {node.name: member}, sorted(order, key=lambda v: rank[roles[v]]), roles, flat=False)
    if node.ragged is not None:
        high, low, total = node.ragged
        chunk, row = by_dim[high], by_dim[low]
        assert chunk is not None and row is not None
        group.limits[row] = (chunk, total)
    return group


def pointwise_group(number: int, node: Pointwise, index: Index, order: list[Var], reads: Reads) -> Group:
    """Make the group of one pointwise value, computed for every `index` over the variables `order`."""
    member = _member(node, index, index, reads, NestLevel.INNER)
    return Group(number, {node.name: member}, order, dict.fromkeys(order, Role.KEPT), flat=True)


def looks_up(group: Group) -> bool:
    """Whether a group reads elements at indices that are themselves read from memory."""
    positions = (position for indices in group.accesses.values() for index in indices for position in index)
    return not group.scatter and any(isinstance(atom, Runtime) for position in positions for atom in position.atoms())


def may_refuse(group: Group) -> bool:
    """Whether a check of a value that the group reads may fail, other than the check of a scatter's target indices."""
    return any(member.checks for member in group.members.values())


def _member(node: Pointwise | Reduction, index: Index, source: Index, reads: Reads, nest_level: NestLevel) -> Member:
    return Member(
        node,
        index,
        source,
        reads.accesses,
        reads.index_values,
        reads.cost,
        reads.ops,
        reads.levels,
        nest_level,
        reads.checks,
    )


def reduction_roles(
    node: Reduction, reads: Sequence[Access], reduced: list[Var], kept: list[Var], program: LoopProgram, real: Realized
) -> tuple[dict[Var, Role], NestLevel]:
    """Choose between row and column: a reduction folds rows if its operands are contiguous along a reduced
    dimension.
    """
    inner, main = innermost(reads, [*kept, *reduced], program, real)
    if inner is None or main is None or inner in reduced or not kept or FOLDS[node.kind].finds:
        return {**dict.fromkeys(kept, Role.KEPT), **dict.fromkeys(reduced, Role.INNER)}, NestLevel.ROW
    roles = {**dict.fromkeys(kept, Role.KEPT), **dict.fromkeys(reduced, Role.FOLDED)}
    roles[inner] = Role.INNER
    width = inner.size
    at = kept.index(inner)
    for var in reversed(kept[:at]):
        if hint(width * var.size) > MAX_COLUMN_WIDTH // 2 or not same(main.coefficient(var), width):
            break
        roles[var] = Role.INNER
        width *= var.size
    return roles, NestLevel.COLUMN


def innermost(
    reads: Sequence[Access], order: Sequence[Var], program: LoopProgram, real: Realized
) -> tuple[Var | None, Expr | None]:
    """Returns the variable along which most bytes are contiguous, and the memory offset of the access that
    decides it.
    """
    votes: dict[Var, int] = {}
    main: dict[Var, tuple[int, Expr]] = {}
    for access in reads:
        flat = flat_index(access.index, real.strides[access.name])
        size = metas_of(program.nodes[access.name]).dtype.itemsize
        best = None
        for atom, c in flat.terms:
            if isinstance(atom, Var):
                size *= hint(atom.size)
                if same(c, 1):
                    best = atom
        if best is not None:
            votes[best] = votes.get(best, 0) + size
            main[best] = max(main.get(best, (0, flat)), (size, flat), key=lambda t: t[0])
    chosen = max(votes, key=lambda v: votes[v], default=None)
    return (chosen, main[chosen][1]) if chosen is not None and chosen in order else (None, None)


def _scatter_group(number: int, node: Scatter, program: LoopProgram, real: Realized, names: Names) -> Group:
    index, order = fresh_index(node.ranges, names)
    stored = real.stored - {node.name}
    position, _ = fresh_index(metas_of(node).shape, names)
    values = [trace(program, stored, node.base, position), trace(program, stored, node.body, index)]
    reads = values[0].accesses + values[1].accesses

    def target(ops: object, i: Index) -> None:
        node.target(ops, i)  # type: ignore[arg-type]

    reads += trace(program, stored, target, index).accesses
    checks = any(value.checks for value in values)
    member = Member(node, (), index, tuple(dict.fromkeys(reads)), (), 1, 1, 1, NestLevel.INNER, checks)
    return Group(number, {node.name: member}, order, dict.fromkeys(order, Role.KEPT), flat=False, scatter=True)
