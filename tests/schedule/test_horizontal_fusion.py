"""Kernels that share a launch: what may run at the same time, in which order, and what that costs in memory."""

from __future__ import annotations

import random

import pytest
import torch

from smelt.base.options import Options
from smelt.loops.lower import lower
from smelt.schedule.describe import describe
from smelt.schedule.horizontal_fusion import Mobile, Profile, gather
from smelt.schedule.machine import CPU, GPU
from smelt.schedule.order import Unit
from smelt.schedule.plan import Schedule, schedule
from tests.loops.graphs import GraphBuilder
from tests.loops.symbolic import SymbolicBuilder

MIB = 1 << 20


def live(steps: list[list[Unit]], size: dict[str, int], kept: set[str]) -> int:
    """Most bytes in use where the units of a step run at the same time."""
    last = {name: at for at, step in enumerate(steps) for unit in step for name in (*unit.writes, *unit.reads)}
    last |= dict.fromkeys(kept & last.keys(), len(steps))
    written = {name for step in steps for unit in step for name in unit.writes}
    now = sum(size[name] for name in last if name not in written)
    most = now
    for at, step in enumerate(steps):
        now += sum(size[name] for unit in step for name in unit.writes)
        most = max(most, now)
        now -= sum(size[name] for name in last if last[name] == at)
    return most


@pytest.mark.parametrize("seed", range(40))
def test_order_and_memory_of_random_units(seed: int) -> None:
    draw = random.Random(seed)
    names = [f"input{i}" for i in range(4)]
    size = {name: draw.choice([0, 1, 5]) * MIB for name in names}
    units, mobile = [], {}
    for number in range(60):
        reads = tuple(dict.fromkeys(draw.choices(names[-16:], k=draw.randint(0, 2))))
        units.append(Unit(number, reads, (f"v{number}",), number))
        names.append(f"v{number}")
        size[f"v{number}"] = draw.choice([0, 1, 2, 9]) * MIB
        if draw.random() < 0.6:
            mobile[number] = Mobile(
                draw.choice([1, GPU.bundling.moved_bytes, GPU.bundling.moved_bytes + 1]), draw.choice("ab")
            )
    after = {number: {draw.randrange(number)} for number in draw.sample(range(1, 60), 5)}
    kept = set(draw.sample(names, 10))
    profile = Profile(units, size.__getitem__, kept, {})
    steps = gather(units, mobile, after, [Profile(units, lambda _: 0, kept, {}), profile])
    at = {unit.number: i for i, step in enumerate(steps) for unit in step}
    assert sorted(at) == list(range(60))
    assert all(len(step) == 1 or mobile.keys() >= {unit.number for unit in step} for step in steps)
    for unit in units:
        sources = {int(name[1:]) for name in unit.reads if name.startswith("v")} | after.get(unit.number, set())
        assert all(at[source] < at[unit.number] for source in sources)
    fixed = [unit.number for step in steps for unit in step if unit.number not in mobile]
    assert fixed == sorted(fixed)
    assert live([[unit] for unit in units], size, kept) == profile.highest
    assert live(steps, size, kept) <= profile.most
    assert len(steps) < 55


def test_kernels_without_readers_are_bundled_at_the_end() -> None:
    units = [Unit(0, ("x",), ("a",), 0), Unit(1, ("x",), ("b",), 1), Unit(2, ("b",), ("c",), 2)]
    units += [Unit(3, ("x",), ("d",), 3), Unit(4, ("c",), ("e",), 4)]
    mobile = {0: Mobile(8, "cast"), 2: Mobile(8, "scale"), 3: Mobile(8, "cast")}
    steps = gather(units, mobile, {}, [Profile(units, lambda _: 8, set(), {})])
    assert [[unit.number for unit in step] for step in steps] == [[1], [2], [4], [0, 3]]


def test_large_kernels_keep_their_position() -> None:
    units = [Unit(n, ("x",), (f"v{n}",), n) for n in range(4)]
    mobile = {n: Mobile(GPU.bundling.moved_bytes + 1, "cast") for n in (0, 1, 3)}
    steps = gather(units, mobile, {}, [Profile(units, lambda _: 8, set(), {})])
    assert [[unit.number for unit in step] for step in steps] == [[0, 1], [2], [3]]


