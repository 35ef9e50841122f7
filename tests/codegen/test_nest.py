"""Loops of kernels: what is merged, chunked, tiled, unrolled, and where parallel regions begin."""

from smelt.base.options import Options
from smelt.codegen.cpp.host import render_cpp
from smelt.loops.lower import lower
from smelt.schedule.plan import schedule
from tests.loops import graphs
from tests.loops.graphs import GraphBuilder


def kernels(g: GraphBuilder, *outputs: object) -> str:
    return "\n".join(render_cpp(schedule(lower(g.build(*outputs)), Options())).cpp_sources)


def test_contiguous_loops_become_one():
    g = GraphBuilder()
    text = kernels(g, g.exp(g.input(4, 6, 8)))
    assert "i0 < 192" in text and "omp parallel" not in text


def test_long_loops_run_in_parallel_chunks():
    g = GraphBuilder()
    text = kernels(g, g.exp(g.input(1 << 20)))
    assert "omp parallel for" in text and "i0 < 4096" in text


def test_a_prime_length_ends_in_a_short_chunk():
    g = GraphBuilder()
    assert "? 100003 - k0 * 4096 : 4096" in kernels(g, g.exp(g.input(100003)))


def test_divisions_are_split_away():
    g = GraphBuilder()
    x = g.input(8, 12, 64)
    text = kernels(g, g.reshape(g.permute(x, (1, 0, 2)), (12 * 512,)))
    inner = text[text.rindex("omp simd") :]
    assert "/" not in inner and "%" not in inner


def test_transposes_are_tiled():
    g = GraphBuilder()
    text = kernels(g, g.reshape(g.permute(g.input(256, 320), (1, 0)), (256 * 320,)))
    assert "w0[33 * y + x]" in text


def test_column_sums_take_rows_four_at_a_time():
    g = GraphBuilder()
    text = kernels(g, g.sum(g.input(64, 96), (0,)))
    assert "b0[i0] += (t0 + t1) + (t2 + t3);" in text


def test_costly_values_of_a_row_are_kept_and_cheap_ones_repeated():
    g = GraphBuilder()
    x = g.input(64, 96)
    assert "w0[i0]" in kernels(g, graphs.softmax(g, g.erf(x), 1))
    g = GraphBuilder()
    x = g.input(64, 96)
    mean = g.sum(x, (1,))
    assert "w0[" not in kernels(g, g.sub(x, graphs.repeated(g, mean, (64, 96), (1,))))
