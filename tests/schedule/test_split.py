"""smelt/schedule/split.py: long reductions in two, by numbers and by symbols."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import fx

from smelt.base.options import Options
from smelt.loops.interpret import interpret
from smelt.loops.ir import LoopProgram, Reduction
from smelt.loops.lower import lower
from smelt.schedule.dependencies import Names
from smelt.schedule.machine import CPU, GPU, Machine
from smelt.schedule.plan import schedule
from smelt.schedule.realize import realize
from smelt.schedule.split import PARTIAL_SUFFIX, chunk_rows, chunk_size, split_reductions
from tests.loops.graphs import GraphBuilder
from tests.loops.symbolic import SymbolicBuilder


def test_parts_divide_without_remainder():
    for sizes in ([4096], [8, 512], [4, 56, 56], [788], [50257]):
        part = chunk_size(sizes, 16, 256)
        total = 1
        for size in sizes:
            total *= size
        assert part is None or total % part == 0


def test_slices_of_a_symbolic_size():
    g = SymbolicBuilder(64)
    (n,) = g.symbols
    assert chunk_rows(n, 50) == 32
    assert chunk_rows(n * 48, 50) == 48
    assert chunk_rows(7, 1) == 1


def test_sums_are_split_into_chunks_of_one_row():
    """As channels of images in rows of channels: a row of 149 pixels is all that one part may have."""
    g = GraphBuilder()
    x = g.input(128, 32, 149, 149, stride=(149 * 149 * 32, 1, 149 * 32, 32))
    plan = schedule(lower(g.build(g.sum(g.mul(x, x), (0, 2, 3)))), Options(), None, GPU)
    assert len(plan.groups) >= 2


def halves(gm: fx.GraphModule, machine: Machine) -> tuple[LoopProgram, LoopProgram]:
    """The program, and the same with its long reductions in two."""
    program = lower(gm)
    real = realize(program)
    return program, split_reductions(program, real, Names(), machine)


MACHINES = {
    "rows": replace(CPU, split_elements=1, parallel=64),
    "few parts": replace(CPU, split_elements=1, parallel=8, max_chunks=3),
    "a gpu": replace(GPU, split_elements=1, column_programs=16, column_block=4),
    "short parts": replace(CPU, split_elements=1, parallel=512, max_chunk_rows=16, max_chunk_elements=16),
}
SHAPES = [
    ((4096,), (0,)), ((97 * 31,), (0,)), ((2053,), (0,)), ((64, 3), (0,)), ((113, 6), (0,)), ((3, 40, 64), (1, 2)),
    ((5, 7, 11, 13), (0, 2, 3)), ((2, 96, 1, 5), (1, 2)), ((1031, 2), (0, 1)), ((6, 1000), (1,)),
]  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", ["sum", "amax", "prod", "any"])
def test_two_halves_give_the_whole(kind: str, machine: str) -> None:
    """Whole numbers, which no order of additions changes; of products most factors are 1."""
    split = 0
    for shape, dims in SHAPES:
        g = GraphBuilder()
        dtype = torch.bool if kind == "any" else torch.int64
        gm = g.build(getattr(g, kind)(g.input(*shape, dtype=dtype), dims))
        program, parts = halves(gm, MACHINES[machine])
        x = torch.randint(-99, 99, shape)
        x = x > 97 if kind == "any" else x if kind != "prod" else torch.where(x > 90, -1, 1)
        (want,), (got,) = interpret(program, [x]), interpret(parts, [x])
        assert torch.equal(got, want)
        split += len(parts.nodes) > len(program.nodes)
    assert split >= 5


def test_parts_of_narrow_floats_are_rounded_once() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        g = GraphBuilder()
        _, parts = halves(g.build(g.sum(g.input(1 << 16, dtype=dtype), (0,))), CPU)
        part, rest = (node for node in parts.nodes.values() if isinstance(node, Reduction))
        assert part.dtype is part.meta.dtype is rest.dtype is torch.float32 and rest.meta.dtype is dtype
        assert part.name == rest.name + PARTIAL_SUFFIX and rest.inputs == (part.name,)


def test_short_index_and_parallel_reductions_are_not_split() -> None:
    for build in (
        lambda g: g.sum(g.input(CPU.split_elements - 1), (0,)),
        lambda g: g.argmax(g.input(1 << 17), 0),
        lambda g: g.sum(g.input(CPU.parallel, 1 << 15), (1,)),
    ):
        g = GraphBuilder()
        program, parts = halves(g.build(build(g)), CPU)
        assert list(program.nodes) == list(parts.nodes)
    g = GraphBuilder()
    program, parts = halves(g.build(g.sum(g.input(CPU.split_elements), (0,))), CPU)
    assert len(parts.nodes) == len(program.nodes) + 1
    g = GraphBuilder()
    assert len(halves(g.build(g.sum(g.input(CPU.parallel - 1, 1 << 15), (1,))), CPU)[1].nodes) == 3


def test_symbolic_sizes_are_split_into_chunks_of_a_fixed_size() -> None:
    g = SymbolicBuilder(600, 5)
    n, m = g.symbols
    gm = g.build(g.sum(g.input(n, m, dtype=torch.int64), (0,)), g.amax(g.input(n, m, dtype=torch.int64), (0, 1)))
    _, parts = halves(gm, replace(CPU, split_elements=1))
    assert len([node for node in parts.nodes.values() if isinstance(node, Reduction)]) == 4
    for sizes in ((600, 5), (1, 1), (31, 3), (32, 2), (65, 7)):
        x, y = torch.randint(-99, 99, sizes), torch.randint(-99, -9, sizes)
        total, top = interpret(parts, [x, y, *sizes])
        assert torch.equal(total, x.sum(0)) and torch.equal(top, y.amax())
    assert not g.known.assumed
    shapes = [str(node.source_shape[0]) for node in parts.nodes.values() if node.name.endswith(PARTIAL_SUFFIX)]
    assert shapes == ["((s0 + 31) // 32)", "((s0 + 127) // 128)"], "no part is empty"


def test_short_trailing_dimensions_stay_whole() -> None:
    g = GraphBuilder()
    _, parts = halves(g.build(g.sum(g.input(1031, 3, 2), (0, 1, 2))), replace(CPU, split_elements=1, parallel=8))
    (part,) = (node for node in parts.nodes.values() if node.name.endswith(PARTIAL_SUFFIX))
    assert part.source_shape[2:] == (3, 2) and part.ragged is not None and part.ragged[2] == 1031


@pytest.mark.parametrize("machine", [CPU, GPU])
def test_column_sums_that_share_loops_with_rows_are_split_alike(machine: Machine) -> None:
    """All column sums of one extent, whatever they read, if one of them may share its loop with rows."""
    g = GraphBuilder()
    x, y = g.input(5000, 96), g.input(5000, 96)
    gm = g.build(g.sum(x, (1,)), g.sum(x, (0,)), g.sum(g.exp(y), (0,)))
    _, parts = halves(gm, machine)
    cut = [node.source_shape for node in parts.nodes.values() if node.name.endswith(PARTIAL_SUFFIX)]
    assert len(cut) == 2 and cut[0] == cut[1]
    alone = halves(g_alone(), machine)[1]
    (own,) = (node.source_shape for node in alone.nodes.values() if node.name.endswith(PARTIAL_SUFFIX))
    assert (own == cut[0]) is (machine is CPU), "alone, a GPU shares columns out by their width"


def g_alone() -> fx.GraphModule:
    g = GraphBuilder()
    return g.build(g.sum(g.input(5000, 96), (0,)))


def test_the_nearest_divisor_is_chosen() -> None:
    """Of trailing dimensions times a divisor of the next one, by ratio; none where there would be too many parts."""
    for sizes in ([4096], [8, 512], [4, 56, 56], [788], [97], [6, 35], [1, 12], [2]):
        total = math.prod(sizes)
        suffixes = [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
        may = {s * n for s, size in zip(suffixes, sizes, strict=True) for n in range(1, size + 1) if size % n == 0}
        for wanted, most in ((16, 256), (1, 4), (300, 2), (5, 1000)):
            able = [part for part in may if part > 1 and 2 <= total // part <= most]
            found = chunk_size(sizes, wanted, most)
            assert (found is None) == (not able)
            if found is not None:
                assert found in able
                assert abs(math.log(found / wanted)) == min(abs(math.log(part / wanted)) for part in able)


def test_rows_of_a_chunk_divide_every_total_or_are_a_power_of_two() -> None:
    for total, wanted in itertools.product((1, 7, 12, 48, 96, 1000, 1031), (1, 2, 5, 16, 50, 100)):
        rows = chunk_rows(total, wanted)
        divisors = [n for n in range(1, wanted + 1) if total % n == 0 and 2 * n > 1 << wanted.bit_length() - 1]
        assert rows == (max(divisors) if divisors else 1 << wanted.bit_length() - 1) and rows <= wanted