def casts(g: GraphBuilder, *sizes: int) -> list:
    return [g.convert(g.input(size), torch.bfloat16) for size in sizes]


def plan_of(g: GraphBuilder, *outputs: object, updates: dict[int, str] | None = None) -> Schedule:
    return schedule(lower(g.build(*outputs)), Options(), updates, GPU)


def members(plan: Schedule) -> list[list[str]]:
    return [[name for number in bundle for name in plan.groups[number].members] for bundle in plan.bundles]


def test_casts_are_a_bundle_on_a_gpu_and_none_on_a_cpu() -> None:
    g = GraphBuilder()
    gm = g.build(*casts(g, 8, 16, 24))
    assert members(schedule(lower(gm), Options(), None, GPU)) == [["convert", "convert_1", "convert_2"]]
    assert schedule(lower(gm), Options(), None, CPU).bundles == []


def test_bundles_are_described() -> None:
    g = GraphBuilder()
    assert "the next 3 kernels need nothing of each other" in describe(plan_of(g, *casts(g, 8, 16, 24)))


def test_a_kernel_and_what_reads_its_result_are_apart() -> None:
    g = GraphBuilder()
    costly = g.erf(g.exp(g.input(64)))
    plan = plan_of(g, costly, g.erf(g.exp(g.broadcast_in_dim(costly, (9, 64), (1,)))))
    assert len(plan.groups) == 2 and plan.bundles == []


def test_a_new_value_over_an_input_and_another_reader_are_apart() -> None:
    g = GraphBuilder()
    x, y = g.input(64), g.input(9, 64)
    plan = plan_of(g, g.add(x, 1.0), g.add(g.broadcast_in_dim(x, (9, 64), (1,)), y), updates={0: "x0"})
    assert plan.over_inputs == {"add": "x0"} and plan.bundles == []
    assert [list(plan.groups[number].members) for number in plan.steps] == [["add_1"], ["add"]]


def test_updates_of_inputs_are_one_bundle() -> None:
    g = GraphBuilder()
    pairs = [(g.input(size), g.input(size)) for size in (8, 100, 3)]
    plan = plan_of(g, *(g.sub(p, grad) for p, grad in pairs), updates={0: "x0", 1: "x2", 2: "x4"})
    assert len(plan.over_inputs) == 3 and members(plan) == [["sub", "sub_1", "sub_2"]]


def test_a_buffer_that_two_members_read_is_left_alone() -> None:
    g = GraphBuilder()
    x = g.input(64, 64)
    product = g.mm(x, x)
    plan = plan_of(g, g.mm(g.exp(product), g.exp(g.flip(product, (0, 1)))))
    assert members(plan) == [["exp", "exp_1"]]
    places = [plan.memory.offsets[name] for name in ("mm", "exp", "exp_1")]
    assert len(set(places)) == 3 and not plan.memory.in_place


def test_temporaries_are_not_all_made_at_once() -> None:
    g = GraphBuilder()
    x = g.input(512, 512, dtype=torch.bfloat16)
    for _ in range(24):
        x = g.mm(x, g.convert(g.input(512, 512), torch.bfloat16))
    alone = schedule(lower(gm := g.build(x)), Options(), None, CPU).memory.size
    plan = schedule(lower(gm), Options(), None, GPU)
    assert plan.memory.size <= alone + 4 * MIB < plan.memory.naive
    assert plan.bundles


def test_symbolic_sizes_stay_alone() -> None:
    g = SymbolicBuilder(8)
    (n,) = g.symbols
    fixed = casts(g, 8, 16)
    symbolic = [g.convert(g.input(n), torch.bfloat16), g.convert(g.input(n * 2), torch.bfloat16)]
    plan = schedule(lower(g.build(*fixed, *symbolic)), Options(), None, GPU)
    assert members(plan) == [["convert", "convert_1"]]
