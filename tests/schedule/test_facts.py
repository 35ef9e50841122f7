"""smelt/schedule/facts.py: bytes, operations and memory of a schedule, counted by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from smelt.abi.program_facts import ProgramFacts
from smelt.abi.steps import Step, Steps
from smelt.base.options import Options
from smelt.loops.lower import lower
from smelt.schedule.facts import describe_program
from smelt.schedule.machine import CPU, GPU, Machine
from smelt.schedule.plan import schedule
from tests.loops.graphs import GraphBuilder
from tests.loops.symbolic import SymbolicBuilder


def facts(g: GraphBuilder, *outputs: fx.Node, machine: Machine = CPU, updates: Any = None) -> ProgramFacts:
    plan = schedule(lower(g.build(*outputs)), Options(), updates, machine)
    return describe_program("forward", "cpp", plan, Steps(), lambda number: (f"k{number}", f"text {number}"))


def test_a_kernel_reads_and_writes_each_buffer_once() -> None:
    g = GraphBuilder()
    x, w = g.input(8, 16), g.input(16, dtype=torch.bfloat16)
    wide = g.broadcast_in_dim(g.convert(w, torch.float32), (8, 16), (1,))
    found = facts(g, g.add(g.mul(x, wide), x))
    (unit,) = found.units
    assert (unit.kind, unit.shape) == ("kernel", "pointwise over 8 x 16")
    assert unit.reads == ("x0", "x1") and unit.makes == ("add",)
    assert (unit.bytes_read, unit.bytes_written) == (8 * 16 * 4 + 16 * 2, 8 * 16 * 4)
    assert unit.flops == 2 * 8 * 16
    assert found.sources == {unit.name: "text " + unit.name[1:]} and unit.source == unit.name
    assert set(found.types) == {"x0", "x1", "add"} and (found.memory, found.arena) == ([8 * 16 * 4], 0)


def test_a_fold_counts_each_element_that_it_adds() -> None:
    g = GraphBuilder()
    found = facts(g, g.sum(g.input(8, 16), (1,)))
    (unit,) = found.units
    assert (unit.flops, unit.bytes_written, unit.shape) == (8 * 16, 8 * 4, "rows over 8 x 16")
    g = GraphBuilder()
    found = facts(g, g.sum(g.exp(g.mul(g.input(8, 16), 2.0)), (1,)))
    assert found.units[0].flops == 2 * 8 * 16 and not found.symbolic


def test_a_scatter_counts_what_it_writes() -> None:
    g = GraphBuilder()
    x, place, src = g.input(100, 4), g.input(6, 4, dtype=torch.int64), g.input(6, 4)
    (unit,) = facts(g, g.scatter_add(x, 0, place, src)).units
    assert unit.flops == 6 * 4 and unit.shape == "scatter over 6 x 4"
    assert unit.bytes_read == 100 * 4 * 4 + 6 * 4 * (8 + 4) and unit.bytes_written == 100 * 4 * 4


def test_numbers_have_loops_of_one() -> None:
    g = GraphBuilder()
    (unit,) = facts(g, g.exp(g.input(1, 1))).units
    assert (unit.shape, unit.bytes_read, unit.flops) == ("pointwise over 1", 4, 1)


def test_products_and_convolutions_take_two_operations_for_each_term() -> None:
    g = GraphBuilder()
    a, b, batch, more = g.input(3, 5), g.input(5, 7), g.input(2, 3, 5), g.input(2, 5, 4)
    image, kernel = g.input(2, 6, 9, 9), g.input(4, 6, 3, 3)
    made = g.mm(a, b), g.bmm(batch, more), g.convolution(image, kernel, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    found = {unit.name: unit for unit in facts(g, *made).units}
    assert found["mm"].flops == 2 * 3 * 5 * 7 and found["bmm"].flops == 2 * 2 * 3 * 5 * 4
    assert found["convolution"].flops == 2 * (2 * 4 * 7 * 7) * (6 * 3 * 3)
    mm = found["mm"]
    assert (mm.kind, mm.source, mm.shape) == ("library call", "", "") and mm.makes == ("mm",)
    assert (mm.reads, mm.bytes_read, mm.bytes_written) == (("x0", "x1"), 4 * (15 + 35), 4 * 21)


def test_a_call_reads_the_base_of_a_view_and_writes_all_its_results() -> None:
    g = GraphBuilder()
    x, w = g.input(8, 16), g.input(32, 16)
    values, places = g.topk(x, 3, 1, True, True)
    found = {unit.name: unit for unit in facts(g, g.mm(x, g.permute(w, (1, 0))), values, places).units}
    assert found["mm"].reads == ("x0", "x1") and found["mm"].flops == 2 * 8 * 32 * 16
    topk = found["topk"]
    assert (topk.flops, topk.bytes_read, topk.bytes_written) == (0, 8 * 16 * 4, 8 * 3 * (4 + 8))


def test_a_product_that_a_kernel_may_compute_is_described_as_one() -> None:
    g = GraphBuilder()
    a, b, bias = g.input(256, 64), g.input(64, 128), g.input(128)
    made = g.add(g.mm(a, b), g.broadcast_in_dim(bias, (256, 128), (1,)))
    plan = schedule(lower(g.build(made)), Options(gemm="template"), None, GPU)
    assert plan.products
    (unit,) = describe_program("f", "triton", plan, Steps(), lambda number: ("k", "")).units
    assert (unit.kind, unit.shape, unit.source) == ("product", "", "")
    assert unit.flops == 2 * 256 * 64 * 128 + 256 * 128
    assert unit.makes == ("mm", "add") and unit.bytes_written == 2 * 256 * 128 * 4, "as around the library's call"
    assert set(unit.reads) == {"x0", "x1", "x2"} and unit.bytes_read == 4 * (256 * 64 + 64 * 128 + 128)


def test_live_memory_counts_only_values_still_needed() -> None:
    """Three products one after the other, of which the last is kept; then what is computed from an early one."""
    g = GraphBuilder()
    x, w = g.input(16, 16), g.input(16, 16)
    one = g.mm(x, w)
    two = g.mm(one, w)
    three = g.mm(two, w)
    size = 16 * 16 * 4
    assert facts(g, three).memory == [size, 2 * size, 2 * size]
    g = GraphBuilder()
    x, w = g.input(16, 16), g.input(16, 16)
    one = g.mm(x, w)
    assert facts(g, one, g.mm(g.mm(one, w), w)).memory == [size, 2 * size, 3 * size]


def test_new_values_of_inputs_take_no_memory() -> None:
    g = GraphBuilder()
    x = g.input(64)
    new = g.mul(x, 0.5)
    assert facts(g, new, updates={0: "x0"}).memory == [0] and facts(g, new).memory == [64 * 4]


def test_a_value_over_another_takes_its_memory() -> None:
    g = GraphBuilder()
    a, b, c = g.input(1024, 64), g.input(64, 1024), g.input(1024, 1024)
    plan = schedule(lower(g.build(g.mul(g.mm(a, b), c))), Options())
    assert plan.over_others == {"mul": "mm"}
    found = describe_program("f", "cpp", plan, Steps(), lambda number: ("k", ""))
    assert found.memory == [1024 * 1024 * 4] * 2


def test_sizes_that_change_are_those_of_the_first_call() -> None:
    g = SymbolicBuilder(6)
    (n,) = g.symbols
    found = facts(g, g.exp(g.input(n, 4)))
    (unit,) = found.units
    assert found.symbolic and (unit.bytes_read, unit.flops, found.memory) == (6 * 4 * 4, 6 * 4, [6 * 4 * 4])


def test_steps_that_codegen_wrote_are_taken_over() -> None:
    g = GraphBuilder()
    x = g.input(4)
    made = g.exp(x)
    made.meta |= {"line": "a.py:1", "from": "exp_3"}
    plan = schedule(lower(g.build(made)), Options())
    steps = Steps()
    assert describe_program("f", "cpp", plan, steps, lambda number: ("k", "")).units[0].step.origins[0].name == "exp_3"
    steps.of["exp"] = own = Step(())
    assert describe_program("f", "cpp", plan, steps, lambda number: ("k", "")).units[0].step is own
