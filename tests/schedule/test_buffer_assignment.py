"""smelt/schedule/buffer_assignment.py: what lies in the arena, in the memory of others, or apart."""

from __future__ import annotations

from dataclasses import replace

import torch

from smelt.base.options import Options
from smelt.codegen.cpp.host import render_cpp
from smelt.loops.lower import lower
from smelt.schedule.describe import describe
from smelt.schedule.machine import CPU, GPU
from smelt.schedule.plan import Schedule, schedule
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
    assert schedule(lower(g.build(g.exp(y))), Options(), held=range(2)).needed <= plan.memory.size


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
    assert not plan.over_others and plan.apart == {"mm", "exp"} and plan.memory.size == 0


def test_an_intermediate_lies_apart_where_the_arena_would_outlast_it():
    """The large result comes when the large intermediate is gone, whose place in an arena would stay taken."""
    g = GraphBuilder()
    early = g.mm(g.exp(g.input(4096, 512)), g.input(512, 8))
    late = g.mm(g.mm(g.input(512, 4096), early), g.input(8, 16384))
    plan = plan_of(g, late)
    assert "exp" in plan.apart and plan.memory.size < 1 << 20
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
    assert plan.memory.size < 1 << 16 and plan.apart
    assert any(old in plan.apart for old in plan.over_others.values())
    one = 2048 * 64 * 4
    inputs = sum(plan.program.nodes[name].meta.nbytes for name in plan.program.inputs)
    assert plan.needed <= inputs + 64 * 65536 * 4 + 7 * 64 * 64 * 4 < inputs + 64 * 65536 * 4 + 2 * one


def test_the_arena_ends_before_what_follows_takes_memory():
    g = gradients_after_activations(6)
    plan = plan_of(g, *g.made, g.mm(g.made[-1], g.input(64, 65536)))
    assert plan.memory.size >= 1 << 16 and not plan.apart and plan.arena_end < len(plan.steps) - 1
    assert "\n    release(workspace)\n" in render_cpp(plan).host_source


def test_a_run_of_kernels_ends_where_memory_would_pile_up():
    """Kernels that each end an input and make a result: as one run, all results would lie beside all inputs."""
    g = GraphBuilder()
    made = [g.exp(g.input(512, 512 + i)) for i in range(6)]
    plan = plan_of(g, *made)
    assert plan.breaks == set(plan.steps[1:])
    assert not schedule(lower(g.build(*made)), Options(), held=range(6)).breaks


def test_a_result_lies_where_a_convolutions_did():
    g = GraphBuilder()
    x, w = g.input(2, 8, 16, 16), g.input(16, 8, 3, 3)
    y = g.convolution(x, w, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    plan = plan_of(g, g.exp(y))
    assert plan.over_others == {"exp": "convolution"}


def test_on_a_gpu_the_largest_intermediate_lies_outside_of_an_arena_that_is_shared_and_stays():
    """What is scattered into, of which little is left, beside results that come later."""

    def planned(rows: int) -> Schedule:
        g = GraphBuilder()
        x, index, w = g.input(64), g.input(64, dtype=torch.int64), g.input(64, 4096)
        large = g.scatter_add(g.full((rows,), 0.0, torch.float32, torch.device("cpu")), 0, index, x)
        total = g.mul(w, g.broadcast_in_dim(g.sum(large, (0,)), (64, 4096), ()))
        return schedule(lower(g.build(g.mm(g.exp(total), g.permute(w, (1, 0))), g.exp(total))), Options(), None, GPU)

    plan = planned(1 << 24)
    assert "scatter_add" in plan.apart and plan.memory.size < 1 << 23
    assert planned(1 << 20).apart == set()  # too little
