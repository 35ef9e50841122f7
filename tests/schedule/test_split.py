"""smelt/schedule/split.py: long reductions in two, by numbers and by symbols."""

from __future__ import annotations

from smelt.base.options import Options
from smelt.loops.lower import lower
from smelt.schedule.machine import GPU
from smelt.schedule.plan import schedule
from smelt.schedule.split import part_size, rows_per_part
from tests.loops.graphs import GraphBuilder
from tests.loops.symbolic import SymbolicBuilder


def test_parts_divide_without_remainder():
    for sizes in ([4096], [8, 512], [4, 56, 56], [788], [50257]):
        part = part_size(sizes, 16, 256)
        total = 1
        for size in sizes:
            total *= size
        assert part is None or total % part == 0


def test_parts_of_a_symbolic_size():
    g = SymbolicBuilder(64)
    (n,) = g.symbols
    assert rows_per_part(n, 50) == 32
    assert rows_per_part(n * 48, 50) == 48
    assert rows_per_part(7, 1) == 1


def test_sums_are_split_into_parts_of_one_row():
    """As channels of images in rows of channels: a row of 149 pixels is all that one part may have."""
    g = GraphBuilder()
    x = g.input(128, 32, 149, 149, stride=(149 * 149 * 32, 1, 149 * 32, 32))
    plan = schedule(lower(g.build(g.sum(g.mul(x, x), (0, 2, 3)))), Options(), None, GPU)
    assert len(plan.groups) >= 2
