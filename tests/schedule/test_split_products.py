"""smelt/driver.py: when large products of float32 may be multiplied in parts."""

from __future__ import annotations

import pytest
import torch

from smelt import driver, pipeline
from smelt.base.options import Options
from smelt.base.report import Report
from tests.loops.graphs import GraphBuilder


def asked(monkeypatch, options, device) -> bool:
    """What the schedule is told."""
    told = []

    def schedule(program, options, updates, machine, held, parts, stage_bytes):
        told.append(parts)
        raise InterruptedError

    g = GraphBuilder()
    gm = g.build(g.mm(g.input(64, 64), g.input(64, 64)))
    monkeypatch.setattr(pipeline, "schedule", schedule)
    monkeypatch.setattr(driver, "triton_device", lambda *_: device)
    with pytest.raises(InterruptedError):
        driver.render_part(gm, options, Report("test"), "forward")
    return told[0]


def test_by_device_and_options(monkeypatch):
    monkeypatch.setattr(driver, "products_round_to_tf32", lambda: False)
    gpu = torch.device("cuda")
    assert asked(monkeypatch, Options(), gpu)
    assert not asked(monkeypatch, Options(gemm="aten"), gpu)
    assert not asked(monkeypatch, Options(), torch.device("cpu"))
    assert not asked(monkeypatch, Options(), None)
    monkeypatch.setattr(driver, "products_round_to_tf32", lambda: True)
    assert not asked(monkeypatch, Options(), gpu)


def test_not_where_results_must_be_the_same(monkeypatch):
    monkeypatch.setattr(driver, "products_round_to_tf32", lambda: False)
    torch.use_deterministic_algorithms(True)
    try:
        assert not asked(monkeypatch, Options(), torch.device("cuda"))
    finally:
        torch.use_deterministic_algorithms(False)
