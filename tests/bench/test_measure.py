"""smelt/bench/measure.py, process.py and worker.py: real child processes on tiny models."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from smelt.bench import workloads
from smelt.bench.measure import Plan, measure_row, selected_contenders
from smelt.bench.processes.process import Failure, Server, cache_environment, run_task
from smelt.bench.processes.server import OPTIMIZERS
from smelt.bench.processes.servers import Servers
from smelt.bench.results import Result, Row
from smelt.bench.workload import Batch, Settings, Workload
from smelt.bench.workloads import find_workload

HERE = "tests.bench.contenders:"
PLAN = Plan(rounds=5, warmup=2, timeout_s=120)


@pytest.fixture(scope="module")
def row() -> Row:
    names = ["eager", *(HERE + name for name in ("identity", "wrong", "refusing", "late"))]
    with Server([OPTIMIZERS]) as server:
        return measure_row(find_workload("tiny-mlp"), Settings(), names, PLAN, server=server)


def test_eager_and_a_right_contender_pass(row: Row) -> None:
    for name in ("eager", HERE + "identity"):
        result = row.results[name]
        assert result.status == "pass", result
        assert result.cold_s and result.warm_s and result.speedup
        assert result.step is not None and result.step.n == PLAN.rounds
        assert result.peak_mb and result.peak_mb > 50
    assert row.results["eager"].speedup == 1.0


def test_a_wrong_gradient_costs_the_verdict(row: Row) -> None:
    result = row.results[HERE + "wrong"]
    assert result.status == "fail_accuracy"
    assert result.accuracy is not None and not result.accuracy.ok
    assert result.error is not None and "grad." in result.error


def test_a_contender_that_refuses_keeps_its_reason(row: Row) -> None:
    result = row.results[HERE + "refusing"]
    assert (result.status, result.step) == ("fail_compile", None)
    assert result.error is not None and "cannot compile this" in result.error


def test_a_crash_between_interleaved_steps_costs_one_contender(row: Row) -> None:
    result = row.results[HERE + "late"]
    assert result.status == "fail_run"
    assert result.error is not None and "SIGABRT" in result.error


def test_phases_are_announced_and_warm_starts_can_be_left_out() -> None:
    seen: list[tuple[str, str]] = []
    plan = Plan(rounds=2, warmup=1, cold=False, check=False, timeout_s=120)
    row = measure_row(
        find_workload("tiny-mlp"), Settings(train=False), ["eager"], plan, lambda _, *phase: seen.append(phase)
    )
    assert seen == [("eager", "cold start"), ("all", "steps"), ("all", "limit of the machine")]
    assert row.results["eager"].cold_s and row.results["eager"].warm_s is None
    assert row.results["eager"].status == "pass"


def test_missing_packages_skip_the_row() -> None:
    needy = Workload("needy", "tiny", lambda: None, Batch, lambda *_: None, needs=("no_such_package",))  # type: ignore
    row = measure_row(needy, Settings(), ["eager"], PLAN)
    assert row.results["eager"] == Result("eager", "skipped", "pip install no_such_package")


def test_a_crash_and_the_time_limit_are_failures() -> None:
    task = {"task": "start", "model": "tiny-mlp", "settings": Settings().to_dict(), "steps": 0}
    crash = run_task(task | {"contender": HERE + "crashing"}, {}, 120)
    assert isinstance(crash, Failure) and crash.status == "fail_run" and "SIGABRT" in crash.error
    hang = run_task(task | {"contender": HERE + "hanging"}, {}, 1)
    assert hang == Failure("timeout", "no end after 1 s")


def test_the_workers_process_does_not_import_the_compiler(tmp_path: Path) -> None:
    task = {"task": "start", "model": "tiny-mlp", "contender": HERE + "reporting", "steps": 0}
    found = run_task(
        task | {"settings": Settings().to_dict()}, {"SMELT_TEST_REPORT": str(tmp_path / "modules.json")}, 120
    )
    assert not isinstance(found, Failure), found
    loaded = {name.split(".")[1] for name in json.loads((tmp_path / "modules.json").read_text())}
    assert loaded <= {"base", "bench"}


def test_every_contender_has_its_own_caches(tmp_path: Path) -> None:
    variables = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "SMELT_CACHE_DIR")
    names = ["eager", "torch.compile", "torch.compile:reduce-overhead", "smelt"]
    alone = [cache_environment(tmp_path, [name]) for name in names]
    assert len({found[variable] for found in alone for variable in variables}) == 3 * len(names)
    assert all(found["SMELT_STRICT"] == "1" for found in alone)


def test_a_process_of_several_contenders_finds_what_each_has_built(tmp_path: Path) -> None:
    names = ["torch.compile", "smelt"]
    for name in names:
        kernel = Path(cache_environment(tmp_path, [name])["TRITON_CACHE_DIR"]) / name / "kernel"
        kernel.parent.mkdir(parents=True)
        kernel.write_text(name)
    for _ in range(2):  # again after one was left out
        together = Path(cache_environment(tmp_path, names)["TRITON_CACHE_DIR"])
        assert {file.read_text() for file in together.rglob("kernel")} == set(names)
    (together / "more").write_text("")
    assert not (Path(cache_environment(tmp_path, ["smelt"])["TRITON_CACHE_DIR"]) / "more").exists()


def test_starts_side_by_side_are_measured_and_flagged() -> None:
    names = ["eager", *(HERE + name for name in ("identity", "wrong", "refusing"))]
    seen: list[tuple[str, str]] = []
    plan = Plan(rounds=3, warmup=1, cold=False, side_by_side=2, unjudged=(HERE + "identity",), timeout_s=120)
    with Servers(2, [OPTIMIZERS]) as servers:
        row = measure_row(
            find_workload("tiny-mlp"), Settings(), names, plan, lambda _, *phase: seen.append(phase), servers
        )
    assert seen == [("all", "cold starts, 2 at a time"), ("all", "steps"), ("all", "limit of the machine")]
    assert row.side_by_side == 2
    statuses = [row.results[name].status for name in names]
    assert statuses == ["pass", "pass", "fail_accuracy", "fail_compile"]
    assert row.results[HERE + "identity"].accuracy is None and row.results[HERE + "wrong"].accuracy is not None
    assert all(row.results[name].cold_s and row.results[name].step for name in names[:3])


def test_no_contender_passes_if_eager_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Workload("no-such-name", "tiny", lambda: None, Batch, lambda *_: None)  # type: ignore
    row = measure_row(broken, Settings(), ["eager", HERE + "identity"], dataclasses.replace(PLAN, side_by_side=2))
    assert {result.status for result in row.results.values()} == {"eager_fails"}


def test_a_workload_is_measured_in_its_modes() -> None:
    names = ["eager", "torch.compile", "torch.compile:reduce-overhead", "smelt", "smelt:step"]
    workload = find_workload("bert-mlm")
    assert selected_contenders(workload, Settings(), names) == ["eager", "torch.compile", "smelt", "smelt:step"]
    assert selected_contenders(workload, Settings(mode="reduce-overhead"), names) == ["eager"]
    assert selected_contenders(find_workload("distilbert-mlm"), Settings(), names) == names
    assert selected_contenders(find_workload("bert"), Settings(mode="max-autotune"), names) == names


def test_eager_that_fails_ends_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Workload("no-such-name", "tiny", lambda: None, Batch, lambda *_: None)  # type: ignore
    monkeypatch.setitem(workloads.WORKLOADS, "no-such-name", broken)
    row = measure_row(broken, Settings(), ["eager", HERE + "identity"], PLAN)
    assert row.results["eager"].status == "eager_fails"
    assert row.results[HERE + "identity"].status == "eager_fails"
