"""smelt/bench/bandwidth: the problems, who is right about them, and a whole run at small sizes."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from smelt.base.errors import OptionError, SmeltError
from smelt.bench.bandwidth.measure import eager_results, measure_copy, measure_problem
from smelt.bench.bandwidth.problems import LARGE, PROBLEMS, SMALL
from smelt.bench.bandwidth.run import Bandwidth, Run, run_bandwidth, save
from smelt.bench.machine import describe_machine
from smelt.bench.results import Benchmark

CPU = torch.device("cpu")
SHIFTING = "tests.bench.contenders:shifting"


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem_counts_its_tensors_and_has_a_float64_twin(name: str) -> None:
    problem = PROBLEMS[name](SMALL, torch.float32, CPU)
    tensors = [x for x in getattr(problem, "parameters", problem.inputs if hasattr(problem, "inputs") else [])]
    largest = max(x.numel() * x.element_size() for x in tensors)
    assert problem.moved >= largest
    wide = eager_results(problem.widened())
    assert all(x is not None and x.dtype == torch.float64 for x in wide.values())
    narrow = eager_results(problem)
    assert narrow.keys() == wide.keys()
    for key, exact in wide.items():
        torch.testing.assert_close(narrow[key].double(), exact, rtol=1e-4, atol=1e-5)  # type: ignore[union-attr]


def test_bytes_of_a_layer_norm_and_of_adamw() -> None:
    matrix = SMALL.rows * SMALL.columns * 4
    assert PROBLEMS["layer norm"](SMALL, torch.float32, CPU).moved == 2 * matrix
    assert PROBLEMS["layer norm, backward too"](SMALL, torch.float32, CPU).moved == 5 * matrix
    problem = PROBLEMS["AdamW"](SMALL, torch.bfloat16, CPU)
    assert problem.moved == 7 * 4 * sum(x.numel() for x in problem.parameters)  # type: ignore[attr-defined]
    # Large sizes exceed a cache of 60 MB several times.
    assert LARGE.rows * LARGE.columns * 2 > 200e6


def test_contenders_take_turns_and_wrong_ones_are_named() -> None:
    found = measure_problem("softmax", "fp32", "cpu", ["eager", "smelt", SHIFTING], rounds=3)["contenders"]
    assert [len(found[name]["seconds"]) for name in ("eager", "smelt", SHIFTING)] == [3, 3, 3]
    assert found["eager"]["error"] is None and found["smelt"]["error"] is None
    assert "output: error" in found[SHIFTING]["error"]
    assert measure_copy("cpu", rounds=3) > 1e6


def test_an_optimizers_step_is_compiled_once_and_right() -> None:
    found = measure_problem("AdamW", "fp32", "cpu", ["eager", "smelt"], rounds=2)["contenders"]
    assert all(each["error"] is None for each in found.values())


def test_a_run_keeps_every_problem_and_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "b.json"
    out = io.StringIO()
    run = Run("cpu", ("eager", SHIFTING), "fp32", "^softmax$", "smelt bench bandwidth", json_file=file)
    run_bandwidth(run, Console(file=out, width=100))
    (softmax,) = Bandwidth.load(file).problems
    assert softmax.figures["eager"].share and softmax.figures["eager"].error is None
    assert "WRONG: output: error" in out.getvalue() and "GB/s" in out.getvalue()
    again = Run("cpu", ("eager", SHIFTING), "fp32", "^(softmax|layer norm)$", json_file=file, resume=True)
    run_bandwidth(again, Console(file=io.StringIO()))
    assert [problem.name for problem in Bandwidth.load(file).problems] == ["softmax", "layer norm"]
    with pytest.raises(OptionError, match="is of fp32 on cpu"):
        run_bandwidth(Run("cpu", ("eager",), "bf16", json_file=file, resume=True), Console(file=io.StringIO()))
    with pytest.raises(SmeltError, match="shares of the memory's bandwidth"):
        Benchmark.load(file)


def test_a_problem_that_the_runs_end_cuts_off_is_left_for_later(tmp_path: Path) -> None:
    file, out = tmp_path / "b.json", io.StringIO()
    hanging = ("eager", "tests.bench.contenders:hanging")
    cut = Run("cpu", hanging, "fp32", "^softmax$", json_file=file, seconds=1, resume=True)
    save(Bandwidth("", describe_machine(), "2026-01-01", "cpu", "fp32", 1e10), cut)  # no copy takes of the second
    run_bandwidth(cut, Console(file=out, width=100))
    assert Bandwidth.load(file).problems == [] and "out of time before: softmax" in out.getvalue()
    limited = Run("cpu", hanging, "fp32", "^softmax$", json_file=file, seconds=600, limit=1, resume=True)
    run_bandwidth(limited, Console(file=io.StringIO()))
    (softmax,) = Bandwidth.load(file).problems
    assert softmax.figures["eager"].error == "no end after 1 s"


@pytest.mark.parametrize(
    ("dtype", "only", "message"),
    [
        ("fp8", "", "unknown dtype"),
        ("bf16", "(", "not a regular expression"),
        ("bf16", "sort", "no problem has 'sort'"),
    ],
)
def test_bad_choices_are_named(dtype: str, only: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        run_bandwidth(Run("cpu", ("eager",), dtype, only), Console(file=io.StringIO()))
