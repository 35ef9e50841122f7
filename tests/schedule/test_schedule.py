"""Buffers, fusion and its refusals, order, and the memory plan."""

import random
from dataclasses import replace

import torch

from smelt.base.options import Options
from smelt.codegen.cpp.host import render_cpp
from smelt.loops.lower import lower
from smelt.schedule.align import align
from smelt.schedule.dependencies import Names
from smelt.schedule.describe import describe
from smelt.schedule.group import Place, Role
from smelt.schedule.machine import CPU, GPU
from smelt.schedule.memory import ALIGN, plan_memory
from smelt.schedule.order import Unit, order_units
from smelt.schedule.plan import Schedule, schedule
from smelt.schedule.realize import realize
from smelt.schedule.split import part_size, rows_per_part
from smelt.shapes.expr import Var
from tests.loops import graphs
from tests.loops.graphs import GraphBuilder
from tests.loops.symbolic import SymbolicBuilder, at_sizes


def plan_of(g: GraphBuilder, *outputs: object) -> Schedule:
    return schedule(lower(g.build(*outputs)), Options())


def test_pointwise_chains_have_no_buffers():
    g = GraphBuilder()
    x = g.input(8, 16)
    plan = plan_of(g, g.exp(g.mul(g.add(x, 1.0), 2.0)))
    (group,) = plan.groups.values()
    assert len(group.members) == 1 and plan.memory.size == 0


def test_costly_shared_values_are_stored_and_cheap_ones_repeated():
    g = GraphBuilder()
    x, w = g.input(64, 64), g.input(64, 64)
    costly, cheap = g.erf(g.exp(x)), g.neg(x)
    real = realize(lower(g.build(g.mm(costly, w), g.mul(costly, 2.0), g.mul(cheap, 2.0), g.sum(cheap, (0,)))))
    assert "erf" in real.stored and "neg" not in real.stored


def test_externs_read_strided_views():
    g = GraphBuilder()
    x, w = g.input(8, 16), g.input(32, 16)
    real = realize(lower(g.build(g.mm(x, g.permute(w, (1, 0))))))
    (view,) = real.views.values()
    assert (view.base, view.shape, view.stride) == ("x1", (16, 32), (1, 16))


def test_externs_share_the_buffer_that_their_views_make_up():
    """Queries, keys and values of one product are read where it lies; a lone part of it is copied."""
    for parts in (1, 3):
        g = GraphBuilder()
        x, w = g.input(8, 16), g.input(16, 16)
        whole = g.exp(x)
        slices = [g.slice(whole, (0, 4 * i), (8, 4 * i + 4), (1, 1)) for i in range(parts)]
        rows = g.slice(w, (0, 0), (4, 16), (1, 1))
        extra = [g.slice(whole, (0, 12), (8, 16), (1, 1))] if parts == 3 else []
        real = realize(lower(g.build(*[g.mm(part, rows) for part in (*slices, *extra)])))
        assert ("exp" in real.stored) == (parts == 3)
        assert sum(view.base == "exp" for view in real.views.values()) == (4 if parts == 3 else 0)


def test_what_waits_for_a_value_is_in_no_kernel_before_it():
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


def test_a_reduction_and_its_users_share_rows():
    g = GraphBuilder()
    x = g.input(128, 256)
    plan = plan_of(g, graphs.softmax(g, x, 1))
    (group,) = plan.groups.values()
    assert [v.size for v in group.variables(Role.KEPT)] == [128]
    assert [v.size for v in group.variables(Role.INNER)] == [256]
    assert plan.stored & set(group.members) == {"div"}


def test_column_reductions_join_the_row_kernel_through_parts():
    g = GraphBuilder()
    x, grad, w, mean, rstd = g.input(512, 96), g.input(512, 96), g.input(96), g.input(512), g.input(512)
    plan = plan_of(g, *graphs.layer_norm_backward(g, grad, x, mean, rstd, w))
    groups = [group for group in plan.groups.values() if group.has(Place.ROW)]
    assert len(groups) == 1 and groups[0].has(Place.COLUMN)


def test_refusals_speak():
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


def test_align_splits_what_differs():
    names = Names()
    batch, row, width = Var("b", 4), Var("s", 8), Var("w", 12)
    both, heads, depth = Var("bs", 32), Var("h", 3), Var("d", 4)
    found = align([(1, width), (12, row), (96, batch)], [(1, depth), (4, heads), (12, both)], names)
    assert not isinstance(found, str)
    assert [p.size for p in found.left[width]] == [4, 3]
    assert [p.size for p in found.right[both]] == [8, 4]
    assert isinstance(align([(1, width)], [(2, width)], names), str)


