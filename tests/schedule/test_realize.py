"""smelt/schedule/realize.py: which values have buffers, and which views stand for copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import fx

from smelt.loops.lower import lower
from smelt.schedule.machine import CPU, GPU, Realization
from smelt.schedule.realize import StridedView, base_of_views, realize, strided
from smelt.shapes.expr import Var, variable
from tests.loops.graphs import GraphBuilder, run_eager


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
    assert kept.name in realize(program, replace(CPU, max_read_ratio=1.0)).stored
    assert kept.name not in realize(program, GPU).stored


MATRICES: dict[str, tuple[Callable[[GraphBuilder], fx.Node], bool]] = {
    "turned": (lambda g: g.permute(g.input(8, 16), (1, 0)), True),
    "part of the rows": (lambda g: g.slice(g.input(32, 8), (3, 0), (19, 8), (1, 1)), True),
    "part of the columns": (lambda g: g.slice(g.input(16, 20), (0, 5), (16, 13), (1, 1)), True),
    "every second column": (lambda g: g.slice(g.input(16, 16), (0, 0), (16, 16), (1, 2)), False),
    "repeated": (lambda g: g.broadcast_in_dim(g.input(8), (16, 8), (1,)), False),
    "flipped": (lambda g: g.flip(g.input(16, 8), (0,)), False),
    "padded": (lambda g: g.pad(g.input(15, 8), (1, 0), (0, 0), 0.0), False),
    "regrouped": (lambda g: g.reshape(g.permute(g.input(4, 8, 4), (0, 2, 1)), (16, 8)), False),
    "joined": (lambda g: g.reshape(g.input(4, 4, 8), (16, 8)), True),
}


@pytest.mark.parametrize("name", MATRICES)
def test_products_read_matrices_of_whole_rows_or_columns_without_copies(name: str) -> None:
    build, viewed = MATRICES[name]
    g = GraphBuilder()
    other = g.input(5, 16)
    made = build(g)
    real = realize(lower(g.build(g.mm(other, made))))
    assert (made.name in real.views) is viewed and (made.name in real.stored) is not viewed
    if viewed:
        view = real.views[made.name]
        shape = made.all_input_nodes[0].meta["val"].shape
        source = torch.arange(torch.Size(shape).numel()).reshape(shape)
        base = source.as_strided(view.shape, view.stride, int(view.offset))
        (want,) = run_eager(at(build), [source])
        assert torch.equal(base, want)


def at(build: Callable[[GraphBuilder], fx.Node]) -> fx.GraphModule:
    g = GraphBuilder()
    return g.build(build(g))


def test_a_view_of_what_is_in_another_order_or_negative_is_none() -> None:
    i, j = Var("i", 3), Var("j", 4)
    place = (variable(i), variable(j))
    found = strided("x", (3, 4), place, (i, j), (8, 2))
    assert found == StridedView("x", (3, 4), (8, 2), 0)
    moved = strided("x", (3, 4), (variable(i) + 1, variable(j) * 3 + 2), (i, j), (40, 1))
    assert moved == StridedView("x", (3, 4), (40, 3), 42)
    assert strided("x", (3, 4), (2 - variable(i), variable(j)), (i, j), (4, 1)) is None
    assert strided("x", (12,), (variable(Var("k", 12)) // 4,), (Var("k", 12),), (1,)) is None
    one = Var("one", 1)
    assert strided("x", (1, 4), (variable(one), variable(j)), (one, j), (99, 1)).stride == (4, 1), "as in rows"


def test_values_are_stored_where_too_much_would_be_inlined() -> None:
    for limits, stores in (({"levels": 10}, True), ({"leaves": 3}, True), ({"additions": 20}, True), ({}, False)):
        g = GraphBuilder()
        x = g.input(64)
        for _ in range(15):
            x = g.add(g.mul(x, 1.5), g.input(64))
        real = realize(lower(g.build(x)), replace(CPU, realization=Realization(**limits)))
        inside = {name for name in real.stored if name.startswith(("add", "mul"))} - {x.name}
        assert bool(inside) is stores, limits


def test_a_small_costly_value_is_stored_before_it_is_repeated() -> None:
    for op, times, stored in (("exp", 64, True), ("neg", 64, False), ("exp", 2, False)):
        g = GraphBuilder()
        row = getattr(g, op)(g.input(16))
        real = realize(lower(g.build(g.mul(g.input(times, 16), g.broadcast_in_dim(row, (times, 16), (1,))))))
        assert (op in real.stored) is stored


def test_users_are_counted_through_views() -> None:
    """A costly value that two loops use by views of it is stored; one that only one uses is not."""
    for users in (1, 2):
        g = GraphBuilder()
        value = g.tanh(g.exp(g.input(64, 32)))
        turned = g.permute(value, (1, 0))
        made = [fold(turned, dims) for fold, dims in ((g.sum, (0,)), (g.amax, (1,)))[:users]]
        real = realize(lower(g.build(*made)))
        assert (value.name in real.stored) is (users == 2) and turned.name not in real.stored


def test_base_of_views_ends_at_computed_or_stored_values() -> None:
    g = GraphBuilder()
    x = g.input(4, 6)
    value = g.exp(x)
    part = g.slice(g.permute(value, (1, 0)), (1, 0), (6, 4), (1, 1))
    program = lower(g.build(part))
    name, index, own = base_of_views(program, part.name)
    assert name == "exp" and [v.size for v in own] == [5, 4]
    assert index == (variable(own[1]), variable(own[0]) + 1)
    assert base_of_views(program, part.name, {"permute"})[0] == "permute" and base_of_views(program, "x0")[0] == "x0"
