"""A second GPU is a value: kernels for another card differ, and compute the same."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch

from smelt import target
from smelt.base.options import Options
from smelt.base.report import Report
from smelt.codegen.triton.blocks import product_configs, shared_bytes
from smelt.driver import compile_program
from smelt.schedule import machine
from smelt.schedule.machine import CPU, GPU, H100, Gpu, gpu
from tests.loops.graphs import GraphBuilder, real_inputs, run_eager

SMALL = Gpu(multiprocessors=8, shared_bytes=64 << 10)


def test_derived_constants_follow_the_hardware() -> None:
    assert gpu(H100) == GPU
    small = gpu(SMALL)
    assert (small.parallel, small.column_programs, small.tiles.busy_programs, small.products.min_blocks) == (
        16,
        16,
        32,
        4,
    )
    assert replace(small, hardware=H100) != GPU


def test_all_numbers_are_in_frozen_records() -> None:
    for each in (CPU, GPU, *(getattr(GPU, field.name) for field in fields(GPU))):
        if is_dataclass(each):
            assert each.__hash__ is not None and type(each).__module__ == machine.__name__
            hash(each)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("card", [H100, SMALL])
def test_blocks_fit_into_the_shared_memory_of_the_card(card: Gpu, dtype: torch.dtype) -> None:
    configs = product_configs(4096, 4096, 4096, 1, dtype, True, True, gpu(card))
    sizes = [dict(config.constants) for config in configs]
    taken = [
        shared_bytes((s["YBLOCK"], s["XBLOCK"], s["KBLOCK"], 4, c.num_stages), dtype)
        for s, c in zip(sizes, configs, strict=True)
    ]
    assert taken and max(taken) <= card.shared_bytes


def _columns(g: GraphBuilder) -> Any:
    return g.build(g.sum(g.exp(g.input(1024, 64)), (0,)))


def _rows(g: GraphBuilder) -> Any:
    x = g.input(64, 96)
    return g.build(g.sub(x, g.broadcast_in_dim(g.amax(x, (1,)), (64, 96), (0,))))


@pytest.mark.parametrize("program", [_columns, _rows], ids=["columns", "rows"])
def test_programs_for_another_card_compute_the_same(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gm = program(GraphBuilder())
    inputs = real_inputs(gm)
    texts = []
    for card in (H100, SMALL):
        monkeypatch.setattr(target, "GPU", gpu(card))
        report = Report("test")
        compiled = compile_program(gm, Options(target="triton"), report)
        for got, want in zip(compiled(list(inputs)), run_eager(gm, inputs), strict=True):
            torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
        texts.append(report.artefacts["6_forward_kernels.py"]())
    assert texts[0] != texts[1]
