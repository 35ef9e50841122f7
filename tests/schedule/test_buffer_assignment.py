"""smelt/schedule/buffer_assignment.py: what lies in the arena, in the memory of others, or apart."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace

import torch
from torch import fx

from smelt.base.options import Options
from smelt.codegen.cpp.host import render_cpp
from smelt.loops.ir import Extern
from smelt.loops.lower import lower
from smelt.schedule.buffer_assignment import BufferAssignment, flat, joined, writes_into
from smelt.schedule.dependencies import Names
from smelt.schedule.describe import describe
from smelt.schedule.fuse import fuse
from smelt.schedule.machine import CPU, GPU
from smelt.schedule.memory import ALIGN
from smelt.schedule.order import Unit
from smelt.schedule.plan import Schedule, _Planner, schedule
from smelt.schedule.realize import realize
from tests.loops.graphs import GraphBuilder


def plan_of(g: GraphBuilder, *outputs: object) -> Schedule:
    return schedule(lower(g.build(*outputs)), Options())


def test_arena_is_reused():
    g = GraphBuilder()
    x = g.input(256, 256)
    w = g.input(256, 256)
    y = x
    for _ in range(6):
        y = g.mm(g.exp(y), w)
    plan = schedule(lower(g.build(g.exp(y))), Options(), machine=replace(CPU, takes_over=False))
    assert plan.memory.size <= 2 * 256 * 256 * 4 < plan.memory.naive
    assert schedule(lower(g.build(g.exp(y))), Options(), caller_owned=range(2)).needed <= plan.memory.size


def sum_of_product_and_rows(rows: int) -> GraphBuilder:
    """grad^T @ x plus rows of `values`: the two gradients of an embedding that is also the last product's weight."""
    g = GraphBuilder()
    grad, x = g.input(rows, 64), g.input(64, 256)
    places, values = g.input(32, dtype=torch.int64), g.input(32, 256)
    g.found = g.index_put(g.mm(g.exp(grad), x), (places, None), values, True)
    return g


def test_rows_are_added_to_a_large_product_in_the_memory_of_the_result():
    g = sum_of_product_and_rows(4096)
    plan = plan_of(g, g.found)
    assert plan.over_others == {"index_put": "mm"} and "mm" not in plan.memory.offsets
    assert "inner -> output (over mm)" in describe(plan)
    assert plan.memory.size == 4096 * 64 * 4  # exp, which only the product reads
    on_gpu = schedule(lower(g.build(g.found)), Options(), machine=GPU)
    assert not on_gpu.over_others


def test_memory_is_not_taken_over_from_small_values_or_such_that_are_read_again():
    g = sum_of_product_and_rows(32)
    assert not plan_of(g, g.found).over_others
    g = sum_of_product_and_rows(4096)
    (mm,) = (node for node in g.found.args if isinstance(node, torch.fx.Node) and node.name == "mm")
    plan = plan_of(g, g.found, g.sum(g.mul(mm, g.exp(g.found)), (1,)))
    assert not plan.over_others


def test_an_output_takes_over_the_product_that_it_is_computed_from():
    g = GraphBuilder()
    a, b, c = g.input(1024, 64), g.input(64, 1024), g.input(1024, 1024)
    plan = plan_of(g, g.mul(g.mm(a, b), c))
    assert plan.over_others == {"mul": "mm"} and plan.memory.size == 0


def test_memory_is_taken_over_only_where_the_whole_need_is_less():
    """A larger intermediate is there at another time: the product's memory costs nothing."""
    g = GraphBuilder()
    a, b, c, x, w = g.input(1024, 64), g.input(64, 1024), g.input(1024, 1024), g.input(4096, 1024), g.input(1024, 8)
    plan = plan_of(g, g.mul(g.mm(a, b), c), g.mm(g.exp(x), w))
    assert not plan.over_others and plan.dedicated == {"mm", "exp"} and plan.memory.size == 0