def test_of_a_value_and_its_wider_copy_the_narrow_one_is_stored():
    g = GraphBuilder()
    x, y = g.input(512, 64, dtype=torch.bfloat16), g.input(512, 64, dtype=torch.bfloat16)
    narrow = g.convert(g.exp(g.mul(g.convert(x, torch.float32), g.convert(y, torch.float32))), torch.bfloat16)
    wide = g.convert(narrow, torch.float32)
    total = g.sum(wide, (0,))
    real = realize(lower(g.build(g.sub(wide, g.broadcast_in_dim(total, (512, 64), (1,))))))
    assert narrow.name in real.stored and wide.name not in real.stored


def test_a_gpu_computes_again_what_reads_little():
    g = GraphBuilder()
    x, mask = g.input(512, 64), g.input(512, 64, dtype=torch.bool)
    kept = g.where(mask, x, 0.0)
    program = lower(g.build(g.sub(kept, g.broadcast_in_dim(g.sum(kept, (0,)), (512, 64), (1,)))))
    assert kept.name in realize(program, replace(CPU, read_again=1.0)).stored
    assert kept.name not in realize(program, GPU).stored


def test_parts_divide_without_remainder():
    for sizes in ([4096], [8, 512], [4, 56, 56], [788], [50257]):
        part = part_size(sizes, 16, 256)
        total = 1
        for size in sizes:
            total *= size
        assert part is None or total % part == 0


def test_order_keeps_operands_first_and_frees_memory_early():
    units = [
        Unit(0, ("x",), ("big1",), 0),
        Unit(1, ("x",), ("big2",), 1),
        Unit(2, ("big1",), ("small1",), 2),
        Unit(3, ("big2",), ("small2",), 3),
    ]
    size = {"x": 0, "big1": 100, "big2": 100, "small1": 1, "small2": 1}.__getitem__
    order = [u.number for u in order_units(units, size, {"small1", "small2"})]
    assert order == [0, 2, 1, 3]


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


def test_memory_plan_never_overlaps_live_buffers():
    rng = random.Random(0)
    for _ in range(50):
        count = rng.randint(2, 25)
        units, sizes = [], {}
        for i in range(count):
            reads = tuple({f"b{rng.randrange(i)}" for _ in range(rng.randint(1, 3))}) if i else ()
            units.append(Unit(i, reads, (f"b{i}",), i))
            sizes[f"b{i}"] = rng.randint(1, 1000)
        plan = plan_memory(units, sizes, lambda number, out, source: rng.random() < 0.5)
        last = {n: s for s, u in enumerate(units) for n in (*u.reads, *u.writes)}
        for i, a in enumerate(sizes):
            assert plan.offsets[a] % ALIGN == 0 and plan.offsets[a] + sizes[a] <= plan.size
            for j, b in enumerate(sizes):
                if i < j <= last[a] and not (plan.in_place.get(b) == a and j == last[a]):
                    apart = (
                        plan.offsets[a] + sizes[a] <= plan.offsets[b] or plan.offsets[b] + sizes[b] <= plan.offsets[a]
                    )
                    assert apart, (a, b)


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


def test_bool_and_int_layouts_are_kept():
    g = GraphBuilder()
    x = g.input(4, 6, stride=(1, 4))
    plan = plan_of(g, g.gt(x, 0.0))
    assert plan.strides["gt"] == (1, 4)
    assert plan.program.nodes["gt"].meta.dtype is torch.bool


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


def test_parts_of_a_symbolic_size():
    g = SymbolicBuilder(64)
    (n,) = g.symbols
    assert rows_per_part(n, 50) == 32
    assert rows_per_part(n * 48, 50) == 48
    assert rows_per_part(7, 1) == 1


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


def test_an_input_that_is_read_at_other_places_is_not_written_over():
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


def test_on_a_gpu_a_value_lies_over_one_that_it_is_computed_from():
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


def test_small_sums_stay_one_kernel():
    g = GraphBuilder()
    products = [g.mm(g.input(16, 64), g.input(64, 32)) for _ in range(12)]
    total = products[0]
    for product in products[1:]:
        total = g.add(total, product)
    assert len(plan_of(g, total).groups) == 1


def test_sums_are_split_into_parts_of_one_row():
    """As channels of images in rows of channels: a row of 149 pixels is all that one part may have."""
    g = GraphBuilder()
    x = g.input(128, 32, 149, 149, stride=(149 * 149 * 32, 1, 149 * 32, 32))
    plan = schedule(lower(g.build(g.sum(g.mul(x, x), (0, 2, 3)))), Options(), None, GPU)
    assert len(plan.groups) >= 2


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
