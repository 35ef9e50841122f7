"""Launches that several pointwise kernels share, through Triton's interpreter, and built for compute capability 9.0."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch
from torch import fx

from smelt.base.errors import SmeltError
from smelt.base.options import Options
from smelt.base.report import Report
from smelt.codegen.triton.host import render_triton
from smelt.driver import compile_program, render_part
from smelt.loops.lower import lower
from smelt.program import load
from smelt.runtime.triton.build import build
from smelt.schedule.machine import GPU
from smelt.schedule.plan import schedule
from tests.loops.graphs import GraphBuilder, real_inputs, run_eager
from tests.machines import tune

triton = pytest.importorskip("triton")

OPTIONS = Options(target="triton")
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def check(gm: fx.GraphModule) -> list[str]:
    """Compile for Triton, run twice and compare; the texts of the kernels are returned."""
    report = Report("test")
    program = compile_program(gm, OPTIONS, report)
    inputs = real_inputs(gm)
    want = run_eager(gm, inputs)
    for _ in range(2):
        for w, g in zip(want, program(list(inputs)), strict=True):
            torch.testing.assert_close(g, w, equal_nan=True)
    return report.artefacts["6_forward_kernels.py"]().split("# kernel ")[1:]


def bodies(text: str) -> int:
    return text.count("\ndef body")


def test_types_and_sizes() -> None:
    g = GraphBuilder()
    sizes = [(), (1,), (0,), (5,), (64,), (3, 333), (4096,), (0, 4)]
    outputs = [g.convert(g.input(*shape), torch.bfloat16) for shape in sizes]
    outputs += [g.add(g.input(*shape, dtype=torch.int64), 1) for shape in sizes]
    outputs += [g.mul(g.input(*shape, dtype=torch.float64), 3.0) for shape in sizes[1:]]
    outputs.append(g.logical_not(g.input(7, dtype=torch.bool)))
    kernels = check(g.build(*outputs))
    assert 1 <= len(kernels) <= 2 and sum(map(bodies, kernels)) <= 10


def test_equal_code_is_one_body() -> None:
    g = GraphBuilder()
    kernels = check(g.build(*(g.convert(g.input(16 * n), torch.bfloat16) for n in range(1, 40))))
    assert len(kernels) == 1 and bodies(kernels[0]) == 1 and kernels[0].count("tl.load(") == 1


def test_a_common_buffer_is_one_pointer() -> None:
    g = GraphBuilder()
    rate = g.input()
    outputs = [g.mul(g.input(n), g.broadcast_in_dim(rate, (n,), ())) for n in (16, 32, 48, 4096)]
    (kernel,) = check(g.build(*outputs))
    assert re.search(r"def kernel\((.*)\):", kernel).group(1).count("a") == 9


def test_streams_of_random_numbers_are_chosen_like_pointers() -> None:
    g = GraphBuilder()
    seed = g.input(dtype=torch.int64)
    outputs = [g.mul(g.input(512), g.random(seed, stream, (512,))) for stream in (5, 1, 2**41, 0)]
    (kernel,) = check(g.build(*outputs))
    assert bodies(kernel) == 1 and kernel.count("tl.int64)") >= 4


def test_transposed_members() -> None:
    g = GraphBuilder()
    outputs = []
    for rows, columns in ((64, 96), (64, 96), (96, 64), (2, 3)):
        x, y = g.input(rows, columns), g.input(columns, rows)
        outputs.append(g.add(g.permute(x, (1, 0)), y))
    kernels = check(g.build(*outputs))
    assert len(kernels) == 2 and sorted(map(bodies, kernels)) == [0, 2]


def test_members_of_two_dimensions_that_are_not_contiguous() -> None:
    g = GraphBuilder()
    outputs = [g.mul(g.input(n, 7, 5, stride=(70, 10, 2)), 2.0) for n in (3, 3, 4)]
    kernels = check(g.build(*outputs))
    assert len(kernels) == 1


def test_more_pointers_than_a_launch_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, "launches", max_pointers=8)
    g = GraphBuilder()
    kernels = check(g.build(*(g.convert(g.input(16 * n), torch.bfloat16) for n in range(1, 12))))
    assert len(kernels) == 3


def test_more_bodies_than_a_launch_has(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, "launches", max_bodies=2)
    g = GraphBuilder()
    ops = (g.exp, g.sin, g.sqrt, g.neg, g.abs)
    kernels = check(g.build(*(op(g.abs(g.input(n, 3))) for op in ops for n in (2, 5))))
    assert sorted(map(bodies, kernels)) == [1, 2, 2]


def test_large_members_share_a_launch_with_their_like_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, "launches", large_bytes=2000)
    g = GraphBuilder()
    outputs = [op(g.input(n)) for op in (g.exp, g.neg) for n in (16, 32, 1600, 3200)]
    kernels = check(g.build(*outputs))
    assert sorted(map(bodies, kernels)) == [1, 1, 2]


def test_new_values_over_inputs() -> None:
    g = GraphBuilder()
    pairs = [(g.input(*shape), g.input(*shape)) for shape in ((64,), (3, 5), (1,), (2048,))]
    new = [g.sub(p, g.mul(grad, 0.5)) for p, grad in pairs]
    gm = g.build(*new)
    report = Report("test")
    rendered = render_part(gm, OPTIONS, report, "forward", {i: f"x{2 * i}" for i in range(4)})
    assert len(rendered.kernels) == 1 and len(rendered.kernels[0].signature) == 8
    program, inputs = load(rendered, OPTIONS), real_inputs(gm)
    want = run_eager(gm, inputs)
    results = program(list(inputs))
    for i in range(4):
        assert results[i] is inputs[2 * i]
        torch.testing.assert_close(results[i], want[i])


def test_a_new_value_and_another_reader_of_the_old_one() -> None:
    g = GraphBuilder()
    x, y, z = g.input(48), g.input(9, 48), g.input(5)
    gm = g.build(g.add(x, 1.0), g.add(g.broadcast_in_dim(x, (9, 48), (1,)), y), g.add(z, 1.0))
    program, inputs = load(render_part(gm, OPTIONS, Report("test"), "forward", {0: "x0"}), OPTIONS), real_inputs(gm)
    want = run_eager(gm, inputs)
    results = program(list(inputs))
    assert results[0] is inputs[0]
    torch.testing.assert_close(results, want)


def test_members_that_may_find_a_fault_run_alone() -> None:
    g = GraphBuilder()
    x, y = g.input(8, dtype=torch.int64), g.input(8, dtype=torch.int64)
    z, grad = g.input(4, dtype=torch.int64), g.input(4, dtype=torch.int64)
    gm = g.build(g.floor_div(x, y), g.sub(z, grad))
    rendered = render_part(gm, OPTIONS, Report("test"), "forward", {1: "x2"})
    assert len(rendered.kernels) == 2
    program = load(rendered, OPTIONS)
    ones = torch.ones(8, dtype=torch.int64)
    with pytest.raises((SmeltError, RuntimeError), match="[Zz]ero"):
        program([ones, ones * 0, ones[:4].clone(), ones[:4].clone()])


def sources(count: int) -> list:
    g = GraphBuilder()
    outputs, updates = [], {}
    for n in range(1, count):
        p, grad, m = g.input(4096 * n), g.input(4096 * n, dtype=torch.bfloat16), g.input(4096 * n)
        moved = g.add(g.mul(m, 0.9), g.convert(grad, torch.float32))
        updates |= {len(outputs): p.name, len(outputs) + 1: m.name}
        outputs += [g.sub(p, g.mul(moved, 0.1)), moved]
    plan = schedule(lower(g.build(*outputs)), Options(), updates, GPU)
    return render_triton(plan, torch.device("cpu")).kernels


def test_a_bundle_is_built_and_reads_wide_words(tmp_path: Path) -> None:
    (source,) = sources(20)
    cubin = build(source, source.configs[0], 90).result()
    assert cubin.entry.endswith("others") and len(source.signature) == 3 * 19
    path = tmp_path / "kernel.cubin"
    path.write_bytes(cubin.image)
    tool = TOOLS / "cuobjdump"
    if not tool.exists():
        pytest.skip("this Triton has no cuobjdump")
    text = subprocess.run([tool, "-sass", path], capture_output=True, text=True, check=True).stdout
    loads, stores = (re.findall(rf"{kind}\.E(\S*)", text) for kind in ("LDG", "STG"))
    assert loads and stores and all(".128" in width for width in (*loads, *stores))
    text = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.search(rf"{what}:(\d+)", text).group(1)) for what in ("REG", "STACK"))
    assert registers <= 96 and stack == 0


def test_equal_bundles_are_equal_text() -> None:
    assert sources(6)[0].source == sources(6)[0].source