def test_an_intermediate_is_dedicated_where_the_arena_would_outlive_it():
    """The large result comes when the large intermediate is gone, whose place in an arena would stay taken."""
    g = GraphBuilder()
    early = g.mm(g.exp(g.input(4096, 512)), g.input(512, 8))
    late = g.mm(g.mm(g.input(512, 4096), early), g.input(8, 16384))
    plan = plan_of(g, late)
    assert "exp" in plan.dedicated and plan.memory.size < 1 << 20
    assert "memory of its own" in describe(plan)


def gradients_after_activations(layers: int) -> GraphBuilder:
    """As a backward: large values first, while results come one by one, each when another large value is gone."""
    g = GraphBuilder()
    grad, g.made = g.input(2048, 64), []
    for _ in range(layers):
        x, w = g.input(2048, 64), g.input(64, 64)
        grad = g.mul(g.mm(g.exp(grad), w), x)
        g.made.append(g.mm(g.permute(x, (1, 0)), grad))
    return g


def test_values_apart_are_written_over_each_other():
    """Each value takes over the memory of the one that it is computed from, as it would in an arena."""
    g = gradients_after_activations(6)
    late = g.mm(g.exp(g.made[-1]), g.input(64, 65536))
    plan = plan_of(g, *g.made, late)
    assert plan.memory.size < 1 << 16 and plan.dedicated
    assert any(old in plan.dedicated for old in plan.over_others.values())
    one = 2048 * 64 * 4
    inputs = sum(plan.program.nodes[name].meta.nbytes for name in plan.program.inputs)
    assert plan.needed <= inputs + 64 * 65536 * 4 + 7 * 64 * 64 * 4 < inputs + 64 * 65536 * 4 + 2 * one


def test_the_arena_ends_before_what_follows_takes_memory():
    g = gradients_after_activations(6)
    plan = plan_of(g, *g.made, g.mm(g.made[-1], g.input(64, 65536)))
    assert plan.memory.size >= 1 << 16 and not plan.dedicated and plan.arena_end < len(plan.steps) - 1
    assert "\n    release(workspace)\n" in render_cpp(plan).host_source


def test_a_run_of_kernels_ends_where_memory_would_pile_up():
    """Kernels that each end an input and make a result: as one run, all results would lie beside all inputs."""
    g = GraphBuilder()
    made = [g.exp(g.input(512, 512 + i)) for i in range(6)]
    plan = plan_of(g, *made)
    assert plan.breaks == set(plan.steps[1:])
    assert not schedule(lower(g.build(*made)), Options(), caller_owned=range(6)).breaks


