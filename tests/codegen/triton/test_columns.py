"""Column reductions as Triton kernels: batch statistics in two kernels, parts of rows that no number divides."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from smelt.base.options import Options
from smelt.codegen.triton.host import render_triton
from smelt.codegen.triton.tiles import column_warps
from smelt.loops.lower import lower
from smelt.schedule.machine import GPU
from smelt.schedule.plan import schedule
from tests.codegen.triton.test_kernel import check, kernels
from tests.loops.graphs import GraphBuilder

pytest.importorskip("triton")

SHAPE = (8, 24, 14, 14)
LAST = (24 * 196, 1, 24 * 14, 24)
"""Strides of that shape with channels last."""


def statistics(g: GraphBuilder, x: fx.Node) -> tuple[fx.Node, fx.Node]:
    """(sum, sum of squares) of the distances from each channel's first element."""
    first = g.slice(x, (0, 0, 0, 0), (1, 24, 1, 1), (1, 1, 1, 1))
    off = g.sub(x, g.broadcast_in_dim(first, SHAPE, (0, 1, 2, 3)))
    return g.sum(off, (0, 2, 3)), g.sum(g.mul(off, off), (0, 2, 3))


def test_batch_statistics_and_what_follows_from_them_are_two_kernels():
    g = GraphBuilder()
    x, running = g.input(*SHAPE, stride=LAST), g.input(24)
    near, squares = statistics(g, x)
    mean, spread = g.div(near, 1568.0), g.div(squares, 1568.0)
    variance = g.sub(spread, g.mul(mean, mean))
    rstd = g.rsqrt(g.add(variance, 1e-5))
    text = check(g.build(rstd, g.add(g.mul(running, 0.9), g.mul(mean, 0.1))), 1e-3)
    assert kernels(text) == 2  # sums of parts; the rest


def test_sums_over_the_parts_of_one_kernel_stand_in_one_kernel():
    g = GraphBuilder()
    x, y = g.input(*SHAPE, stride=LAST), g.input(*SHAPE, stride=LAST)
    one, other = g.sum(x, (0, 2, 3)), g.sum(g.mul(x, y), (0, 2, 3))
    text = check(g.build(g.mul(one, 0.5), g.exp(g.mul(other, 1e-3))), 1e-3)
    assert kernels(text) == 2


def test_the_result_of_a_column_reduction_that_is_also_wanted_is_stored():
    g = GraphBuilder()
    x = g.input(1024, 48)
    total = g.sum(x, (0,))
    text = check(g.build(total, g.exp(g.mul(total, 1e-3))), 1e-3)
    assert kernels(text) == 2


@pytest.mark.parametrize("rows", [(8, 197), (4, 17, 13), (1051,)])
def test_rows_that_no_number_divides_are_cut_all_the_same(rows: tuple[int, ...]):
    g = GraphBuilder()
    x = g.input(*rows, 40)
    dims = tuple(range(len(rows)))
    check(g.build(g.sum(x, dims), g.sum(g.mul(x, x), dims)), 2e-2)


def test_row_and_column_sums_of_such_rows_share_a_kernel():
    g = GraphBuilder()
    x, y = g.input(4, 197, 64), g.input(4, 197, 64)
    total = g.sum(g.mul(x, y), (2,))
    out = g.sub(x, g.broadcast_in_dim(total, (4, 197, 64), (0, 1)))
    text = check(g.build(out, g.sum(g.mul(x, y), (0, 1)), g.sum(y, (0, 1))), 2e-2)
    assert kernels(text) <= 3


@pytest.mark.parametrize("columns", [8, 40, 72])
def test_every_width(columns: int):
    g = GraphBuilder()
    x = g.input(33000 // columns + 64, columns)
    check(g.build(g.sum(x, (0,)), g.amax(x, (0,))), 2e-2)


def test_few_rows_are_folded_by_each_thread():
    g = GraphBuilder()
    x = g.input(4, 544, 512)
    text = check(g.build(g.sum(x, (0,))), 1e-3)
    assert "RBLOCK', 1)" in text and kernels(text) == 1


def test_a_widened_value_is_stored_as_it_was():
    g = GraphBuilder()
    x, y = g.input(*SHAPE, dtype=torch.bfloat16, stride=LAST), g.input(*SHAPE, dtype=torch.bfloat16, stride=LAST)
    wide = g.convert(
        g.convert(g.tanh(g.mul(g.convert(x, torch.float32), g.convert(y, torch.float32))), torch.bfloat16),
        torch.float32,
    )
    mean = g.div(g.sum(wide, (0, 2, 3)), 1568.0)
    out = g.sub(wide, g.broadcast_in_dim(mean, SHAPE, (1,)))
    report = check(g.build(out), 2e-2)
    assert "tl.bfloat16" in report


@pytest.mark.parametrize(("programs", "rows", "warps"), [(24, 788, 8), (1536, 256, 4), (896, 28, 2), (4000, 500, 2)])
def test_warps_of_columns(programs: int, rows: int, warps: int):
    assert column_warps(programs, rows, GPU.tiles) == warps


def test_many_programs_fold_columns_in_few_warps_and_read_ahead():
    g = GraphBuilder()
    x = g.input(16384, 128)
    text = check(g.build(g.sum(x, (0,))), 1e-3)
    assert "tl.range(0, " in text


def test_much_arithmetic_gets_more_warps():
    def warps(*steps: str) -> int:
        g = GraphBuilder()
        value = x = g.input(16384, 128)
        for step in steps:
            value = getattr(g, step)(value)
        plan = schedule(lower(g.build(g.sum(g.mul(value, x), (0,)))), Options(target="triton"), None, GPU)
        return render_triton(plan, torch.device("cpu")).kernels[0].configs[0].num_warps

    assert warps("neg") == 2 < warps("erf", "exp")
