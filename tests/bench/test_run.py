"""smelt/bench/run.py, live.py and the server of process.py, with rows that cost nothing."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from smelt.base.errors import OptionError
from smelt.bench.measure import Notify, Plan, measure_row, new_row
from smelt.bench.processes import workers
from smelt.bench.processes.process import Failure, Limits, Server
from smelt.bench.results import Benchmark, Result, Row, Spread
from smelt.bench.run import Run, run_benchmark
from smelt.bench.suites.entries import suite_workloads
from smelt.bench.workload import Settings, Workload
from smelt.bench.workloads import find_workload

HERE = "tests.bench.contenders:"
NAMES = ["eager", "smelt"]


def pretend(
    workload: Workload, settings: Settings, names: Sequence[str], plan: Plan, notify: Notify, server: Any = None
) -> Row:
    """A row that passes at once."""
    row = new_row(workload, settings)
    notify(row, "smelt", "steps")
    row.results = {name: Result(name, step=Spread.of([1.0]), speedup=1.0) for name in names}
    return row


def console() -> Console:
    return Console(file=io.StringIO(), width=80)


def shown(to: Console) -> str:
    assert isinstance(to.file, io.StringIO)
    return " ".join(to.file.getvalue().split())


def make(file: Path | None, **changes: Any) -> Run:
    settings = {"workloads": suite_workloads("timm")[:12], "settings": Settings(), "contenders": NAMES, "plan": Plan()}
    return Run(**(settings | {"command": "smelt bench", "json_file": file} | changes))


@pytest.mark.parametrize("jobs", [1, 3])
def test_all_rows_are_kept_in_order(tmp_path: Path, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)  # torch's own choice, not that of OMP_NUM_THREADS
    to = console()
    run_benchmark(make(tmp_path / "a.json", jobs=jobs), to, pretend)
    kept = Benchmark.load(tmp_path / "a.json")
    assert [row.model for row in kept.rows] == [workload.name for workload in suite_workloads("timm")[:12]]
    assert "smelt: 12 pass; 1.00x eager (geometric mean of 12)" in shown(to)
    assert ("1 threads" in shown(to)) == (jobs > 1)


@pytest.mark.parametrize("jobs", [1, 3])
def test_rows_for_which_others_leave_too_little_memory_are_measured_again(tmp_path: Path, jobs: int) -> None:
    names = [workload.name for workload in suite_workloads("timm")[:12]]
    seen: list[str] = []
    running: list[str] = []
    beside: dict[str, int] = {}

    def crowded(workload: Workload, *arguments: Any) -> Row:
        seen.append(workload.name)
        running.append(workload.name)
        time.sleep(0.01)
        beside[workload.name] = len(running) - 1
        row = pretend(workload, *arguments)
        if workload.name == names[0] or (workload.name == names[4] and seen.count(names[4]) == 1):
            row.results["smelt"].fail("fail_run", "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
        running.remove(workload.name)
        return row

    run_benchmark(make(tmp_path / "a.json", jobs=jobs), console(), crowded)
    kept = {row.model: row.results["smelt"].status for row in Benchmark.load(tmp_path / "a.json").rows}
    assert list(kept) == names
    assert sorted(set(seen[12:])) == (sorted([names[0], names[4]]) if jobs > 1 else [])
    assert kept[names[0]] == "fail_run"  # by itself, too
    if jobs > 1:
        assert kept[names[4]] == "pass" and beside[names[0]] == beside[names[4]] == 0


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_readable_and_goes_on(
    tmp_path: Path, kind: signal.Signals, request: pytest.FixtureRequest
) -> None:
    done: list[str] = []
    if kind is signal.SIGINT:  # a process that was started in the background ignores it
        before = signal.signal(kind, signal.default_int_handler)
        request.addfinalizer(lambda: signal.signal(kind, before))

    def interrupted(workload: Workload, *arguments: Any) -> Row:
        if len(done) == 5:
            threading.Timer(0.1, lambda: os.kill(os.getpid(), kind)).start()
            _until_closed(arguments[-1])
        done.append(workload.name)
        return pretend(workload, *arguments)

    to = console()
    file = tmp_path / "a.json"
    run_benchmark(make(file), to, interrupted)
    assert "interrupted after 5 of 12 models" in shown(to)
    assert "smelt bench --resume" in shown(to)
    assert len(Benchmark.load(file).rows) == 5
    again: list[str] = []

    def counting(workload: Workload, *arguments: Any) -> Row:
        again.append(workload.name)
        return pretend(workload, *arguments)

    run_benchmark(make(file, resume=True), console(), counting)
    assert len(again) == 7 and len(Benchmark.load(file).rows) == 12


def _until_closed(server: Server) -> None:
    """A row that takes long: it ends when the run takes its server away."""
    for _ in range(600):
        if server.closed:
            return
        time.sleep(0.1)


def test_results_are_neither_overwritten_nor_mixed(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    run_benchmark(make(file), console(), pretend)
    with pytest.raises(OptionError, match="exists already"):
        run_benchmark(make(file), console(), pretend)
    with pytest.raises(OptionError, match="other settings"):
        run_benchmark(make(file, resume=True, settings=Settings(precision="amp")), console(), pretend)
    with pytest.raises(OptionError, match="no such folder"):
        run_benchmark(make(tmp_path / "none" / "a.json"), console(), pretend)
    with pytest.raises(OptionError, match="--json FILE"):
        run_benchmark(make(None, resume=True), console(), pretend)


def test_a_bug_of_the_bench_ends_the_run_but_keeps_its_rows(tmp_path: Path) -> None:
    def broken(workload: Workload, *arguments: Any) -> Row:
        if workload.name == suite_workloads("timm")[3].name:
            raise ZeroDivisionError("in the bench")
        return pretend(workload, *arguments)

    with pytest.raises(ZeroDivisionError):
        run_benchmark(make(tmp_path / "a.json"), console(), broken)
    assert len(Benchmark.load(tmp_path / "a.json").rows) == 3


def test_a_run_begins_no_row_that_would_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(workers, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def slow(workload: Workload, *arguments: Any) -> Row:
        now[0] += 0.5
        return pretend(workload, *arguments)

    to = console()
    run_benchmark(make(tmp_path / "a.json", seconds=1.7), to, slow)
    assert len(Benchmark.load(tmp_path / "a.json").rows) == 3
    assert "interrupted after 3 of 12 models" in shown(to)
    assert "timm/" in shown(to)  # a log grows with every row


def test_a_row_ends_with_the_time_of_its_run(tmp_path: Path) -> None:
    def endless(workload: Workload, *arguments: Any) -> Row:
        _until_closed(arguments[-1])
        return pretend(workload, *arguments)

    run_benchmark(make(tmp_path / "b.json", seconds=0.5), console(), endless)
    assert not (tmp_path / "b.json").exists()


def test_a_workload_brings_settings_that_the_user_may_override(tmp_path: Path) -> None:
    seen: dict[str, Settings] = {}

    def look(workload: Workload, settings: Settings, *arguments: Any) -> Row:
        seen[workload.name] = settings
        return pretend(workload, settings, *arguments)

    baselines = suite_workloads("baselines")
    to = console()
    run_benchmark(make(tmp_path / "a.json", workloads=baselines), to, look)
    assert {name: s.precision for name, s in seen.items() if s.precision != "amp"} == {"bert-mlm-tf32": "tf32"}
    assert {s.optimizer for s in seen.values()} == {"none"}
    assert "training, amp/tf32, cpu" in shown(to)
    run_benchmark(make(tmp_path / "a.json", workloads=baselines, resume=True), console(), look)
    chosen = Settings(precision="fp32", optimizer="adamw")
    explicit = frozenset({"optimizer"})
    with pytest.raises(OptionError, match="other settings"):
        run_benchmark(
            make(tmp_path / "a.json", workloads=baselines, settings=chosen, explicit=explicit, resume=True), to
        )
    run_benchmark(make(tmp_path / "b.json", workloads=baselines, settings=chosen, explicit=explicit), console(), look)
    assert {(s.precision, s.optimizer) for s in seen.values()} == {("amp", "adamw"), ("tf32", "adamw")}


def test_models_that_fail_in_low_precision_run_in_fp32_with_a_note(tmp_path: Path) -> None:
    seen: dict[str, str] = {}

    def look(workload: Workload, settings: Settings, *arguments: Any) -> Row:
        seen[workload.name] = settings.precision
        return new_row(workload, settings)

    entries = [each for each in suite_workloads("huggingface") if each.name in ("DebertaForMaskedLM", "GoogleFnet")]
    wanted, explicit = Settings(precision="amp"), frozenset({"precision"})
    to, file = console(), tmp_path / "a.json"
    run_benchmark(make(file, workloads=entries, settings=wanted, explicit=explicit), to, look)
    assert seen == {"DebertaForMaskedLM": "fp32", "GoogleFnet": "amp"}
    assert "huggingface/DebertaForMaskedLM runs in fp32, since eager fails in amp: the masks' constant" in shown(to)
    (note,) = (row.note for row in Benchmark.load(file).rows if row.precision == "fp32")
    assert note.endswith("eager fails in amp: the masks' constant overflows bfloat16")
    to = console()
    run_benchmark(make(tmp_path / "b.json", workloads=entries, settings=Settings()), to, look)
    assert set(seen.values()) == {"fp32"} and "since eager fails" not in shown(to)
    on_a_gpu = Settings(precision="amp", device="cuda")
    run_benchmark(make(None, workloads=entries, settings=on_a_gpu, explicit=explicit), to, look)
    assert seen == {"DebertaForMaskedLM": "fp32", "GoogleFnet": "fp32"}


def test_shards_share_a_file(tmp_path: Path) -> None:
    workloads = suite_workloads("timm")[:6]
    file = tmp_path / "a.json"
    run_benchmark(make(file, workloads=workloads[::2]), console(), pretend)
    run_benchmark(make(file, workloads=workloads[1::2], resume=True), console(), pretend)
    assert {row.model for row in Benchmark.load(file).rows} == {workload.name for workload in workloads}
    with pytest.raises(OptionError, match="other settings"):
        more = {"contenders": ["eager"], "resume": True}
        run_benchmark(make(file, workloads=suite_workloads("timm")[6:8], **more), console(), pretend)


class Canned:
    """A server that answers from a table: {(task, contender): value}."""

    def __init__(self, answers: dict[tuple[str, str], Any]) -> None:
        self.answers = answers

    def run(self, task: dict[str, Any], environment: Any, limits: Limits) -> Any:
        return self.answers[task["task"], task.get("contender", "all")]


def start(eager_ops: dict[str, int], **counts: Any) -> dict[str, Any]:
    return {"first_s": 1.0, "peak_mb": 100.0, "steady_peak_mb": 90.0, "counts": {"eager_ops": eager_ops} | counts}


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ({"graphs": 0}, "nothing was captured"),
        ({"graphs": 2, "fallbacks": 1}, "1 frames ran in eager instead"),
        ({"graphs": 2, "break_reasons": {"a print": 1}}, "60% of eager's operators still ran in eager; a print"),
    ],
)
def test_a_model_that_ran_in_eager_has_not_passed(counts: dict[str, Any], reason: str) -> None:
    answers = {
        ("start", "eager"): start({"relu": 10}),
        ("limit", "all"): {"limit_s": 0.5},
        ("start", "smelt"): start({"relu": 6}, **counts),
        ("steps", "all"): {"eager": {"seconds": [1.0, 1.0]}},
    }
    plan = Plan(cold=False)
    row = measure_row(find_workload("tiny-mlp"), Settings(), NAMES, plan, server=Canned(answers))  # type: ignore
    assert (row.results["eager"].status, row.results["smelt"].status) == ("pass", "fail_compile")
    assert row.results["smelt"].error == reason or reason in str(row.results["smelt"].error)


def test_the_limits_of_time_and_memory_cost_one_task() -> None:
    task = {"task": "start", "model": "tiny-mlp", "settings": Settings().to_dict(), "steps": 0}
    with Server() as server:
        greedy = server.run(task | {"contender": HERE + "greedy"}, {}, Limits(60, memory_mb=700))
        assert isinstance(greedy, Failure) and greedy.status == "fail_run" and "MiB of memory" in greedy.error
        hanging = server.run(task | {"contender": HERE + "hanging"}, {}, Limits(1))
        assert hanging == Failure("timeout", "no end after 1 s")
        right = server.run(task | {"contender": HERE + "identity"}, {}, Limits(60))
        assert not isinstance(right, Failure), right


def test_every_task_has_a_process_and_threads_of_its_own(tmp_path: Path) -> None:
    task = {"task": "start", "model": "tiny-mlp", "settings": Settings().to_dict(), "steps": 0}
    seen = []
    with Server(threads=1) as server:
        for name in "ab":
            file = tmp_path / name
            server.run(task | {"contender": HERE + "telling"}, {"SMELT_TEST_REPORT": str(file)}, Limits(60))
            seen.append(file.read_text().split())
    assert seen[0][0] != seen[1][0]
    assert seen[0][1] == seen[1][1] == "1"
    assert torch.get_num_threads() >= 1
