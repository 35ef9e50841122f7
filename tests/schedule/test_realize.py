"""smelt/schedule/realize.py: which values have buffers, and which views stand for copies."""

from __future__ import annotations

from dataclasses import replace

import torch

from smelt.loops.lower import lower
from smelt.schedule.machine import CPU, GPU
from smelt.schedule.realize import realize
from tests.loops.graphs import GraphBuilder


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
    assert kept.name in realize(program, replace(CPU, read_again=1.0)).stored
    assert kept.name not in realize(program, GPU).stored
