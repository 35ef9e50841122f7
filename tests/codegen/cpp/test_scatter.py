"""smelt/codegen/cpp/scatter.py: a built program of many scatters, against numpy, and how loops are shared out."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from smelt.base.options import Options
from smelt.base.report import Report
from smelt.codegen.cpp.host import CppRenderer
from smelt.codegen.cpp.scatter import render_scatter
from smelt.driver import compile_program
from smelt.loops.lower import lower
from smelt.schedule.plan import schedule
from tests.loops.graphs import GraphBuilder
from tests.loops.symbolic import SymbolicBuilder

ROWS, COUNT, WIDE = 6, 9, 40


def test_scatters_of_all_kinds_in_one_program() -> None:
    """Sums at places that meet, in the order of the places; writes that do not meet; of each dtype that is widened."""
    g = GraphBuilder()
    x, src = g.input(ROWS, WIDE), g.input(COUNT, WIDE)
    place, own = g.input(COUNT, dtype=torch.int64), g.input(3, dtype=torch.int64)
    whole, half = g.input(ROWS, dtype=torch.int8), g.input(ROWS, dtype=torch.bfloat16)
    small, narrow = g.input(COUNT, dtype=torch.int8), g.input(COUNT, dtype=torch.bfloat16)
    each = g.input(COUNT, WIDE, dtype=torch.int64)
    three = g.slice(src, (0, 0), (3, WIDE), (1, 1))
    made = [
        g.index_put(x, (place, None), src, True),
        g.index_put(x, (own, None), three, False),
        g.scatter_add(g.permute(x, (1, 0)), 1, g.permute(each, (1, 0)), g.permute(src, (1, 0))),
        g.scatter_add(whole, 0, place, small),
        g.scatter_add(half, 0, place, narrow),
        g.index_put(g.neg(x), (place, None), g.mul(src, 2.0), True, False),
    ]
    program = compile_program(g.build(*made), Options(), Report("test"))
    base, values = np.random.randint(-9, 9, (ROWS, WIDE)), np.random.randint(-9, 9, (COUNT, WIDE))
    places, owned = np.random.randint(0, ROWS, COUNT), np.array([4, -1, 0])
    elements = np.random.randint(0, ROWS, (COUNT, WIDE))
    bytes_, added = np.random.randint(-128, 127, ROWS), np.random.randint(-128, 127, COUNT)
    floats = torch.from_numpy(base).float(), torch.from_numpy(values).float()
    given = [
        *floats, torch.from_numpy(places), torch.from_numpy(owned), torch.from_numpy(bytes_).to(torch.int8),
        floats[0][:, 0].bfloat16(), torch.from_numpy(added).to(torch.int8), floats[1][:, 0].bfloat16(),
        torch.from_numpy(elements),
    ]  # fmt: skip
    got = [t.float().numpy() for t in program(list(given))]
    want = [base.copy() for _ in range(4)]
    np.add.at(want[0], places, values)
    want[1][owned] = values[:3]
    np.add.at(want[2], (elements, np.arange(WIDE)), values)
    np.add.at(want[3], places, -2 * values)
    want[2], sums, row = want[2].T, bytes_.astype(np.int8), base[:, 0].copy()
    np.add.at(sums, places, added.astype(np.int8))
    np.add.at(row, places, values[:, 0])
    for one, other in zip(got, [want[0], want[1], want[2], sums, row, -want[3]], strict=True):
        np.testing.assert_array_equal(one, other)


def text(g: GraphBuilder, made: Any, updates: dict[int, str] | None = None) -> str:
    plan = schedule(lower(g.build(made)), Options(), updates)
    (group,) = (group for group in plan.groups.values() if group.scatter)
    return "\n".join(render_scatter(group, plan, CppRenderer()).lines)


def rows(count: int, width: int, updates: dict[int, str] | None = None, wrap: bool = True) -> str:
    g = GraphBuilder()
    x, place, src = g.input(50, width), g.input(count, dtype=torch.int64), g.input(count, width)
    return text(g, g.index_put(x, (place, None), src, True, wrap), updates)


def test_columns_are_shared_out_and_rows_run_in_order() -> None:
    found = rows(4000, 512)
    loops = re.findall(r"for \(int64_t (\w+) = 0; \w+ < (\d+);", found)
    assert loops[:2] == [("i0", "50"), ("i1", "512")], "first the base is copied"
    outer, inner, last = loops[2:]
    assert int(outer[1]) * int(last[1]) == 512 and inner == ("r0", "4000")
    assert found.index("omp parallel for schedule(static)") < found.index("for (int64_t k0")


def test_a_large_base_is_copied_by_all_threads_in_vectors() -> None:
    g = GraphBuilder()
    x, place, src = g.input(4096, 512), g.input(9, dtype=torch.int64), g.input(9, 512)
    lines = [line.strip() for line in text(g, g.index_put(x, (place, None), src, True)).splitlines()]
    outer, inner = (next(i for i, line in enumerate(lines) if f"int64_t {name} = 0" in line) for name in ("i0", "i1"))
    assert lines[outer - 1] == "#pragma omp parallel for" and lines[inner - 1] == "#pragma omp simd"


def test_checks_of_single_elements_are_collected_in_vectors() -> None:
    g = GraphBuilder()
    x, place, src = g.input(6, 40), g.input(9, 40, dtype=torch.int64), g.input(9, 40)
    found = text(g, g.scatter_add(x, 0, place, src))
    assert "#pragma omp simd reduction(|:bad0)" in found and re.search(r"if \(bad0\) \*a\d = bad0;", found)
    assert "reduction(|:bad" not in rows(9, 40), "a place of a whole row is looked at once"


def test_little_work_stays_on_one_thread() -> None:
    assert "parallel" not in rows(3, 4)
    g = SymbolicBuilder(40)
    (n,) = g.symbols
    found = text(g, g.index_put(g.input(50, 512), (g.input(n, dtype=torch.int64), None), g.input(n, 512), True))
    assert re.search(r"if\(parallel: \w+ >= \d+\)", found) and "z0" in found


def test_a_scatter_over_its_base_copies_nothing_and_writes_nothing_that_is_refused() -> None:
    plain, over = rows(40, 8), rows(40, 8, {0: "x0"})
    assert "for (int64_t i0" in plain and "for (int64_t i0" not in over
    assert re.search(r"if \(\*a\d\) (continue|return);", over) and not re.search(r"if \(\*a\d\)", plain)
    first, last = over.index("if (*a"), over.rindex(" = ")
    assert first < last, "the check comes before the write"


@pytest.mark.parametrize("value", [True, False])
def test_indices_out_of_range_set_the_fault_word(value: bool) -> None:
    found = rows(40, 8, wrap=value)
    assert re.search(r">= 50\)+\)? \*a\d = 1;", found) and ("? 50 : 0" in found) is value


def test_an_accumulating_scatter_adds_and_another_one_replaces() -> None:
    def of(accumulate: bool) -> str:
        g = GraphBuilder()
        x, place, src = g.input(50), g.input(9, dtype=torch.int64), g.input(9)
        return text(g, g.index_put(x, (place,), src, accumulate))

    stores = [re.findall(r"a\d\[\w+\] = (.*);", of(flag))[-1] for flag in (True, False)]
    assert " + " in stores[0] and " + " not in stores[1]
