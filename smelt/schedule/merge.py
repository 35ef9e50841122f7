"""Merges two groups into one loop nest, or gives the reason why not.

One access of each group to the same buffer determines common coordinates (see align); then roles must agree, and every
value that one member reads from another must be read at exactly the element that was just computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from smelt.loops.ir import LoopProgram
from smelt.schedule.align import Alignment, align, align_sequences
from smelt.schedule.dependencies import Access, Names, operands_first, variables_in
from smelt.schedule.group import MAX_COLUMN_WIDTH, Group, Member, NestLevel, Role, substituted
from smelt.schedule.machine import CPU, Machine
from smelt.schedule.realize import metas_of
from smelt.shapes.expr import Var
from smelt.shapes.size import IntLike, is_symbolic, same


def merge(
    a: Group, b: Group, shared: Iterable[str], program: LoopProgram, names: Names, machine: Machine = CPU
) -> Group | str:
    """Returns the merged group, or the reason against it. `shared`: buffers that both groups touch, in order of
    trial.
    """
    if a.scatter or b.scatter:
        return "a scatter runs alone"
    if a.flat and not b.flat:
        a, b = b, a
    reason = "no shared buffer"
    for name in shared:
        shape = metas_of(program.nodes[name]).shape
        for left in a.accesses[name][: machine.fusion.accesses]:
            for right in b.accesses[name][: machine.fusion.accesses]:
                merged = _through(a, b, Access(name, left), Access(name, right), shape, names, machine)
                if isinstance(merged, Group):
                    refusal = _refusal(merged, machine)
                    if refusal is None:
                        return merged
                    merged = refusal
                reason = merged
    return reason


def merge_beside(a: Group, b: Group, names: Names, machine: Machine) -> Group | str:
    """Returns the merged group of two groups that share no buffer, or the reason against it: loops are paired in order,
    role by role.
    """
    if a.limits or b.limits:
        return "a short last chunk has no partner"
    aligned = Alignment()
    for role in Role:
        done = align_sequences(a.variables(role), b.variables(role), names, aligned)
        if isinstance(done, str):
            return f"{role.value} loops: {done}"
    merged = _join(a, b, aligned)
    return merged if isinstance(merged, str) else _refusal(merged, machine) or merged


def only_columns(group: Group) -> bool:
    """Whether a group has only column reductions and values computed from their results."""
    return group.has(NestLevel.COLUMN) and all(
        m.nest_level in (NestLevel.COLUMN, NestLevel.AFTER) for m in group.members.values()
    )


def _through(
    a: Group, b: Group, left: Access, right: Access, shape: tuple[IntLike, ...], names: Names, machine: Machine
) -> Group | str:
    one, other = left.digits(shape), right.digits(shape)
    if one is None or other is None:
        return f"{left.name} is not read along loop variables"
    if not same(one[1], other[1]):
        return f"{left.name} is read at an offset"
    aligned = align(one[0], other[0], names, limits=(a.limits, b.limits))
    if isinstance(aligned, str):
        return f"{left.name}: {aligned}"
    return _complete(a, b, aligned, names, machine)


def _complete(a: Group, b: Group, aligned: Alignment, names: Names, machine: Machine) -> Group | str:
    """Pair the variables that the shared access does not mention, then join the groups; returns the reason if that is
    impossible.
    """
    free_a = [v for v in a.order if v not in aligned.left]
    free_b = [v for v in b.order if v not in aligned.right]
    if machine.column_epilogues and _only_folds(a, free_a):
        if b.flat and not free_b and not a.flat:
            return _join(a, b, aligned, after=True)
        if _only_folds(b, free_b) and (a.has(NestLevel.AFTER) or b.has(NestLevel.AFTER)):
            done = align_sequences(free_a, free_b, names, aligned)
            return f"folded loops: {done}" if isinstance(done, str) else _join(a, b, aligned)
    refusal = _pair_free(a, b, free_a, free_b, aligned, names)
    return _join(a, b, aligned) if refusal is None else refusal


def _pair_free(
    a: Group, b: Group, free_a: Sequence[Var], free_b: Sequence[Var], aligned: Alignment, names: Names
) -> str | None:
    """Pair the loops that the shared access does not mention, as far as they need partners; returns the reason if that
    is impossible.
    """
    if a.flat and (free_a or free_b):
        return f"ranges differ: {_sizes(a.order)} and {_sizes(b.order)}"
    if _not_inner(a, free_a):
        return f"the loops over {_sizes(free_a)} have no partner"
    if free_a and free_b:
        return _pair_inner(a, b, free_a, free_b, aligned, names)
    if free_b:
        return f"the loops over {_sizes(free_b)} have no partner"
    if free_a and (not b.flat or len(free_a) != len(a.variables(Role.INNER))):
        return f"the loops over {_sizes(free_a)} have no partner"
    return None


def _not_inner(group: Group, variables: Iterable[Var]) -> bool:
    return any(group.roles[v] is not Role.INNER for v in variables)


def _pair_inner(
    a: Group, b: Group, free_a: Sequence[Var], free_b: Sequence[Var], aligned: Alignment, names: Names
) -> str | None:
    """Pair, in order, the inner loops that the shared access does not mention; returns the reason if that is
    impossible.
    """
    if not b.flat and _not_inner(b, free_b):
        return f"the loops over {_sizes(free_b)} have no partner"
    if len(free_a) != len(a.variables(Role.INNER)):
        return "only some inner loops are shared"
    done = align_sequences(free_a, free_b, names, aligned)
    return f"inner loops: {done}" if isinstance(done, str) else None


def _only_folds(group: Group, free: Sequence[Var]) -> bool:
    """Whether `free` are all folded loops of a group that only reduces columns."""
    return bool(free) and free == group.variables(Role.FOLDED) and only_columns(group)


def _sizes(order: Iterable[Var]) -> str:
    return "x".join(str(v.size) for v in order) or "1"


def _join(a: Group, b: Group, aligned: Alignment, after: bool = False) -> Group | str:
    """Returns the group of both. `after`: members of `b` are computed after the columns of `a` are folded."""
    limits = _limits(a, b, aligned)
    if isinstance(limits, str):
        return limits
    roles: dict[Var, Role] = {}
    order: list[Var] = []
    for var in a.order:
        pieces = aligned.left.get(var, [var])
        order += reversed(pieces)
        roles |= dict.fromkeys(pieces, a.roles[var])
    if not b.flat:
        for va, vb, piece in aligned.pairs:
            role = _common_role(a.roles[va], b.roles[vb], a, b)
            if role is None:
                return f"a loop of {piece.size} is {a.roles[va].value} in one and {b.roles[vb].value} in the other"
            roles[piece] = role
    rank = {Role.KEPT: 0, Role.FOLDED: 1, Role.INNER: 2}
    order.sort(key=lambda v: rank[roles[v]])
    members = substituted(a.members, aligned.substitution(aligned.left))
    others = substituted(b.members, aligned.substitution(aligned.right))
    if after:
        others = {name: replace(m, nest_level=NestLevel.AFTER) for name, m in others.items()}
    members |= others
    if not (a.flat and b.flat):
        _set_nest_levels(members, roles)
    # the earlier position, since the rest of a program may wait for the earlier group
    position = min(a.position, b.position)
    return Group(a.number, members, order, roles, a.flat and b.flat, position=position, limits=limits)


def _limits(a: Group, b: Group, aligned: Alignment) -> dict[Var, tuple[Var, IntLike]] | str:
    """Returns the limits of both groups in common variables, or the reason against a merge."""
    found: dict[Var, tuple[Var, IntLike]] = {}
    for group, pieces in ((a, aligned.left), (b, aligned.right)):
        if len({group.roles[v] for v in group.order if v in aligned.joined}) > 1:
            return "the loop over chunks and the loop within one have different roles"
        for low, (high, total) in group.limits.items():
            lows, highs = pieces.get(low, [low]), pieces.get(high, [high])
            if len(lows) != 1 or len(highs) != 1:
                return "a short last chunk is not split further"
            known = found.setdefault(lows[0], (highs[0], total))
            if known[0] != highs[0] or not same(known[1], total):
                return "chunks have different sizes"
    for va, vb, piece in aligned.pairs:
        is_joined = va in aligned.joined or vb in aligned.joined
        if piece in found and not is_joined and (va in a.limits) != (vb in b.limits):
            return "a short last chunk does not match a full one"
    return found


def _common_role(one: Role, other: Role, a: Group, b: Group) -> Role | None:
    if one is other:
        return one
    if one is Role.KEPT and other is Role.FOLDED and not a.has(NestLevel.COLUMN):
        return Role.FOLDED
    if one is Role.FOLDED and other is Role.KEPT and not b.has(NestLevel.COLUMN):
        return Role.FOLDED
    return None


def _set_nest_levels(members: dict[str, Member], roles: dict[Var, Role]) -> None:
    inner = {v for v, role in roles.items() if role is Role.INNER}
    for member in members.values():
        if member.nest_level in (NestLevel.INNER, NestLevel.OUTER):
            used = variables_in(member.index)
            member.nest_level = NestLevel.INNER if used & inner or not inner else NestLevel.OUTER


def _refusal(group: Group, machine: Machine) -> str | None:
    """Returns the reason why the members cannot share the loops, or None."""
    for member in group.members.values():
        for read in member.reads:
            made = group.members.get(read.name)
            if made is None or made is member:
                continue
            if made.nest_level in (NestLevel.COLUMN, NestLevel.AFTER) and member.nest_level is not NestLevel.AFTER:
                return f"{member.name} needs {read.name} after its last row"
            if made.index != read.index:
                return f"{member.name} reads other elements of {read.name} than the one just computed"
    limits = machine.fusion
    if len(group.accesses) > limits.buffers:
        return f"more than {limits.buffers} buffers in one loop"
    if sum(m.ops for m in group.members.values()) > limits.operations:
        return f"more than {limits.operations} operations in one loop"
    if _levels(group, limits.levels) > limits.levels:
        return f"more than {limits.levels} values that need one another in one loop"
    return _column_refusal(group, machine)


def _levels(group: Group, most: int) -> int:
    """Returns the nesting depth of inlined bodies, or 0 if an upper bound of it is at most `most`.

    A reduction's value is computed before its users, so it does not add to their depth.
    """
    members, levels, deepest = group.members, dict[str, int](), 0
    if sum(m.levels for m in members.values()) <= most:
        return 0
    for name in operands_first(members, lambda n: (r.name for r in members[n].reads if r.name in members)):
        member = members[name]
        own = member.levels + max((levels.get(read.name, 0) for read in member.reads), default=0)
        deepest = max(deepest, own)
        levels[name] = 0 if member.nest_level in (NestLevel.ROW, NestLevel.COLUMN) else own
    return deepest


def _column_refusal(group: Group, machine: Machine) -> str | None:
    columns = sum(m.nest_level is NestLevel.COLUMN for m in group.members.values())
    if not columns:
        return None
    rows_too = group.has(NestLevel.ROW) or group.has(NestLevel.OUTER)
    if group.has(NestLevel.AFTER) and rows_too:
        return "what follows column reductions stands apart from row reductions"
    width = group.size(Role.INNER)
    if not rows_too:
        width = min(width, MAX_COLUMN_WIDTH)  # a wider reduction becomes several narrower kernels
    elif machine.fixed_columns and is_symbolic(v.size for v in group.variables(Role.INNER)):
        return "column accumulators of symbolic width"
    if columns > machine.fusion.columns or columns * width > machine.column_elements:
        return f"{columns} column accumulators of {width} do not stay in cache"
    return _too_sequential(group, machine, rows_too)


def _too_sequential(group: Group, machine: Machine, rows_too: bool) -> str | None:
    """Returns the reason why a large group of column reductions has too few independent iterations; None if it has
    enough.
    """
    work, iterations = group.size(), group.size(Role.KEPT)
    if machine.column_programs and not rows_too:
        iterations *= -(-group.size(Role.INNER) // machine.column_block)
    others = sum(m.nest_level not in (NestLevel.COLUMN, NestLevel.AFTER) for m in group.members.values())
    if work > 65536 and iterations < machine.enough_parallel and others:
        return f"only {group.size(Role.KEPT)} independent iterations"
    return None
