"""smelt/schedule/group.py: groups of one value, what their loops are for, and what they read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from smelt.loops.ir import Pointwise, Reduction, Scatter
from smelt.loops.lower import lower
from smelt.schedule.dependencies import Names
from smelt.schedule.group import (
    MAX_COLUMN_WIDTH,
    Group,
    NestLevel,
    Role,
    fresh_index,
    group_of,
    looks_up,
    may_refuse,
    substituted,
)
from smelt.schedule.realize import realize
from smelt.shapes.expr import Var, constant, variable
from smelt.shapes.size import hint
from tests.loops.graphs import GraphBuilder
from tests.loops.symbolic import SymbolicBuilder


def group(g: GraphBuilder, made: fx.Node, *others: fx.Node) -> Group:
    program = lower(g.build(made, *others))
    node = program.nodes[program.outputs[0].name]
    assert isinstance(node, (Pointwise, Reduction, Scatter))
    return group_of(3, node, program, realize(program), Names())


def sizes(found: Group, role: Role) -> list[int]:
    return [hint(v.size) for v in found.variables(role)]


def test_a_fresh_index_has_no_variable_where_there_is_one_element() -> None:
    names = Names()
    index, order = fresh_index((3, 1, 0, 5), names)
    assert [v.size for v in order] == [3, 0, 5] == [v.size for v in names.made]
    assert index == (variable(order[0]), constant(0), constant(0), variable(order[2]))
    assert fresh_index((), names) == ((), [])
    again, more = fresh_index((3,), names)
    assert again != index[:1] and more[0] not in order, "equal sizes have variables of their own"


def test_a_pointwise_value_is_flat_and_all_its_loops_are_alike() -> None:
    g = GraphBuilder()
    x, row = g.input(4, 1, 6), g.input(6)
    found = group(g, g.add(g.exp(x), g.broadcast_in_dim(row, (4, 1, 6), (2,))))
    a, b = found.order
    assert (found.number, found.flat, found.scatter) == (3, True, False) and found.limits == {}
    assert sizes(found, Role.KEPT) == [4, 6] and sizes(found, Role.INNER) == []
    zero = constant(0)
    assert found.accesses == {
        "add": [(variable(a), zero, variable(b))], "x0": [(variable(a), zero, variable(b))], "x1": [(variable(b),)],
    }  # fmt: skip
    (member,) = found.members.values()
    assert member.nest_level is NestLevel.INNER and member.ops == 2 and not member.checks and not may_refuse(found)
    assert (found.size(), found.size(Role.INNER), found.size(Role.KEPT, Role.INNER)) == (24, 1, 24)


ROWS = (8, 6, 16)


@pytest.mark.parametrize(
    ("dims", "stride", "place", "kept", "folded", "inner"),
    [
        ((2,), None, NestLevel.ROW, [8, 6], [], [16]),
        ((1, 2), None, NestLevel.ROW, [8], [], [6, 16]),
        ((0, 1, 2), None, NestLevel.ROW, [], [], [8, 6, 16]),
        ((0,), None, NestLevel.COLUMN, [], [8], [6, 16]),  # both kept dimensions are one row of memory
        ((0, 1), None, NestLevel.COLUMN, [], [8, 6], [16]),
        ((1,), None, NestLevel.COLUMN, [8], [6], [16]),
        ((2,), (1, 128, 8), NestLevel.COLUMN, [6], [16], [8]),  # memory follows the first dimension
        ((0,), (1, 128, 8), NestLevel.ROW, [6, 16], [], [8]),
        ((0, 2), (1, 128, 8), NestLevel.ROW, [6], [], [8, 16]),
    ],
)
def test_reduction_along_contiguous_memory_is_a_row(
    dims: tuple[int, ...], stride: Any, place: NestLevel, kept: list[int], folded: list[int], inner: list[int]
) -> None:
    g = GraphBuilder()
    found = group(g, g.sum(g.input(*ROWS, stride=stride), dims))
    (member,) = found.members.values()
    assert member.nest_level is place and not found.flat and found.has(place)
    assert (sizes(found, Role.KEPT), sizes(found, Role.FOLDED), sizes(found, Role.INNER)) == (kept, folded, inner)
    ranks = [[Role.KEPT, Role.FOLDED, Role.INNER].index(found.roles[v]) for v in found.order]
    assert ranks == sorted(ranks), "kept loops are outermost, inner ones innermost"
    assert found.size() == 8 * 6 * 16 and len(member.source) == 3


def test_an_index_is_found_in_loop_order_for_any_memory_layout() -> None:
    g = GraphBuilder()
    found = group(g, g.argmax(g.input(8, 16), 0))
    assert found.members["argmax"].nest_level is NestLevel.ROW and sizes(found, Role.INNER) == [8]


def test_the_operand_with_most_bytes_decides_and_rows_of_one_are_no_loops() -> None:
    g = GraphBuilder()
    x, y = g.input(64, 32), g.input(32)
    both = g.mul(g.mul(x, g.broadcast_in_dim(y, (64, 32), (1,))), x)
    assert group(g, g.sum(both, (0,))).has(NestLevel.COLUMN)
    g = GraphBuilder()
    turned, narrow = g.input(64, 32, stride=(1, 64)), g.input(64, 32, dtype=torch.int8)
    assert group(g, g.sum(g.mul(turned, g.convert(narrow, torch.float32)), (0,))).has(NestLevel.ROW)
    g = GraphBuilder()
    found = group(g, g.sum(g.input(1, 5, 1, 7), (1, 2)))
    assert found.has(NestLevel.COLUMN) and (sizes(found, Role.FOLDED), sizes(found, Role.INNER)) == ([5], [7])


def test_columns_are_not_wider_than_an_accumulator() -> None:
    for rows, inner in ((2, [2, 1024]), (4, [1024])):
        g = GraphBuilder()
        found = group(g, g.sum(g.input(16, rows, 1024), (0,)))
        assert sizes(found, Role.INNER) == inner
    assert MAX_COLUMN_WIDTH == 4096
    g = GraphBuilder()
    x, apart = g.input(16, 2, 8), g.input(2, 8, stride=(32, 1))
    total = g.sum(g.mul(x, g.broadcast_in_dim(apart, (16, 2, 8), (1, 2))), (0,))
    assert sizes(group(g, total), Role.INNER) == [2, 8], "the larger of two operands tells what one row is"
    g = GraphBuilder()
    found = group(g, g.sum(g.input(16, 2, 8, stride=(64, 32, 1)), (0,)))
    assert (sizes(found, Role.KEPT), sizes(found, Role.INNER)) == ([2], [8]), "rows with gaps between them are not one"


def test_a_size_of_nothing_has_its_loop() -> None:
    g = GraphBuilder()
    found = group(g, g.amax(g.input(4, 0, 3), (2,)))
    assert found.size() == 0 and sorted(hint(v.size) for v in found.order) == [0, 3, 4]


def test_a_short_last_chunk_has_its_limit() -> None:
    g = GraphBuilder()
    program = lower(g.build(g.sum(g.input(4, 8), (1,))))
    node = program.nodes[program.outputs[0].name]
    assert isinstance(node, Reduction)
    node.ragged = (0, 1, 29)
    found = group_of(0, node, program, realize(program), Names())
    ((low, (high, total)),) = found.limits.items()
    assert (low.size, high.size, total) == (8, 4, 29)


def test_symbolic_sizes_are_loops_and_assume_nothing() -> None:
    g = SymbolicBuilder(5, 7)
    n, m = g.symbols
    found = group(g, g.sum(g.input(n, m, 3), (0,)))
    assert found.has(NestLevel.COLUMN) and [str(v.size) for v in found.variables(Role.INNER)] == ["s1", "3"]
    assert found.size() == 5 * 7 * 3 and not g.known.assumed


def test_a_scatter_is_a_group_by_itself() -> None:
    g = GraphBuilder()
    x, place, src = g.input(9, 4), g.input(6, 4, dtype=torch.int64), g.input(6, 4)
    found = group(g, g.scatter_add(x, 0, place, src))
    assert found.scatter and not found.flat and sizes(found, Role.KEPT) == [6, 4]
    assert set(found.accesses) == {"scatter_add", "x0", "x1", "x2"} and not looks_up(found)
    assert not may_refuse(found), "its places are its own affair"


def test_who_looks_up_and_who_may_refuse() -> None:
    g = GraphBuilder()
    x, place = g.input(9), g.input(6, dtype=torch.int64)
    found = group(g, g.gather(x, 0, place))
    assert looks_up(found) and may_refuse(found)
    g = GraphBuilder()
    whole = g.input(6, dtype=torch.int64)
    assert may_refuse(group(g, g.floor_div(whole, whole)))
    g = GraphBuilder()
    x = g.input(6)
    found = group(g, g.div(x, x))
    assert not may_refuse(found) and not looks_up(found)


def test_members_in_other_coordinates() -> None:
    g = GraphBuilder()
    found = group(g, g.add(g.exp(g.input(4, 6)), g.input(4, 6)))
    a, b = found.order
    joined = Var("w", 24)
    there = {a: variable(joined) // 6, b: variable(joined) % 6}
    (moved,) = substituted(found.members, there).values()
    want = (variable(joined) // 6, variable(joined) % 6)
    assert moved.index == moved.source == want and all(read.index == want for read in moved.reads)
    (kept,) = found.members.values()
    assert kept.index == (variable(a), variable(b)), "the group itself stays as it is"
    assert kept.substituted(there) == moved and substituted(found.members, {}) == found.members


def test_labels_are_short() -> None:
    g = GraphBuilder()
    found = group(g, g.exp(g.input(3)))
    (member,) = found.members.values()
    assert found.label() == "exp"
    found.members = {name: member for name in "abcd"}
    assert found.label() == "a+b+c+d"
    found.members = {name: member for name in "abcdef"}
    assert found.label() == "a+b+c+d+2 more"
