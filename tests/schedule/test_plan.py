"""smelt/schedule/plan.py: whole schedules, from loops to kernels in order."""

import itertools
from dataclasses import replace

import pytest
import torch

from smelt.base.options import Options
from smelt.loops.ir import Constant, Input, Item, Scatter
from smelt.loops.lower import lower
from smelt.schedule.machine import CPU, GPU, Machine
from smelt.schedule.plan import Schedule, schedule
from tests.loops.graphs import GraphBuilder, softmax
from tests.loops.random_graphs import RandomGraph


def plan_of(g: GraphBuilder, *outputs: object) -> Schedule:
    return schedule(lower(g.build(*outputs)), Options())


def test_pointwise_chains_have_no_buffers():
    g = GraphBuilder()
    x = g.input(8, 16)
    plan = plan_of(g, g.exp(g.mul(g.add(x, 1.0), 2.0)))
    (group,) = plan.groups.values()
    assert len(group.members) == 1 and plan.memory.size == 0


def test_node_that_waits_for_a_value_is_not_fused_into_an_earlier_kernel():
    for machine in (CPU, GPU):
        for after in (None, "mm", "neg"):
            g = GraphBuilder()
            x, w, v = g.input(64, 64), g.input(64, 64), g.input(64, 64)
            first = g.exp(x)
            turn = g.neg(g.mm(first, w))  # "neg" is computed inside of the kernel that reads it
            again = g.add(g.exp(x), v)
            again.meta["after"] = after
            program = lower(g.build(g.mm(again, w), g.mul(turn, v), first))
            assert program.after == ({again.name: after} if after else {})
            plan = schedule(program, Options(), None, machine)
            (early,) = (step for step, n in enumerate(plan.steps) if n in plan.groups and first.name in plan.made_by(n))
            (late,) = (step for step, n in enumerate(plan.steps) if n in plan.groups and "add" in plan.made_by(n))
            product = next(step for step, n in enumerate(plan.steps) if "mm" in _made_by(plan, n))
            assert (late > product > early) == (after is not None), (machine, after)
            assert (late == early) == (after is None)


def _made_by(plan: Schedule, number: int) -> list[str]:
    return [plan.externs[number].name] if number in plan.externs else plan.made_by(number)


def test_a_kernel_comes_with_its_first_member():
    """The last value shares the kernel of the first, which all others wait for: these are not made before it."""
    g = GraphBuilder()
    x = g.input(64, 64)
    y = g.exp(x)
    for _ in range(3):
        y = g.mm(y, g.exp(g.input(64, 64)))
    plan = plan_of(g, y, g.neg(x))
    first, *_ = plan.steps
    assert list(plan.groups[first].members) == ["exp", "neg"]
    made = [plan.groups[n].members.keys() if n in plan.groups else plan.externs[n].name for n in plan.steps]
    assert [m for m in made if isinstance(m, str)] == ["mm", "mm_1", "mm_2"]
    assert [at for at, m in enumerate(made) if isinstance(m, str)] == [2, 4, 6]


def test_bool_and_int_layouts_are_kept():
    g = GraphBuilder()
    x = g.input(4, 6, stride=(1, 4))
    plan = plan_of(g, g.gt(x, 0.0))
    assert plan.strides["gt"] == (1, 4)
    assert plan.program.nodes["gt"].meta.dtype is torch.bool


def updates_of(g: GraphBuilder, *outputs: object, updates: dict[int, str]) -> dict[str, str]:
    return schedule(lower(g.build(*outputs)), Options(), updates).over_inputs


def test_a_new_value_is_written_over_its_input():
    g = GraphBuilder()
    x, y = g.input(64), g.input(64)
    assert updates_of(g, g.add(x, y), updates={0: "x0"}) == {"add": "x0"}


def test_a_new_value_waits_for_other_readers_of_the_old_one():
    g = GraphBuilder()
    x, w = g.input(16, 16), g.input(16, 16)
    new = g.add(x, w)
    plan = schedule(lower(g.build(new, g.mm(x, w))), Options(), {0: "x0"})
    assert plan.over_inputs == {"add": "x0"}
    assert plan.steps[-1] in plan.groups


def test_an_input_that_is_read_at_other_indices_is_not_overwritten():
    g = GraphBuilder()
    x = g.input(16, 16)
    assert updates_of(g, g.add(x, g.permute(x, (1, 0))), updates={0: "x0"}) == {}


def test_an_old_value_that_is_returned_is_not_written_over():
    g = GraphBuilder()
    x = g.input(16)
    assert updates_of(g, g.add(x, 1.0), x, updates={0: "x0"}) == {}


def test_a_value_that_the_new_one_needs_and_that_needs_the_old_one_is_no_cycle():
    g = GraphBuilder()
    x, w = g.input(16, 16), g.input(16, 16)
    new = g.add(x, 1.0)
    assert updates_of(g, new, g.add(g.mm(new, w), x), updates={0: "x0"}) == {}


def test_on_a_gpu_a_value_overwrites_its_operand():
    g = GraphBuilder()
    x, w = g.input(64, 64), g.input(64, 64)
    grad = g.mm(w, g.input(64, 64))
    first, second = g.exp(x), g.mul(grad, x)
    gm = g.build(g.mm(second, g.mm(first, w)))
    for machine in (GPU, replace(GPU, overwrites_unused=True)):
        plan = schedule(lower(gm), Options(), None, machine)
        assert len(plan.groups) == 1
        wanted = first if machine.overwrites_unused else second
        assert plan.memory.in_place == {wanted.name: grad.name}


