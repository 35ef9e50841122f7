"""The order of units that fusion keeps up to date while it merges, against one computed afresh."""

import pytest

from smelt.base.options import Options
from smelt.loops.lower import lower
from smelt.schedule.dependencies import Names
from smelt.schedule.describe import describe
from smelt.schedule.fuse import _Fusion
from smelt.schedule.group import NestLevel, Role
from smelt.schedule.machine import CPU
from smelt.schedule.plan import Schedule, schedule
from smelt.schedule.precedence import bits
from smelt.schedule.realize import realize
from smelt.schedule.split import split_reductions
from tests.loops import graphs
from tests.loops.graphs import GraphBuilder
from tests.loops.random_graphs import RandomGraph
from tests.loops.symbolic import SymbolicBuilder, at_sizes


def ancestors(fusion: _Fusion) -> dict[int, set[int]]:
    """Every unit's ancestors, by the buffers that units read now."""
    direct = {
        unit: {fusion.result.number_of[name] for name in fusion.reads(unit)} - {unit}
        for unit in (*fusion.groups, *fusion.result.others)
    }
    found: dict[int, set[int]] = {}

    def visit(unit: int) -> set[int]:
        if unit not in found:
            found[unit] = set().union(*({source} | visit(source) for source in direct[unit]))
        return found[unit]

    for unit in direct:
        visit(unit)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_merging_keeps_the_order_of_units(seed: int) -> None:
    program = lower(RandomGraph(seed).build(steps=40))
    names, real = Names(), realize(program)
    fusion = _Fusion(split_reductions(program, real, names), real, names, CPU)
    count = len(fusion.groups)
    fusion.run()
    fresh = ancestors(fusion)
    assert len(fusion.groups) <= count and set(fusion.order.before) == set(fresh)
    for unit, above in fresh.items():
        assert set(bits(fusion.order.before[unit] & fusion.order.alive)) == above
        assert set(bits(fusion.order.after[unit] & fusion.order.alive)) == {u for u in fresh if unit in fresh[u]}


def plan_of(g: GraphBuilder, *outputs: object) -> Schedule:
    return schedule(lower(g.build(*outputs)), Options())


def test_a_reduction_and_its_users_share_rows():
    g = GraphBuilder()
    x = g.input(128, 256)
    plan = plan_of(g, graphs.softmax(g, x, 1))
    (group,) = plan.groups.values()
    assert [v.size for v in group.variables(Role.KEPT)] == [128]
    assert [v.size for v in group.variables(Role.INNER)] == [256]
    assert plan.stored & set(group.members) == {"div"}


def test_column_reductions_join_the_row_kernel_through_partial_sums():
    g = GraphBuilder()
    x, grad, w, mean, rstd = g.input(512, 96), g.input(512, 96), g.input(96), g.input(512), g.input(512)
    plan = plan_of(g, *graphs.layer_norm_backward(g, grad, x, mean, rstd, w))
    groups = [group for group in plan.groups.values() if group.has(NestLevel.ROW)]
    assert len(groups) == 1 and groups[0].has(NestLevel.COLUMN)


def test_refusals_have_a_reason():
    g = GraphBuilder()
    x = g.input(64, 64)
    y = g.exp(x)
    plan = plan_of(g, y, g.mul(g.flip(y, (0,)), 2.0), g.sum(g.permute(y, (1, 0)), (0,)), g.sum(y, (0,)))
    reasons = {d.refusal for d in plan.decisions if d.refusal}
    assert any("read at an offset" in r or "other elements" in r or "not read along" in r for r in reasons)
    text = describe(plan)
    assert all(r in text for r in reasons)


def test_a_kernel_between_two_forbids_their_fusion():
    g = GraphBuilder()
    x, w = g.input(64, 64), g.input(64, 64)
    y = g.exp(x)
    plan = plan_of(g, y, g.add(y, g.mm(y, w)))
    assert len(plan.groups) == 2
    assert any(d.refusal == "another kernel must run between them" for d in plan.decisions)


def test_parts_of_symbolic_sizes_fuse_as_those_of_numbers():
    g = SymbolicBuilder(8, 64)
    b, t = g.symbols
    x, grad, w, mean, rstd = g.input(b, t, 96), g.input(b, t, 96), g.input(96), g.input(b, t), g.input(b, t)
    gm = g.build(*graphs.layer_norm_backward(g, grad, x, mean, rstd, w))
    plans = schedule(lower(gm), Options()), schedule(lower(at_sizes(gm, (8, 64))), Options())
    sizes = [sorted(len(group.members) for group in plan.groups.values()) for plan in plans]
    assert sizes[0] == sizes[1] == [1, 1, max(sizes[0])]
    (limited,) = [group for group in plans[0].groups.values() if group.limits]
    ((low, (high, total)),) = limited.limits.items()
    assert low.size == 32 and str(high.size) == "((s0*s1 + 31) // 32)" and str(total) == "s0*s1"
    assert limited.roles[low] is Role.FOLDED and limited.roles[high] is Role.KEPT
    assert g.known.assumed == []


def test_small_sums_stay_one_kernel():
    g = GraphBuilder()
    products = [g.mm(g.input(16, 64), g.input(64, 32)) for _ in range(12)]
    total = products[0]
    for product in products[1:]:
        total = g.add(total, product)
    assert len(plan_of(g, total).groups) == 1
