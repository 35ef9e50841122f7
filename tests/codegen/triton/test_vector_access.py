"""Rows that begin between two 16-byte words: results next to rows of NaN, widths of loads and stores on sm_90."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import fx

from smelt.abi.kernel_source import KernelSource
from smelt.base.options import Options
from smelt.base.report import Report
from smelt.codegen.triton.host import render_triton
from smelt.driver import compile_program
from smelt.loops.lower import lower
from smelt.schedule.machine import GPU
from smelt.schedule.plan import schedule
from tests.loops import graphs
from tests.loops.graphs import GraphBuilder, run_eager
from tests.machines import tune

pytest.importorskip("triton")

from tests.codegen.triton.machine_code import instructions, widths

NARROW, WIDE = torch.bfloat16, torch.float32
DTYPES = [NARROW, WIDE, torch.float64, torch.int8]


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows do not fit into tiles."""
    tune(monkeypatch, "tiles", max_row_elements=64, walked_block_elements=32)


def check(gm: fx.GraphModule, *inputs: torch.Tensor) -> str:
    """Compile, compare with eager; the text of the kernels."""
    report = Report("test")
    program = compile_program(gm, Options(target="triton"), report)
    want = run_eager(gm, list(inputs))
    tolerance = 2e-2 if NARROW in {x.dtype for x in inputs} else 1e-5
    for w, got in zip(want, program(list(inputs)), strict=True):
        torch.testing.assert_close(got, w, atol=tolerance, rtol=tolerance, equal_nan=True)
    return report.artefacts["6_forward_kernels.py"]()


