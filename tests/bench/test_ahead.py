"""The first step from an artefact beside eager's: what is printed and kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

import smelt
from smelt.bench.ahead import measure
from smelt.bench.processes.process import Failure
from smelt.bench.workload import Settings
from smelt.bench.workloads import find_workload


def test_an_artefact_of_a_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(measure.FILE, str(tmp_path / "model.smelt"))
    found = measure.save("tiny-mlp", Settings())
    assert found["bytes"] == (tmp_path / "model.smelt").stat().st_size
    workload = find_workload("tiny-mlp", "cpu")
    model, batch = workload.build(), workload.batch()
    compiled = measure.loaded(model, Settings())
    assert smelt.is_compiled(compiled)
    assert torch.isfinite(workload.loss(compiled(*batch.args, **batch.kwargs), batch))


def test_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"seconds": 3.0, "bytes": 2**20, "eager_s": [1.0, 2.0, 9.0], "artefact_s": [3.0, 1.0, 2.5]}
    failure = Failure("fail_compile", "no graph")
    monkeypatch.setattr(measure, "_measure", lambda workload, *_: value if workload.name == "tiny-mlp" else failure)
    console = Console(record=True, width=120)
    workloads = [find_workload(name, "cpu") for name in ("tiny-mlp", "tiny-conv")]
    found = measure.run_ahead(workloads, Settings(), 3, "smelt bench aot", console, tmp_path / "a.json")
    text = console.export_text()
    assert "1.25" in text and "tiny-conv: fail_compile: no graph" in text and list(found) == ["tiny-mlp"]
    assert json.loads((tmp_path / "a.json").read_text())["ahead"]["tiny-mlp"]["eager_s"] == [1.0, 2.0, 9.0]