def test_a_result_reuses_the_buffer_of_a_convolution():
    g = GraphBuilder()
    x, w = g.input(2, 8, 16, 16), g.input(16, 8, 3, 3)
    y = g.convolution(x, w, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    plan = plan_of(g, g.exp(y))
    assert plan.over_others == {"exp": "convolution"}


def test_on_a_gpu_the_largest_intermediate_is_dedicated_beside_a_shared_arena():
    """What is scattered into, of which little is left, beside results that come later."""

    def planned(rows: int) -> Schedule:
        g = GraphBuilder()
        x, index, w = g.input(64), g.input(64, dtype=torch.int64), g.input(64, 4096)
        large = g.scatter_add(g.full((rows,), 0.0, torch.float32, torch.device("cpu")), 0, index, x)
        total = g.mul(w, g.broadcast_in_dim(g.sum(large, (0,)), (64, 4096), ()))
        return schedule(lower(g.build(g.mm(g.exp(total), g.permute(w, (1, 0))), g.exp(total))), Options(), None, GPU)

    plan = planned(1 << 24)
    assert "scatter_add" in plan.dedicated and plan.memory.size < 1 << 23
    assert planned(1 << 20).dedicated == set()  # too little


def assignment(
    g: GraphBuilder, *outputs: object, updates: dict[int, str] | None = None, caller_owned: Container[str] = ()
) -> BufferAssignment:
    """What a planner asks, before anything is placed."""
    program = lower(g.build(*outputs))
    real, names = realize(program), Names()
    fused = fuse(program, real, names)
    stored = {name for name in real.stored if name in fused.number_of}
    return _Planner(program, real, fused, stored, {}, {}, caller_owned, CPU, 0).buffers


def test_which_buffers_may_be_in_the_arena() -> None:
    g = GraphBuilder()
    x, w = g.input(64, 64), g.input(64, 64)
    product = g.mm(g.exp(x), w)
    values, _ = g.topk(product, 3, 1, True, True)
    shown = g.sin(g.add(product, 1.0))
    places = assignment(g, shown, g.neg(values), caller_owned={"x0"})
    found = {name for name in places.fused.number_of if places.in_arena(name)}
    assert {"exp", "mm"} <= found and not found & {"x0", "x1", "topk", shown.name, "neg", values.name}
    assert places.inside("exp") == places.outside(shown.name) == 64 * 64 * 4 and places.outside("exp") == 0
    assert (places.outside("x0"), places.outside("x1")) == (0, 64 * 64 * 4), "the caller holds one of them"
    places.dedicated = {"exp"}
    assert not places.in_arena("exp") and places.outside("exp") == 64 * 64 * 4
    places.cover({shown.name: "mm"})
    assert not places.in_arena("mm") and places.outside(shown.name) == 0 and not places.is_fresh("mm")
    places.uncover({shown.name: "mm"})
    assert places.in_arena("mm") and not places.over_others and not places.overwritten


def test_small_buffers_take_whole_lines_of_the_arena() -> None:
    g = GraphBuilder()
    places = assignment(g, g.mm(g.exp(g.input(3, 3)), g.input(3, 3)))
    assert places.inside("exp") == ALIGN and places.nbytes("exp") == 36


def test_only_kernels_that_write_into_a_given_tensor_do() -> None:
    g = GraphBuilder()
    g.build(g.mm(g.input(4, 4), g.input(4, 4)), *g.topk(g.input(4, 4), 2, 1, True, True))
    externs = [node for node in lower(fx.GraphModule({}, g.graph)).nodes.values() if isinstance(node, Extern)]
    assert {node.target.name: writes_into(node) for node in externs} == {"mm": True, "topk": False}


def test_units_that_run_at_the_same_time_are_one() -> None:
    one, other = Unit(3, ("x", "y"), ("a",), 7), Unit(5, ("y", "z"), ("b",), 2)
    both = joined([one, other])
    assert (both.number, both.reads, both.writes, both.position) == (3, ("x", "y", "z"), ("a", "b"), 7)
    assert joined([other]) is other and flat([[one, other], [], [one]]) == [one, other, one]


def test_memory_in_use_is_the_arena_until_its_end_and_all_else() -> None:
    g = GraphBuilder()
    x, w = g.input(64, 64), g.input(64, 64)
    early = g.mm(g.exp(x), w)
    places = assignment(g, early, g.mm(early, w), caller_owned={"x0", "x1"})
    units = list(places_order(places))
    plan = places.plan_arena([[unit] for unit in units])
    size = 64 * 64 * 4
    assert plan.size == size and places.arena_end(units, plan) == 1
    assert places.needs(units, plan) == [size, 2 * size, 2 * size]
    places.dedicated = {"exp"}
    assert places.plan_arena([[unit] for unit in units]).size == 0


def places_order(places: BufferAssignment) -> Iterable[Unit]:
    """exp, mm, mm as units."""
    for number, group in places.fused.groups.items():
        yield Unit(number, ("x0",), tuple(group.members), number)
    for number, node in places.fused.others.items():
        if isinstance(node, Extern):
            yield Unit(number, node.inputs, (node.name,), number)


def test_on_a_gpu_no_buffer_is_dedicated_if_the_arena_stays_as_large() -> None:
    """Three intermediates of one size at a time: the largest is less than half."""
    g = GraphBuilder()
    index, x = g.input(64, dtype=torch.int64), g.input(64)
    zeros = [g.full((1 << 22,), float(i), torch.float32, torch.device("cpu")) for i in range(3)]
    one, two, three = (g.scatter_add(zero, 0, index, x) for zero in zeros)
    made = g.sum(g.mul(g.mul(one, two), three), (0,))
    plan = schedule(lower(g.build(made)), Options(), None, GPU)
    assert plan.dedicated == set() and plan.memory.size >= 3 * (1 << 24)
