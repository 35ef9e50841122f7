"""Rows of one value, or computed from places alone, are folded by all threads of a program, as loaded rows are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import smelt
from smelt.base.options import Options
from smelt.codegen.triton.host import render_triton
from smelt.loops.lower import lower
from smelt.schedule.machine import GPU
from smelt.schedule.plan import schedule
from tests.loops.graphs import GraphBuilder

pytest.importorskip("triton")

from tests.codegen.triton.machine_code import instructions

gpu = torch.cuda.is_available()
DEVICES = [
    pytest.param("cpu", marks=pytest.mark.skipif(gpu, reason="Triton interprets or compiles, by process")),
    pytest.param("cuda", marks=pytest.mark.gpu),
]


def _twice(rows: Tensor) -> tuple[Tensor, Tensor]:
    return rows.sum(1), rows - rows.mean(1, keepdim=True) * 0.5


PROGRAMS: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "repeated": lambda x: (x.expand(x.shape[0], 1000).mean(1), x * x.expand(x.shape[0], 1000).mean(1, keepdim=True)),
    "filled a tile": lambda x: (x.expand(-1, 1024).sum(1), x.expand(-1, 1024) / x.expand(-1, 1024).sum(1, True)),
    "of places": lambda x: ((x * torch.arange(1000, device=x.device)).sum(1), x.expand(-1, 1000) * x.sum()),
    "looked up": lambda x: _twice(x.flatten()[x.long().flatten()][:, None].expand(-1, 300)),
    "largest": lambda x: (x.expand(-1, 700).amax(1), x.expand(-1, 700) - x.expand(-1, 700).amax(1, True)),
    "masked": lambda x: (x.expand(-1, 513).tril().sum(1), x.expand(-1, 513) + x.expand(-1, 513).tril().sum(1, True)),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_sums_are_as_exact_as_of_loaded_rows(name: str, dynamic: bool, device: str) -> None:
    """One thread that adds a row's elements in turn is off by 1e-5 after a thousand of them."""
    target = "triton" if device == "cpu" else "auto"
    f = smelt.compile(PROGRAMS[name], dynamic=dynamic, options={"target": target})
    for rows in (1, 2, 5):
        x = torch.linspace(0.7944, 0.8, rows, device=device)[:, None]
        for got, exact in zip(f(x), PROGRAMS[name](x.double()), strict=True):
            torch.testing.assert_close(got.double(), exact, rtol=1e-6, atol=0)


def test_no_thread_folds_a_row_alone(tmp_path: Path) -> None:
    g = GraphBuilder()
    x = g.input(1)
    total = g.sum(g.broadcast_in_dim(x, (1, 1000), (0,)), (1,))
    scaled = g.mul(g.broadcast_in_dim(x, (1, 1000), (0,)), g.broadcast_in_dim(total, (1, 1000), (0,)))
    plan = schedule(lower(g.build(total, scaled)), Options(target="triton"), None, GPU)
    (source,) = render_triton(plan, torch.device("cpu"), False, False).kernels
    names = instructions(source, tmp_path)
    assert any(name.startswith("SHFL") for name in names)
    assert sum(name.startswith("FADD") for name in names) < 64
