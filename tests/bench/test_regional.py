"""Whole compilation beside that of regions: what is measured, printed and compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import smelt
from smelt.base.errors import OptionError
from smelt.bench.contenders import find_contender
from smelt.bench.processes.process import Failure
from smelt.bench.regional import table
from smelt.bench.regional.measure import Passes, chosen_dtype, first_pass, passes_in_turn
from smelt.bench.regional.models import chosen_decoders
from smelt.cli.main import app


def test_passes_of_a_small_decoder() -> None:
    passes = Passes(batch=2, length=4, train=True)
    found = passes_in_turn("tiny", ["eager", "smelt", "smelt:regions"], passes, rounds=2)
    assert list(found) == ["eager", "smelt", "smelt:regions"]
    assert all(len(value["seconds"]) == 2 and value["error"] < 1e-5 for value in found.values())
    smelt.reset()
    started = first_pass("tiny", "smelt:regions", Passes(batch=2, length=4))
    assert started["cold_s"] > 0 and started["counts"]["graphs"] > 1


def test_regions_are_contenders() -> None:
    ours, theirs = find_contender("smelt:regions"), find_contender("torch.compile:reduce-overhead:regions")
    assert ours.regions and not ours.whole_step  # type: ignore[attr-defined]
    assert theirs.regions and theirs.mode == "reduce-overhead"  # type: ignore[attr-defined]
    for wrong in ("smelt:regions:step", "smelt:regions:regions", "torch.compile:step"):
        with pytest.raises(OptionError):
            find_contender(wrong)


def test_the_table_and_its_goals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "eager": {"cold_s": 0.5, "counts": {}},
        "torch.compile": Failure("fail_compile", "no compiler"),
        "smelt": {"cold_s": 2.0, "counts": {"graphs": 1, "breaks": 0}},
        "smelt:regions": {"cold_s": 1.0, "counts": {"graphs": 5, "breaks": 0}},
    }
    seconds = {"eager": [0.4, 0.5, 0.6], "smelt": [0.2, 0.2, 0.9], "smelt:regions": [0.202, 0.1, 0.3]}

    def run(self: object, task: dict, environment: object, limits: object) -> object:
        if task["task"] == "first_pass":
            return answers[task["contender"]]
        return {name: {"seconds": seconds[name], "error": 1e-7} for name in task["contenders"]}

    monkeypatch.setattr(table.Server, "run", run)
    console = Console(record=True, width=120)
    kept = tmp_path / "r.json"
    rows = table.run_regional(["tiny"], [1, 4], Passes(1, 8), list(answers), 3, "smelt bench regional", console, kept)
    text = console.export_text()
    assert list(rows) == ["tiny, 1x8", "tiny, 4x8"]
    assert "2.50" in text and "tiny, 1x8, torch.compile: fail_compile: no compiler" in text
    assert "tiny, 4x8: regional step / whole: 1.01 (goal: at most 1.03): reached" in text
    assert "tiny, 4x8: whole cold start / regional: 2.00 (goal: at most 1.3): missed" in text
    assert "torch.compile's" not in text  # which failed
    assert json.loads(kept.read_text())["regional"]["tiny, 1x8"]["smelt"]["seconds"] == [0.2, 0.2, 0.9]


def test_default_decoders_and_dtypes() -> None:
    assert chosen_decoders((), "cuda:1") == ["1B", "3B", "8B", "13B"]
    assert chosen_decoders(["tiny", "tiny"], "cpu") == ["tiny"]
    assert (chosen_dtype(None, "cpu"), chosen_dtype(None, "cuda"), chosen_dtype("bf16", "cuda")) == (
        "fp32",
        "fp16",
        "bf16",
    )


@pytest.mark.parametrize(
    "wrong, told",
    [
        (["2B"], "unknown model '2B'"),
        (["--batches", "1,x"], "--batches wants whole numbers"),
        (["--batches", "0"], "--batches wants whole numbers"),
        (["--batches", "1,,4"], "--batches wants whole numbers"),
        (["--dtype", "int8"], "unknown dtype 'int8'"),
        (["--contenders", "eager,smelt:region:regions:step"], "unknown contender"),
    ],
)
def test_wrong_arguments(wrong: list[str], told: str) -> None:
    result = CliRunner().invoke(app, ["bench", "regional", *wrong])
    assert result.exit_code == 2 and told in " ".join(result.output.split())