def rows_beside_nan(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Every other row is NaN, or the largest number: what reaches into a neighbour shows."""
    if not dtype.is_floating_point:
        x = torch.randint(-9, 9, (rows, columns), dtype=dtype)
        x[::2] = torch.iinfo(dtype).max
        return x
    x = torch.randn(rows, columns, dtype=dtype)
    x[::2] = float("nan")
    return x


def softmax(rows: int, columns: int, dtype: torch.dtype) -> fx.GraphModule:
    g = GraphBuilder()
    return g.build(g.convert(graphs.softmax(g, g.convert(g.input(rows, columns, dtype=dtype), WIDE), 1), dtype))


def scaled(rows: int, columns: int, dtype: torch.dtype) -> fx.GraphModule:
    """Each row times a number of its own."""
    g = GraphBuilder()
    x, each = g.input(rows, columns, dtype=dtype), g.input(rows, dtype=dtype)
    return g.build(g.mul(x, g.broadcast_in_dim(each, (rows, columns), (0,))))


@pytest.mark.parametrize("dtype", [NARROW, WIDE])
@pytest.mark.parametrize("columns", [65, 99, 101, 127, 258])
def test_walked_rows(walked: None, columns: int, dtype: torch.dtype) -> None:
    text = check(softmax(9, columns, dtype), rows_beside_nan(9, columns, dtype))
    aligned = columns * dtype.itemsize % 16 == 0
    assert ("skip0" in text) is not aligned and "for rstart" in text


@pytest.mark.parametrize("dtype", DTYPES)
def test_folds_of_walked_rows(walked: None, dtype: torch.dtype) -> None:
    g = GraphBuilder()
    x = g.input(7, 101, dtype=dtype)
    outputs = [g.amax(x, (1,)), g.amin(x, (1,)), g.argmax(x, 1), g.sum(x, (1,))]
    assert "skip0" in check(g.build(*outputs), rows_beside_nan(7, 101, dtype))


def test_rows_that_a_tile_holds() -> None:
    g = GraphBuilder()
    x = g.input(50, 117, dtype=NARROW)
    text = check(g.build(g.amax(x, (1,)), g.amin(x, (1,))), rows_beside_nan(50, 117, NARROW))
    assert "skip0" in text and "for rstart" not in text


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_programs_of_their_own(dtype: torch.dtype) -> None:
    each = torch.arange(1, 6).to(dtype)
    text = check(scaled(5, 2037, dtype), rows_beside_nan(5, 2037, dtype), each)
    assert "skip0" in text and "tl.program_id(1)" in text


def test_rows_of_a_slice_and_weights_of_columns() -> None:
    g = GraphBuilder()
    x, w = g.input(6, 2048), g.input(2040)
    part = g.slice(x, (0, 3), (6, 2043), (1, 1))
    text = check(g.build(g.mul(part, g.broadcast_in_dim(w, (6, 2040), (1,)))), torch.randn(6, 2048), torch.randn(2040))
    assert "skip0" not in text  # three accesses, each from a place of its own


def test_a_padded_row_reads_nothing_outside() -> None:
    g = GraphBuilder()
    x, each = g.input(5, 2030), g.input(5)
    wide = g.pad(x, (0, 3), (0, 4), 1.5)
    gm = g.build(g.mul(wide, g.broadcast_in_dim(each, (5, 2037), (0,))))
    check(gm, torch.randn(5, 2030), torch.randn(5))


def rendered(gm: fx.GraphModule) -> KernelSource:
    plan = schedule(lower(gm), Options(target="triton"), None, GPU)
    (source,) = render_triton(plan, torch.device("cpu"), False, False).kernels
    return source


@pytest.mark.parametrize("dtype", [NARROW, WIDE])
def test_reads_and_writes_of_rows_are_wide(dtype: torch.dtype, tmp_path: Path) -> None:
    """The ends of a row are written one by one; no element is read alone but what the row has in common."""
    one = ".U16" if dtype is NARROW else ""
    names = instructions(rendered(scaled(8192, 50257, dtype)), tmp_path)
    assert names.count("LDG.E.128") >= 2 and names.count("STG.E.128") >= 2
    assert sum(name.startswith("LDG") for name in names) - names.count("LDG.E.128") == 1
    assert set(name for name in names if name.startswith("STG")) == {"STG.E.128", f"STG.E{one}"}
    names = instructions(rendered(softmax(8192, 50257, dtype)), tmp_path)
    assert widths(names, "LDG") == {"128"} and "STG.E.128" in names


def test_a_fold_of_rows_reads_words(tmp_path: Path) -> None:
    g = GraphBuilder()
    source = rendered(g.build(g.amax(g.input(8192, 50257, dtype=NARROW), (1,))))
    assert widths(instructions(source, tmp_path), "LDG") == {"128"}


def test_a_rows_values_are_read_once_where_rows_are_aligned(tmp_path: Path) -> None:
    source = rendered(scaled(8192, 32000, NARROW))
    assert "tl.program_id(1)" in source.source and "//" not in source.source
    names = instructions(source, tmp_path)
    assert sum(name.startswith("LDG") for name in names) == 3


def test_elements_are_selected_in_the_end_blocks_of_a_walked_row(walked: None, tmp_path: Path) -> None:
    """One loop, in which only the first and the last block of a row enter the branch that selects elements."""
    g = GraphBuilder()
    x = g.convert(g.input(8192, 50257, dtype=NARROW), WIDE)
    top = g.amax(x, (1,))
    power = g.exp(g.sub(x, g.broadcast_in_dim(top, (8192, 50257), (0,))))
    source = rendered(g.build(top, g.log(g.sum(power, (1,)))))
    assert source.source.count("for rstart") == 1 and "if (rstart == 0) | (rstart + RBLOCK > 50257):" in source.source
    (config,) = source.configs
    assert config.num_warps * 32 == GPU.tiles.word_rows_threads
    elements = dict(config.constants)["RBLOCK"] // GPU.tiles.word_rows_threads
    assert len(instructions(source, tmp_path)) / elements < 26


def between_words(x: torch.Tensor, by: int = 1) -> torch.Tensor:
    """The values in memory that begins so many elements behind a word, between others that show."""
    memory = torch.full((x.numel() + 48,), 111, dtype=x.dtype)
    start = -memory.data_ptr() % 16 // x.dtype.itemsize + by
    return memory[start : start + x.numel()].copy_(x.flatten()).view(x.shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("by", [1, 3, 5])
def test_rows_of_a_tensor_between_words(by: int, dtype: torch.dtype) -> None:
    """Words counted from its first element are none in memory."""
    x, each = rows_beside_nan(5, 2037, dtype), torch.arange(1, 6).to(dtype)
    text = check(scaled(5, 2037, dtype), between_words(x, by), each)
    assert "skip0" in text
    x = rows_beside_nan(5, 2048, dtype)[:, 3:2043]
    g = GraphBuilder()
    part = g.slice(g.input(5, 2048, dtype=dtype), (0, 3), (5, 2043), (1, 1))
    check(g.build(g.amax(part, (1,))), between_words(rows_beside_nan(5, 2048, dtype), by))


def test_whole_and_walked_rows_of_a_tensor_between_words(walked: None) -> None:
    assert "for rstart" in check(softmax(9, 127, NARROW), between_words(rows_beside_nan(9, 127, NARROW)))
    g = GraphBuilder()
    x = g.input(7, 101)
    outputs = [g.amax(x, (1,)), g.amin(x, (1,)), g.argmax(x, 1), g.sum(x, (1,))]
    check(g.build(*outputs), between_words(rows_beside_nan(7, 101, WIDE), 3))


@pytest.mark.parametrize("dtype", [NARROW, WIDE])
def test_kernels_for_rows_between_words(dtype: torch.dtype, tmp_path: Path) -> None:
    """Another text where nothing begins with a word: no word is read or written, only what lies in the rows."""
    source = rendered(scaled(8192, 50257, dtype))
    assert source.unaligned is not None and "skip0" in source.source and "skip0" not in source.unaligned
    one = {"U16"} if dtype is NARROW else {"32"}
    names = instructions(source.undeclared(source.divisible), tmp_path)
    assert widths(names, "LDG") | widths(names, "STG") == one
    assert rendered(scaled(8192, 32000, dtype)).unaligned is None


@pytest.mark.parametrize(("dtype", "one"), [(NARROW, "U16"), (WIDE, "32"), (torch.int64, "64"), (torch.uint8, "U8")])
def test_only_what_begins_with_a_word_is_read_in_words(dtype: torch.dtype, one: str, tmp_path: Path) -> None:
    """Tensors that begin elsewhere do not make others' loads and stores narrow."""
    g = GraphBuilder()
    source = rendered(g.build(g.add(g.input(1 << 20, dtype=dtype), g.input(1 << 20, dtype=dtype))))
    first, second, out = (name for name, _ in source.signature)
    plain = instructions(source, tmp_path)
    assert widths(plain, "LDG") == widths(plain, "STG") == {"128"}
    moved = instructions(source.undeclared([first]), tmp_path)
    assert widths(moved, "LDG") == {"128", one} and widths(moved, "STG") == {"128"}
    moved = instructions(source.undeclared([first, second, out]), tmp_path)
    assert widths(moved, "LDG") == widths(moved, "STG") == {one}
