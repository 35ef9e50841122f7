"""smelt/codegen/cpp/host.py: segments call kernels with the pointers that their slots hold."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from smelt.abi.rendered import Rendered
from smelt.base.errors import CompileError
from smelt.base.options import Options
from smelt.codegen.cpp.host import CppHost, CppRenderer, render_cpp, render_kernels
from smelt.loops.lower import lower
from smelt.schedule.machine import CPU, Loops
from smelt.schedule.plan import Schedule, schedule
from tests.loops.graphs import GraphBuilder
from tests.loops.symbolic import SymbolicBuilder

CALL = re.compile(r"\(\(void \(\*\)\((.*?)\)\)P\[(\d+)\]\)\((.*)\);")


def plan_of(g: GraphBuilder, *outputs: object, machine: object = CPU) -> Schedule:
    return schedule(lower(g.build(*outputs)), Options(), None, machine, caller_owned=range(9))


def calls(rendered: Rendered) -> list[tuple[str, int, str]]:
    """(types, slot of the kernel, arguments) of each launch."""
    return [(a, int(b), c) for source in rendered.cpp_sources for a, b, c in CALL.findall(source)]


def test_a_launch_has_inputs_results_and_the_arena_in_the_order_of_its_kernel() -> None:
    g = GraphBuilder()
    x, w, b = g.input(16, 16), g.input(16, 16), g.input(16, 16, dtype=torch.bool)
    rendered = render_cpp(plan_of(g, g.mm(g.where(b, x, 0.0), w), g.sin(w)))
    found = calls(rendered)
    assert len(found) == 2
    by_use = {arguments: (types, slot) for types, slot, arguments in found}
    (inside,) = (a for a in by_use if "(P[0] + 0)" in a)
    assert sorted(re.findall(r"P\[(\d+)\]", inside)) == ["0", "1", "3"]
    assert by_use[inside][0].count("*") == 3 and "uint8_t *" in by_use[inside][0]
    kernels = {slot for _, slot in by_use.values()}
    for slot in kernels:
        assert re.search(rf'\b{slot}: address\("kernel\d"\)', rendered.host_source)
    assert all(slot > 3 for slot in kernels), "behind the inputs"


def test_runs_of_kernels_are_segments_of_the_smallest_unit() -> None:
    g = GraphBuilder()
    x = g.input(8, 8)
    rendered = render_cpp(plan_of(g, g.sin(g.mm(g.exp(x), x)), machine=replace(CPU, loops=Loops(kernels_per_unit=1))))
    assert rendered.host_source.count('= address("segment') == 2
    holds = [i for i, source in enumerate(rendered.cpp_sources) if "void segment0(" in source]
    assert len(holds) == 1 and rendered.exports[holds[0]][-2:] == ["segment0", "segment1"]
    lengths = [len(source.split("#pragma GCC optimize")[0]) for source in rendered.cpp_sources]
    assert lengths[holds[0]] == min(lengths)
    exported = [name for names in rendered.exports for name in names if name.startswith("kernel")]
    assert sorted(exported) == ["kernel0", "kernel1"]


def test_launches_that_touch_little_keep_the_lock() -> None:
    for size, word in ((16, "launch_short("), (1 << 20, "launch(")):
        g = GraphBuilder()
        text = render_cpp(plan_of(g, g.exp(g.input(size)))).host_source
        assert f"{word}segment0, table)" in text
    least = CPU.loops.min_unlocked_bytes
    for count, word in ((least // 8, "launch("), (least // 8 - 1, "launch_short(")):
        g = GraphBuilder()
        assert f"    {word}segment0, table)" in render_cpp(plan_of(g, g.exp(g.input(count)))).host_source


def test_symbols_have_slots_and_decide_how_to_launch_when_the_program_is_made() -> None:
    g = SymbolicBuilder(6)
    (n,) = g.symbols
    x, w = g.input(n, 8), g.input(8, 8)
    rendered = render_cpp(plan_of(g, g.mm(g.exp(x), w)))
    text = rendered.host_source
    assert f"launch0 = launch_short if s0*64 < {CPU.loops.min_unlocked_bytes} else launch" in text
    assert "launch0(segment0, table)" in text and "def at(s0):" in text and "call = Sized(at, 1)" in text
    ((types, _, arguments),) = calls(rendered)
    (slot,) = re.findall(r"\(int64_t\)P\[(\d+)\]", arguments)
    assert f"{slot}: s0" in text and types.endswith("int64_t")
    assert rendered.steps is not None
    (step,) = rendered.steps.segments["segment0"]
    assert step.arguments[-1] == (int(slot), 0)
    (place,) = re.findall(r"(\d+): offsets\[0\]", text)
    assert f"P[{place}]" in arguments, "places in the arena are found for each size"


def test_streams_are_numbers_in_the_call() -> None:
    g = GraphBuilder()
    seed = g.input(dtype=torch.int64)
    ((types, _, arguments),) = calls(render_cpp(plan_of(g, g.random(seed, 17, (4,)))))
    assert arguments.endswith(", 17") and types.endswith(", int64_t")


def test_the_fault_word_has_one_slot_and_is_read_at_the_end() -> None:
    g = GraphBuilder()
    x, i, j = g.input(9), g.input(4, dtype=torch.int64), g.input(5, dtype=torch.int64)
    rendered = render_cpp(plan_of(g, g.gather(x, 0, i), g.gather(x, 0, j)))
    slots = {slot for _, _, arguments in calls(rendered) for slot in re.findall(r"\(int64_t \*\)P\[(\d+)\]", arguments)}
    (slot,) = slots - {str(n) for n in range(1, 4)} or slots
    assert f"fault={slot}," in rendered.host_source and rendered.host_source.count("workspaces.refuse(workspace)") == 1


def test_steps_are_described_with_their_slots() -> None:
    g = GraphBuilder()
    x, w = g.input(16, 16), g.input(16, 16)
    plan = plan_of(g, g.mm(g.exp(x), w))
    kernels = render_kernels(plan, CppRenderer())
    host = CppHost(plan, kernels)
    host.text()
    (step,) = host.shown_steps.segments["segment0"]
    assert step.slot == host.kernel_slots[0] and set(step.arguments) == {(1, 0), (0, plan.memory.offsets["exp"])}
    assert host.shown_steps.of["exp"] is step and "mm" in host.shown_steps.of
    assert host.kernel_names(plan.steps[0]) == "kernel0"


def test_a_kernel_needs_no_size_that_is_no_input() -> None:
    g = SymbolicBuilder(6)
    (n,) = g.symbols
    plan = plan_of(g, g.exp(g.input(n, 8)))
    plan.program.symbols.clear()
    with pytest.raises(CompileError, match="needs the size s0, which is no input"):
        render_cpp(plan)
