"""Maximum and sum of exponentials in one loop: values, and which sums are folded so."""

from __future__ import annotations

import math

import pytest
import torch
from torch import fx

from smelt.base.options import Options
from smelt.base.report import Report
from smelt.driver import compile_program
from tests.loops.graphs import GraphBuilder, run_eager
from tests.machines import tune

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows do not fit into tiles."""
    tune(monkeypatch, "tiles", max_row_elements=64, walked_block_elements=32, lone_block_elements=32)
    tune(monkeypatch, "tiles", walked_threads=32, word_rows_threads=32)


def normalizer(rows: int, columns: int, dtype: torch.dtype, twice: bool = False) -> fx.GraphModule:
    """Maximum and logarithm of the sum of exponentials, as cross entropy has them; `twice`: of another value."""
    g = GraphBuilder()
    x = g.convert(g.input(rows, columns, dtype=dtype), torch.float32)
    top = g.amax(x, (1,))
    shifted = g.sub(g.mul(x, 2.0) if twice else x, g.broadcast_in_dim(top, (rows, columns), (0,)))
    return g.build(top, g.log(g.sum(g.exp(shifted), (1,))))


def check(gm: fx.GraphModule, x: torch.Tensor) -> str:
    report = Report("test")
    program = compile_program(gm, Options(target="triton"), report)
    for got, want in zip(program([x]), run_eager(gm, [x]), strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5, equal_nan=True)
    return report.artefacts["6_forward_kernels.py"]()


def loops(text: str) -> int:
    """Loops over rows; one that is there once more for the last row of a tensor that ends between words counts once."""
    return text.count("for rstart") - text.count("if last0:")


@pytest.mark.parametrize("columns", [101, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_of_all_kinds(columns: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, "tiles", busy_programs=2)
    x = torch.randn(12, columns) * 20
    x[1] = torch.linspace(-50, 50, columns)
    x[2] = torch.linspace(50, -50, columns)
    x[3] = -math.inf
    x[4, ::2] = -math.inf
    x[5, 7] = math.inf
    x[6, 3], x[6, 90] = math.inf, math.inf
    x[7, 40] = math.nan
    x[8] = torch.finfo(dtype).min
    x[9] = torch.finfo(dtype).max
    x[10, :50] = -math.inf
    text = check(normalizer(12, columns, dtype), x.to(dtype))
    assert loops(text) == 1 and "online_step" in text


def test_the_sum_of_another_value_has_a_loop_of_its_own() -> None:
    text = check(normalizer(5, 101, torch.float32, twice=True), torch.randn(5, 101))
    assert loops(text) == 2 and "online_step" not in text


def test_a_softmax_is_two_loops() -> None:
    g = GraphBuilder()
    x = g.input(5, 101)
    top = g.broadcast_in_dim(g.amax(x, (1,)), (5, 101), (0,))
    power = g.exp(g.sub(x, top))
    total = g.broadcast_in_dim(g.sum(power, (1,)), (5, 101), (0,))
    text = check(g.build(g.div(power, total)), torch.randn(5, 101))
    assert loops(text) == 2 and "online_step" in text
