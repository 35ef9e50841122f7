"""A run on two processes with a contender that fails on one rank; goals and predictions from given figures."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from smelt.bench.distributed.ranks import Task
from smelt.bench.distributed.simulation import Cluster
from smelt.bench.distributed.table import Run, failures, goals, predictions, run_distributed, table

gloo = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="needs gloo"
)


@gloo
def test_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    contenders = "eager", "smelt", "tests.bench.contenders:fails_on_the_last_rank"
    task = Task("llama-tiny", "", "", "", rounds=1, steps=2)
    run = Run(("ddp",), contenders, 2, 120.0, task)
    out = Console(file=io.StringIO(), width=200)
    (row,) = run_distributed(run, "the command", out, tmp_path / "kept.json").values()
    for name in contenders[:2]:
        assert "failed" not in row[name], row[name]
        assert row[name]["step_s"] > 0 and row[name]["peak_mb"] > 0 and row[name]["hidden"] is None
    assert row["smelt"]["counts"]["breaks"] == 0
    assert row["smelt"]["losses"] == pytest.approx(row["eager"]["losses"], rel=1e-5)
    assert 0 < row["smelt"]["parameter_error"] < 1e-2
    assert row[contenders[2]] == {"failed": "rank 1: RuntimeError: planted"}
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert kept["distributed"]["ddp"] == row and kept["command"] == "the command"
    printed = out.file.getvalue()  # type: ignore[attr-defined]
    assert f"ddp, {contenders[2]}: rank 1: RuntimeError: planted" in printed


def figures(step_s: float, **more: Any) -> dict[str, Any]:
    """The figures of one measurement."""
    empty = {"cold_s": 1.0, "peak_mb": 100.0, "losses": [1.0], "parameter_error": 0.0, "counts": {"graphs": 1}}
    return {"step_s": step_s, "hidden": None, "timeline": None} | empty | more


def test_goals_name_figures_that_were_measured() -> None:
    rows = {
        "single": {"smelt": figures(1.0)},
        "ddp": {"eager": {"failed": "no memory"}, "torch.compile": figures(1.2), "smelt": figures(1.02)},
    }
    assert list(goals(rows)) == [
        "ddp: step / one process: 1.02 (goal: at most 1.03): reached",
        "ddp: step / torch.compile's: 0.85 (goal: at most 0.77): missed",
        "ddp: first step / one process: 1.00 (goal: at most 1.20): reached",
    ]
    assert list(failures(rows)) == ["ddp, eager: no memory"]
    out = Console(file=io.StringIO(), width=200)
    out.print(table(rows, "title"))
    assert "failed" in out.file.getvalue()  # type: ignore[attr-defined]


def test_predictions_of_what_has_a_timeline() -> None:
    collective = {"kind": "AllReduce", "begin": 0.5, "end": 0.6, "nbytes": 10**6}
    measured = {"compute": [[0.0, 1.0]], "collectives": [collective]}
    rows = {"ddp": {"eager": figures(1.0), "smelt": figures(1.0, hidden=1.0, timeline=measured)}}
    out = Console(file=io.StringIO(), width=200)
    out.print(predictions(rows, 2, [8], Cluster()))
    assert [line.split()[:3] for line in out.file.getvalue().splitlines() if "smelt" in line] == [
        ["ddp", "smelt", "1000.0"]
    ]  # type: ignore[attr-defined]