def test_large_gradients_of_one_weight_are_added_up_as_they_come():
    """They do not all lie in memory until the last one is there."""
    size = 512 * 1024 * 4
    for machine in (CPU, GPU):
        for count, most in ((3, 4), (12, 6)):
            g = GraphBuilder()
            total = None
            for _ in range(count):
                product = g.mm(g.input(512, 64), g.input(64, 1024))
                total = product if total is None else g.add(total, product)
            plan = schedule(lower(g.build(total)), Options(), None, machine)
            assert plan.memory.size <= most * size, (machine, count)


def reads_and_writes(plan: Schedule, number: int) -> tuple[set[str], set[str]]:
    """Of a unit, from what its kernels access and its call is given."""
    groups = [
        plan.groups[n]
        for n in (plan.products[number].group_numbers if number in plan.products else [number])
        if n in plan.groups
    ]
    writes = {name for group in groups for name in group.members if name in plan.stored}
    reads = {name for group in groups for name in group.accesses} - {n for g in groups for n in g.members}
    if number in plan.externs:
        extern = plan.externs[number]
        reads |= {plan.buffer_of(name) for name in extern.inputs}
        items = {n.name for n in plan.program.nodes.values() if isinstance(n, Item) and n.inputs == (extern.name,)}
        writes |= items if isinstance(extern.meta, tuple) else {extern.name}
    return reads - writes, writes


@pytest.mark.parametrize("machine", [CPU, GPU, replace(GPU, takes_over=True), replace(CPU, bundles=True)])
@pytest.mark.parametrize("seed", range(6))
def test_whole_schedules(seed: int, machine: Machine) -> None:
    """Every buffer is written once and before it is read, and its memory is nobody else's until its last use."""
    graph = RandomGraph(300 + seed)
    graph.pool.append(graph.g.mm(graph.g.input(24, 16), graph.g.exp(graph.g.input(16, 8))))
    plan = schedule(lower(graph.build(24)), Options(), {}, machine)
    units = [reads_and_writes(plan, number) for number in plan.steps]
    there = {name for name, node in plan.program.nodes.items() if isinstance(node, (Input, Constant))}
    for reads, writes in units:
        assert reads <= there and not writes & there
        there |= writes
    outputs = {output.name for output in plan.program.outputs}
    assert outputs <= there and plan.stored <= there
    uses: dict[str, list[int]] = {}
    for step, (reads, writes) in enumerate(units):
        for name in reads | writes:
            uses.setdefault(name, []).append(step)
    assert all(plan.last_use[name] == steps[-1] for name, steps in uses.items())
    assert not plan.memory.offsets.keys() & outputs and not plan.dedicated & outputs
    unit_steps = {n: at for at, bundle in enumerate(plan.bundles) for n in bundle}
    for one, other in itertools.combinations(plan.memory.offsets, 2):
        first, second = sorted((one, other), key=lambda name: uses[name][0])
        begin, end = plan.memory.offsets[first], plan.memory.offsets[first] + plan.program.nodes[first].meta.nbytes
        after, last = plan.memory.offsets[second], plan.memory.offsets[second] + plan.program.nodes[second].meta.nbytes
        if end <= after or last <= begin:
            continue
        ended = uses[first][-1] < uses[second][0]
        assert ended or plan.memory.in_place.get(second) == first and uses[first][-1] == uses[second][0]
        if ended:
            writer, reader = plan.steps[uses[second][0]], plan.steps[uses[first][-1]]
            assert writer not in unit_steps or unit_steps[writer] != unit_steps.get(reader), "run at the same time"


def test_arguments_of_calls_are_found_in_the_buffers_that_they_view() -> None:
    g = GraphBuilder()
    x, w = g.input(8, 16), g.input(4, 16)
    plan = plan_of(g, g.mm(x, g.permute(w, (1, 0))))
    assert plan.buffer_of("permute") == "x1" and plan.buffer_of("x0") == "x0"
    assert plan.arena_end == -1 and plan.steps == list(plan.externs)


def test_a_scatter_starts_in_the_memory_of_its_base() -> None:
    def planned(updates: dict[int, str]) -> tuple[Schedule, Scatter]:
        g = GraphBuilder()
        x, place, src = g.input(9, 4), g.input(6, 4, dtype=torch.int64), g.input(6, 4)
        plan = schedule(lower(g.build(g.scatter_add(x, 0, place, src))), Options(), updates)
        node = plan.program.nodes["scatter_add"]
        assert isinstance(node, Scatter)
        return plan, node

    for updates in ({}, {0: "x0"}):
        plan, node = planned(updates)
        assert plan.starts_in_place(node) == bool(updates) == bool(plan.over_inputs)


def test_only_what_others_read_or_the_caller_gets_is_stored() -> None:
    g = GraphBuilder()
    x, w = g.input(64, 64), g.input(64, 64)
    rows = softmax(g, x, 1)
    plan = plan_of(g, g.mm(rows, w), g.sum(g.tanh(g.mm(w, x)), (0,)))
    made = {name for group in plan.groups.values() for name in group.members}
    assert {"amax", "div"} <= made and "amax" not in plan.stored and "div" in plan.stored


def test_a_new_value_waits_only_for_what_may_refuse_the_call() -> None:
    g = GraphBuilder()
    x, table, place = g.input(64), g.input(9), g.input(6, dtype=torch.int64)
    a, b = g.input(8, 8), g.input(8, 8)
    new, found = g.mul(x, 0.5), g.gather(table, 0, place)
    program = lower(g.build(new, found, g.exp(g.mm(a, b))))
    plan = schedule(program, Options(), {0: "x0"})
    assert plan.over_inputs == {"mul": "x0"}
    steps = {name: at for at, n in enumerate(plan.steps) if n in plan.groups for name in plan.made_by(n)}
    assert steps["gather"] < steps["mul"] < steps["exp"]
