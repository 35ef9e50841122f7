"""smelt/codegen/cpp/units.py: equal kernels are one, units hold all of them, segments call them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from smelt.base.options import Options
from smelt.codegen.cpp.host import CppRenderer, Kernels, render_kernels
from smelt.codegen.cpp.units import kernel_name, segment_source
from smelt.loops.lower import lower
from smelt.schedule.machine import CPU, Loops
from smelt.schedule.plan import Schedule, schedule
from tests.loops.graphs import GraphBuilder


def plan_of(g: GraphBuilder, *outputs: object, each: int | None = None) -> Schedule:
    machine = CPU if each is None else replace(CPU, loops=Loops(kernels_per_unit=each))
    return schedule(lower(g.build(*outputs)), Options(), None, machine)


def rendered(g: GraphBuilder, *outputs: object, each: int | None = None) -> Kernels:
    return render_kernels(plan_of(g, *outputs, each=each), CppRenderer())


def chain(g: GraphBuilder, ops: list[str], size: int = 8) -> object:
    """Ops between products, which keep their kernels apart."""
    x = g.input(size, size)
    for op in ops:
        x = g.mm(getattr(g, op)(x), g.input(size, size))
    return x


def test_equal_kernels_are_rendered_once() -> None:
    g = GraphBuilder()
    found = rendered(g, chain(g, ["exp", "sin", "exp", "exp", "neg"]))
    assert len(found.kernels) == 3 and len(found.launches) == 5
    used = [launch.kernel for launch in found.launches.values()]
    assert used[0] == used[2] == used[3] and len({*used}) == 3
    buffers = [launch.buffers for launch in found.launches.values()]
    assert len({*buffers}) == 5, "each launch has buffers of its own"
    for number, launch in found.launches.items():
        name, text = found.text_of(number)
        assert name == kernel_name(launch.kernel) == f"kernel{launch.kernel}"
        assert f'extern "C" void {name}(' in text and text == found.kernels[launch.kernel].function(name)


def test_layers_that_draw_from_other_streams_share_a_kernel() -> None:
    g = GraphBuilder()
    seed = g.input(dtype=torch.int64)
    drawn = [g.mm(g.random(seed, stream, (8, 8)), g.input(8, 8)) for stream in (3, 5)]
    found = rendered(g, *drawn)
    assert len(found.kernels) == 1 and [launch.streams for launch in found.launches.values()] == [(3,), (5,)]


def test_groups_without_elements_have_no_launch() -> None:
    g = GraphBuilder()
    plan = plan_of(g, g.exp(g.input(0, 4)), g.sin(g.input(3)))
    found = render_kernels(plan, CppRenderer())
    assert len(plan.groups) == 2 and len(found.launches) == 1
    (empty,) = set(plan.groups) - set(found.launches)
    assert found.text_of(empty) == ("", "")
    g = GraphBuilder()
    nothing = rendered(g, g.mm(g.input(2, 2), g.input(2, 2)))
    assert (nothing.kernels, nothing.launches, nothing.units) == ([], {}, [])


@pytest.mark.parametrize("each", [1, 2, 100])
def test_units_hold_every_kernel_once(each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    g = GraphBuilder()
    found = rendered(g, chain(g, ["exp", "sin", "neg", "tanh", "sqrt"]), each=each)
    assert sorted(i for _, inside in found.units for i in inside) == [0, 1, 2, 3, 4]
    assert len(found.units) == min(-(-5 // each), 3)
    for source, inside in found.units:
        assert inside == sorted(inside)
        assert [f'extern "C" void kernel{i}(' in source for i in range(5)] == [i in inside for i in range(5)]
    if each == 2:
        sizes = sorted(len(inside) for _, inside in found.units)
        assert sizes == [1, 2, 2] or max(sizes) <= 3, "no unit has much more than others"


def test_units_are_of_similar_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest kernel is alone where the others together are no longer."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    g = GraphBuilder()
    x = g.input(8, 8)
    long = x
    for _ in range(30):
        long = g.add(g.tanh(long), x)
    y = g.mm(long, g.input(8, 8))
    for op in ("exp", "sin", "neg"):
        y = g.mm(getattr(g, op)(y), g.input(8, 8))
    found = rendered(g, y, each=1)
    assert sorted(len(inside) for _, inside in found.units) == [1, 3]


def test_segments_are_functions_of_the_table() -> None:
    text = segment_source([["f(P[1]);", "g(P[2]);"], []])
    assert 'extern "C" void segment0(char **P) {\n    f(P[1]);\n    g(P[2]);\n}' in text
    assert 'extern "C" void segment1(char **P) {\n\n}' in text and text.startswith('#pragma GCC optimize("O0")')
