"""Programs with symbolic sizes: compiled once, run at many sizes, against the prims' eager references."""

import pytest
from torch import fx

from smelt.abi.rendered import Rendered
from smelt.base.options import Options
from smelt.base.report import Report
from smelt.driver import render
from smelt.program import load
from smelt.shapes.assumptions import Assumptions
from tests.loops.graphs import real_inputs, run_eager
from tests.loops.random_graphs import SymbolicRandomGraph
from tests.loops.symbolic import SymbolicBuilder, assert_close, at_sizes
from tests.loops.symbolic_programs import PROGRAMS

SIZES = [(4, 6), (2, 2), (3, 5), (7, 4), (2, 67), (5, 130), (64, 3)]
LARGE = [(8, 64), (3, 300), (97, 31), (2, 2)]


def check(
    monkeypatch: pytest.MonkeyPatch, name: str, hints: tuple[int, int], sizes: list[tuple[int, int]], tolerance: float
) -> Rendered:
    build, high = PROGRAMS[name]
    g = SymbolicBuilder(*hints)
    gm = build(g, *g.symbols)
    rendered = render(gm, Options(), Report("test"), "forward")
    program = load(rendered, Options())
    monkeypatch.setattr("smelt.runtime.build._compile", None)  # nothing is built for another size
    values = [dict(zip((s.terms[0][0][0] for s in g.symbols), n, strict=True)) for n in sizes]
    for numbers, value in zip(sizes, values, strict=True):
        broken = [fact for fact in g.known.assumed if not fact.holds(value)]
        if broken and 2 in numbers:
            continue  # programs that slice one row off ask whether one is left
        assert not broken
        static = at_sizes(gm, numbers)
        inputs = real_inputs(static, high)
        want = run_eager(static, inputs)
        for _ in range(2):
            boxed = [*inputs, *numbers]
            assert_close(program(boxed), want, tolerance)
            assert boxed == []
    return rendered


def run_at(gm: fx.GraphModule, known: Assumptions, sizes: list[tuple[int, int]], high: int, tolerance: float) -> int:
    """Compile once and compare at every tuple of sizes that the assumptions allow; how many those were."""
    program = load(render(gm, Options(), Report("test"), "forward"), Options())
    done = 0
    for numbers in sizes:
        if not all(fact.holds(dict(zip(known.symbols, numbers, strict=True))) for fact in known.assumed):
            continue
        static = at_sizes(gm, numbers)
        inputs = real_inputs(static, high)
        assert_close(program([*inputs, *numbers]), run_eager(static, inputs), tolerance)
        done += 1
    return done


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs(seed: int):
    made = SymbolicRandomGraph(seed, big=seed % 4 == 3)
    gm = made.build()
    run_at(gm, made.g.known, [(3, 5), (2, 2), (7, 4), (5, 67), (12, 70), (130, 3)], 1000, 2e-3)


@pytest.mark.parametrize("name", PROGRAMS)
def test_small_sizes(name: str, monkeypatch):
    check(monkeypatch, name, (4, 6), SIZES, 1e-3)


@pytest.mark.parametrize("name", PROGRAMS)
def test_large_sizes(name: str, monkeypatch):
    check(monkeypatch, name, (8, 64), LARGE, 1e-3)
