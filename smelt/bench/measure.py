"""One row of a benchmark: cold starts, memory, interleaved steps and accuracy, each in processes of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smelt.bench.accuracy import Verdict
from smelt.bench.process import Failure, cache_environment, run_task
from smelt.bench.results import Result, Row, Spread
from smelt.bench.workload import Settings, Workload

MEMORY_STEPS = 4
"""Steps after the first one over which the steady peak is taken."""

Notify = Callable[[Row, str, str], None]
"""Called with (row so far, contender or "all", what is being done) when a phase begins."""


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    rounds: int = 15
    warmup: int = 3
    cold: bool = True
    check: bool = True
    timeout_s: float = 1800.0


def measure_row(
    workload: Workload, settings: Settings, contenders: Sequence[str], plan: Plan, notify: Notify = lambda *_: None
) -> Row:
    """Every contender's result on one workload. A contender that fails or crashes keeps its reason in its result."""
    row = Row(workload.name, workload.suite, workload.shape, settings.train, settings.precision, settings.device)
    row.results = {name: Result(name) for name in contenders}
    if missing := workload.missing():
        for result in row.results.values():
            result.fail("skipped", f"pip install {' '.join(missing)}")
        return row
    with tempfile.TemporaryDirectory(prefix="smelt-bench-caches-") as folder:
        measurement = _Measurement(row, settings, plan, Path(folder), notify)
        for name in contenders:
            if row.results.get("eager", Result("eager")).status == "pass":
                measurement.starts(name)
            else:
                row.results[name].fail("eager_fails", "nothing to compare with")
        measurement.steps()
        for name in contenders:
            measurement.accuracy(name)
    row.rate()
    return row


@dataclass
class _Measurement:
    """What the phases of one row share."""

    row: Row
    settings: Settings
    plan: Plan
    caches: Path
    notify: Notify

    def run(self, name: str, caches_of: Sequence[str], **arguments: Any) -> dict[str, Any] | Failure:
        """One task in a fresh process that sees these contenders' caches."""
        task = {"task": name, "model": self.row.model, "settings": self.settings.to_dict(), **arguments}
        return run_task(task, cache_environment(self.caches, caches_of), self.plan.timeout_s)

    def alive(self) -> list[str]:
        return [name for name, result in self.row.results.items() if result.status == "pass"]

    def starts(self, name: str) -> None:
        """Cold start with empty caches, then a second process with the caches kept, which also gives the memory."""
        result = self.row.results[name]
        if self.plan.cold:
            self.notify(self.row, name, "cold start")
            found = self.run("start", [name], contender=name, steps=0)
            if isinstance(found, Failure):
                return result.fail(found.status, found.error)
            result.cold_s, result.counts = found["first_s"], found["counts"]
        self.notify(self.row, name, "warm start, memory")
        found = self.run("start", [name], contender=name, steps=MEMORY_STEPS)
        if isinstance(found, Failure):
            return result.fail(found.status, found.error)
        result.warm_s = found["first_s"] if self.plan.cold else None
        result.peak_mb, result.steady_peak_mb = found["peak_mb"], found["steady_peak_mb"]
        result.counts = result.counts or found["counts"]
        if result.counts.get("fallbacks"):
            result.fail("fail_compile", f"{result.counts['fallbacks']} frames ran in eager instead")

    def steps(self) -> None:
        """Interleaved steps of everybody who started. If the shared process dies, whoever dies alone is left out."""
        self.notify(self.row, "all", "steps")
        found = self._steps(self.alive())
        if isinstance(found, Failure):
            for name in self.alive():
                self.notify(self.row, name, "steps, alone")
                alone = self._steps([name])
                if isinstance(alone, Failure):
                    self.row.results[name].fail(alone.status, alone.error)
            found = self._steps(self.alive())
        for name in self.alive():
            result = self.row.results[name]
            if isinstance(found, Failure):
                result.fail(found.status, found.error)
            elif "error" in found[name]:
                result.fail(found[name]["status"], found[name]["error"])
            else:
                result.step = Spread.of(found[name]["seconds"])

    def _steps(self, names: Sequence[str]) -> dict[str, Any] | Failure:
        if not names:
            return {}
        return self.run("steps", names, contenders=list(names), rounds=self.plan.rounds, warmup=self.plan.warmup)

    def accuracy(self, name: str) -> None:
        """The verdict against eager in float64; eager itself is the yardstick and has none."""
        result = self.row.results[name]
        if name == "eager" or result.status != "pass" or not self.plan.check:
            return
        self.notify(self.row, name, "accuracy")
        found = self.run("accuracy", [name], contender=name)
        if isinstance(found, Failure):
            return result.fail(found.status, found.error)
        result.accuracy = Verdict(**found)
        if not result.accuracy.ok:
            result.fail("fail_accuracy", "; ".join(result.accuracy.failures))
