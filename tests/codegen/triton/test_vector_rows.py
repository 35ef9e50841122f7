"""Loads of rows that begin between words stay inside of their tensors: each address that the interpreter reads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import fx

import smelt
from smelt.base.options import Options
from smelt.base.report import Report
from smelt.driver import compile_program
from tests.loops.graphs import GraphBuilder, run_eager
from tests.machines import tune

interpreter = pytest.importorskip("triton.runtime.interpreter")


def folded(rows: int, columns: int, dtype: torch.dtype) -> fx.GraphModule:
    g = GraphBuilder()
    x = g.input(rows, columns, dtype=dtype)
    return g.build(g.amax(x, (1,)), g.amin(x, (1,)))


def scaled(rows: int, columns: int, dtype: torch.dtype) -> fx.GraphModule:
    """Each row times a number of its own."""
    g = GraphBuilder()
    x, each = g.input(rows, columns, dtype=dtype), g.input(rows, dtype=dtype)
    return g.build(g.mul(x, g.broadcast_in_dim(each, (rows, columns), (0,))))


def placed(values: torch.Tensor, offset: int) -> torch.Tensor:
    """The values, so many elements behind an address that is a multiple of 64."""
    whole = torch.zeros(values.numel() + 64 + offset, dtype=values.dtype)
    start = -whole.data_ptr() % 64 // whole.itemsize + offset
    return whole[start : start + values.numel()].view(values.shape).copy_(values)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The (first, last) addresses of each load's elements that its mask lets through, filled while kernels run."""
    found: list[tuple[int, int]] = []
    load = interpreter.InterpreterBuilder.create_masked_load

    def recorded(self: object, ptrs: object, mask: object, *rest: object) -> object:
        chosen = ptrs.data[np.broadcast_to(mask.data, ptrs.data.shape)]  # type: ignore[attr-defined]
        if chosen.size:
            found.append((int(chosen.min()), int(chosen.max())))
        return load(self, ptrs, mask, *rest)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_masked_load", recorded)
    return found


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("rows,columns", [(7, 1), (3, 101), (4, 101), (3, 1023)])
@pytest.mark.parametrize("program", [folded, scaled], ids=["folded", "scaled"])
def test_no_load_reaches_beyond_its_tensor(
    program: object,
    rows: int,
    columns: int,
    dtype: torch.dtype,
    offset: int,
    read: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tune(monkeypatch, "tiles", max_row_elements=512, walked_block_elements=256)
    gm = program(rows, columns, dtype)  # type: ignore[operator]
    values = torch.arange(rows * columns).view(rows, columns) % 11 - 5
    x = placed(values.to(dtype), offset)
    inputs = [x]  # which the call empties
    if program is scaled:
        inputs.append(placed(torch.arange(1, rows + 1).to(dtype), 0))
    want = run_eager(gm, inputs)
    got = compile_program(gm, Options(target="triton"), Report("test"))(inputs)
    torch.testing.assert_close(list(got), list(want))
    stays_inside(x, read)


@pytest.mark.parametrize("rows", [3, 6, 8])
def test_nor_where_sizes_vary(rows: int, read: list[tuple[int, int]]) -> None:
    fn = smelt.compile(lambda x: (x.amax(1), x.amin(1)), options={"target": "triton"}, dynamic=True)
    x = placed((torch.arange(rows * 101).view(rows, 101) % 11 - 5).bfloat16(), 0)
    torch.testing.assert_close(fn(x), (x.amax(1), x.amin(1)))
    stays_inside(x, read)


def stays_inside(x: torch.Tensor, read: list[tuple[int, int]]) -> None:
    end = x.data_ptr() + x.nbytes
    near = [(low, high) for low, high in read if x.data_ptr() - 16 < high and low < end + 16]
    assert near
    assert min(low for low, _ in near) >= x.data_ptr() and max(high for _, high in near) <= end - x.itemsize
