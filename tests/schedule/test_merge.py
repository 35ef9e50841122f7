"""smelt/schedule/merge.py: two groups in one nest compute what they did, and refusals say why there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx

from smelt.loops.ir import LoopProgram
from smelt.loops.lower import lower
from smelt.schedule.dependencies import Names
from smelt.schedule.group import Group, NestLevel, Role, group_of
from smelt.schedule.machine import CPU, GPU, Fusion, Machine
from smelt.schedule.merge import merge, merge_beside, only_columns
from smelt.schedule.realize import metas_of, realize
from smelt.shapes.size import hint
from tests.loops.graphs import GraphBuilder, repeated


class Two:
    """The groups of two outputs of a program, and what they touch in common."""

    def __init__(self, build: Callable[[GraphBuilder], tuple[fx.Node, fx.Node]]) -> None:
        g = GraphBuilder()
        self.program: LoopProgram = lower(g.build(*build(g)))
        self.real, self.names = realize(self.program), Names()
        first, second = (self.program.nodes[output.name] for output in self.program.outputs)
        self.a, self.b = (
            group_of(at, node, self.program, self.real, self.names) for at, node in enumerate((first, second))
        )
        self.a.position, self.b.position = 4, 2

    def merged(self, machine: Machine = CPU) -> Group | str:
        shared = [name for name in self.a.accesses if name in self.b.accesses]
        return merge(self.a, self.b, shared, self.program, self.names, machine)


def whole(found: Group | str, two: Two) -> Group:
    """The group, in which each member goes over its own elements, each once for every fold."""
    assert isinstance(found, Group), found
    assert set(found.members) == {*two.a.members, *two.b.members}
    assert set(found.roles) >= set(found.order) and found.position == 2
    for name, member in found.members.items():
        shape = [hint(n) for n in metas_of(two.program.nodes[name]).shape]
        for part, size in zip(member.index, shape, strict=True):
            low, high = part.range()
            assert (low, high) == (0, size - 1)
    return found


def sizes(found: Group, role: Role) -> list[int]:
    return [hint(v.size) for v in found.variables(role)]


def test_values_of_one_shape_share_all_loops() -> None:
    two = Two(lambda g: ((y := g.exp(g.input(4, 6))), g.sin(y)))
    found = whole(two.merged(), two)
    assert found.flat and len(found.order) == 2 and found.size() == 24
    assert found.members["exp"].index == found.members["sin"].index
    assert list(found.accesses) == ["exp", "sin", "x0"]


def test_loops_are_cut_where_shapes_differ() -> None:
    def build(g: GraphBuilder) -> tuple[fx.Node, fx.Node]:
        x = g.input(6, 8)
        return g.exp(x), g.sin(g.reshape(x, (3, 2, 2, 4)))

    two = Two(build)
    found = whole(two.merged(), two)
    assert sorted(hint(v.size) for v in found.order) == [2, 2, 3, 4] and found.size() == 48
    assert two.a.order != found.order and len(two.a.order) == 2, "the groups themselves stay as they are"


def test_elements_at_an_offset_or_in_another_order_are_not_at_hand() -> None:
    for moved in (lambda g, y: g.slice(y, (1,), (8,), (1,)), lambda g, y: g.flip(y, (0,))):
        two = Two(lambda g, moved=moved: ((y := g.exp(g.input(8))), g.neg(moved(g, y))))
        assert two.merged() == "exp is read at an offset"
    two = Two(lambda g: ((y := g.exp(g.input(8, 8))), g.neg(g.gather(y, 0, g.input(8, 8, dtype=torch.int64)))))
    assert two.merged() == "exp is not read along loop variables"
    two = Two(lambda g: ((y := g.exp(g.input(8, 8))), g.neg(g.add(y, g.permute(y, (1, 0))))))
    assert two.merged() == "neg reads other elements of exp than the one just computed"


def softmax_top(g: GraphBuilder) -> tuple[fx.Node, fx.Node]:
    x = g.input(5, 7)
    return g.amax(x, (1,)), g.exp(x)


def test_a_row_reduction_and_what_is_computed_elsewhere_of_its_rows() -> None:
    two = Two(softmax_top)
    found = whole(two.merged(), two)
    assert not found.flat and (sizes(found, Role.KEPT), sizes(found, Role.INNER)) == ([5], [7])
    assert [m.nest_level for m in found.members.values()] == [NestLevel.ROW, NestLevel.INNER]
    two.a, two.b = two.b, two.a
    two.a.position, two.b.position = 2, 4
    assert sizes(whole(two.merged(), two), Role.INNER) == [7], "whichever comes first"


def test_reader_of_a_row_reduction_is_outside_its_loop_or_in_another_loop() -> None:
    def outside(g: GraphBuilder) -> tuple[fx.Node, fx.Node]:
        top = g.amax(g.input(5, 7), (1,))
        return top, g.exp(top)

    def inside(g: GraphBuilder) -> tuple[fx.Node, fx.Node]:
        x = g.input(5, 7)
        top = g.amax(x, (1,))
        return top, g.sub(x, repeated(g, top, (5, 7), (1,)))

    for build, place in ((outside, NestLevel.OUTER), (inside, NestLevel.INNER)):
        two = Two(build)
        found = whole(two.merged(), two)
        (name,) = two.b.members
        assert found.members[name].nest_level is place and found.has(NestLevel.ROW)


def sums(dims: tuple[int, ...], shape: tuple[int, ...] = (6, 8)) -> Callable[[GraphBuilder], tuple[fx.Node, fx.Node]]:
    def build(g: GraphBuilder) -> tuple[fx.Node, fx.Node]:
        x = g.input(*shape)
        return g.sum(x, (len(shape) - 1,)), g.sum(x, dims)

    return build


def test_rows_and_columns_of_one_buffer() -> None:
    two = Two(sums((0,)))
    found = whole(two.merged(), two)
    assert (sizes(found, Role.KEPT), sizes(found, Role.FOLDED), sizes(found, Role.INNER)) == ([], [6], [8])
    assert [m.nest_level for m in found.members.values()] == [NestLevel.ROW, NestLevel.COLUMN]
    turned = Two(sums((0,), (6, 3, 1024)))
    found = whole(turned.merged(), turned)
    assert [hint(v.size) for v in found.order] == [3, 6, 1024], "folded loops are inside of kept ones"
    kept = whole(Two(sums((1,), (3, 6, 8))).merged(), Two(sums((1,), (3, 6, 8))))
    assert (sizes(kept, Role.KEPT), sizes(kept, Role.FOLDED), sizes(kept, Role.INNER)) == ([3], [6], [8])


def test_two_row_reductions_share_a_loop_and_of_other_rows_they_do_not() -> None:
    two = Two(lambda g: (g.sum(x := g.input(6, 8), (1,)), g.amax(x, (1,))))
    assert sizes(whole(two.merged(), two), Role.INNER) == [8]
    two = Two(lambda g: (g.sum(x := g.input(6, 8, 4), (2,)), g.sum(x, (1, 2))))
    assert two.merged() == "a loop of 8 is kept in one and inner in the other"


def test_nothing_goes_on_with_a_column_before_its_last_row() -> None:
    def build(g: GraphBuilder) -> tuple[fx.Node, fx.Node]:
        x = g.input(6, 8)
        total = g.sum(x, (0,))
        return total, g.sub(x, repeated(g, total, (6, 8), (0,)))

    two = Two(build)
    assert two.merged() == "sub needs sum_1 after its last row"


def follows(g: GraphBuilder) -> tuple[fx.Node, fx.Node]:
    total = g.sum(g.input(6, 8), (0,))
    return total, g.exp(total)


def test_reader_of_column_reductions_is_merged_only_on_gpu() -> None:
    assert isinstance(Two(follows).merged(CPU), str)
    two = Two(follows)
    found = whole(two.merged(GPU), two)
    assert [m.nest_level for m in found.members.values()] == [NestLevel.COLUMN, NestLevel.AFTER] and only_columns(found)
    assert (sizes(found, Role.FOLDED), sizes(found, Role.INNER)) == ([6], [8])


def test_groups_of_columns_alone() -> None:
    assert only_columns(Two(sums((0,))).b) and not only_columns(Two(sums((0,))).a)
    assert not only_columns(Two(softmax_top).b)
    two = Two(sums((0,)))
    both = two.merged()
    assert isinstance(both, Group) and not only_columns(both)


def test_scatters_and_strangers_stay_alone() -> None:
    def build(g: GraphBuilder) -> tuple[fx.Node, fx.Node]:
        x, place = g.input(9), g.input(6, dtype=torch.int64)
        return g.scatter_add(x, 0, place, g.input(6)), g.exp(x)

    two = Two(build)
    assert two.merged() == "a scatter runs alone"
    two.a, two.b = two.b, two.a
    assert two.merged() == "a scatter runs alone"
    assert Two(lambda g: (g.exp(g.input(4)), g.exp(g.input(4)))).merged() == "no shared buffer"
    two = Two(lambda g: (g.exp(x := g.input(4, 6)), g.exp(g.slice(x, (0, 0), (2, 6), (1, 1)))))
    assert isinstance(two.merged(), str)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"buffers": 2}, "more than 2 buffers in one loop"),
        ({"operations": 1}, "more than 1 operations in one loop"),
        ({"levels": 1}, "more than 1 values that need one another in one loop"),
    ],
)
def test_kernels_do_not_grow_without_bounds(limits: dict[str, Any], reason: str) -> None:
    two = Two(lambda g: ((y := g.exp(g.input(4, 6))), g.sin(y)))
    assert two.merged(replace(CPU, fusion=Fusion(**limits))) == reason
    assert isinstance(two.merged(replace(CPU, fusion=Fusion(**{k: n + 1 for k, n in limits.items()}))), Group)


def test_a_reduction_is_computed_before_what_uses_it() -> None:
    """Of values that need one another through a reduction, only those on one side of it run inside one another."""

    def build(g: GraphBuilder) -> tuple[fx.Node, fx.Node]:
        x = g.input(5, 7)
        top = g.amax(g.exp(x), (1,))
        return top, g.sub(x, repeated(g, top, (5, 7), (1,)))

    two = Two(build)
    deepest = max(m.levels for group in (two.a, two.b) for m in group.members.values())
    assert isinstance(two.merged(replace(CPU, fusion=Fusion(levels=deepest))), Group)
    assert isinstance(two.merged(replace(CPU, fusion=Fusion(levels=deepest - 1))), str)


def test_column_accumulators_stay_in_cache() -> None:
    def build(g: GraphBuilder) -> tuple[fx.Node, fx.Node]:
        x = g.input(6, 512)
        return g.sum(x, (1,)), g.sum(x, (0,))

    assert Two(build).merged(replace(CPU, column_elements=511)) == "1 column accumulators of 512 do not stay in cache"
    assert isinstance(Two(build).merged(replace(CPU, column_elements=512)), Group)
    assert isinstance(Two(build).merged(replace(CPU, fusion=Fusion(columns=0))), str)


def test_few_chunks_with_much_work_are_not_joined() -> None:
    def build(g: GraphBuilder) -> tuple[fx.Node, fx.Node]:
        x = g.input(4, 64, 512)
        return g.exp(x), g.sum(x, (1,))

    assert Two(build).merged(replace(CPU, enough_parallel=5)) == "only 4 independent iterations"
    assert isinstance(Two(build).merged(replace(CPU, enough_parallel=4)), Group)
    two = Two(lambda g: (g.exp(x := g.input(4, 16, 64)), g.sum(x, (1,))))
    assert isinstance(two.merged(replace(CPU, enough_parallel=5)), Group), "little work"


def test_groups_beside_each_other_pair_their_loops_in_order() -> None:
    two = Two(lambda g: (g.sum(g.input(6, 8), (1,)), g.sum(g.input(6, 8), (1,))))
    found = whole(merge_beside(two.a, two.b, two.names, CPU), two)
    assert (sizes(found, Role.KEPT), sizes(found, Role.INNER)) == ([6], [8])
    two = Two(lambda g: (g.exp(g.input(24)), g.exp(g.input(4, 6))))
    assert whole(merge_beside(two.a, two.b, two.names, CPU), two).size() == 24
    two = Two(lambda g: (g.sum(g.input(6, 8), (1,)), g.sum(g.input(6, 9), (1,))))
    found = merge_beside(two.a, two.b, two.names, CPU)
    assert isinstance(found, str) and found.startswith("inner loops: ")


def test_partial_last_chunks_merge_only_with_equal_ones() -> None:
    two = Two(lambda g: (g.sum(x := g.input(4, 8), (1,)), g.amax(x, (1,))))
    kept, inner = two.a.order
    two.a.limits[inner] = (kept, 29)
    assert merge_beside(two.a, two.b, two.names, CPU) == "a short last chunk has no partner"
    assert two.merged() == "x0: the chunks of 29 have no partner"
    high, low = two.b.order
    two.b.limits[low] = (high, 30)
    assert two.merged() == "chunks have different sizes"
    two.b.limits[low] = (high, 29)
    found = whole(two.merged(), two)
    ((last, (part, total)),) = found.limits.items()
    assert (last.size, part.size, total) == (8, 4, 29)
