"""Measures one row of a benchmark: cold starts, memory, interleaved steps and accuracy, each in separate processes."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from smelt.base.options import environment
from smelt.bench.contenders import DEFAULT, mode_of
from smelt.bench.processes.process import Failure, Limits, Server, cache_environment
from smelt.bench.processes.servers import Servers
from smelt.bench.results import Result, Row, Spread
from smelt.bench.verdict import Verdict
from smelt.bench.workload import Settings, Workload

MEMORY_STEPS = 4
"""Number of steps after the first one over which the steady peak of memory is taken."""

LEFT = 0.5
"""Maximum share of eager's operators that may still run in eager under a compiler; beyond it, the compiler fails."""

Outcome = dict[str, Any] | Failure
"""The result of a task, or its failure."""

Notify = Callable[[Row, str, str], None]
"""Callback for the start of a phase, with (row so far, contender or "all", name of the phase)."""


@dataclass(frozen=True)
class Plan:
    """The amount of measurement.

    Args:
        rounds: number of timed steps of each contender; with 0 no times are measured.
        least_s: minimum number of seconds of all rounds: short steps are repeated until then (at most ten times
            `rounds`).
        warmup: number of steps before the timed ones.
        cold: whether starts are measured twice, with empty caches and a second time with the caches kept. Otherwise
            they are measured once, with empty caches, and the peak memory is of that process.
        tensors: whether to measure the memory of the tensors of a step.
        limit: whether to compute the least time of a step on this machine, to which the steps are compared.
        check: whether to judge accuracy.
        unjudged: contenders whose accuracy is not judged even with `check`.
        side_by_side: number of starts of a row that run at the same time. Above 1 they disturb each other's times, and
            accuracy is judged at the same time, too. Steps are always timed alone.
        timeout_s, memory_mb: the limits of one process.
    """

    rounds: int = 15
    least_s: float = 0.0
    warmup: int = 3
    cold: bool = True
    tensors: bool = False
    limit: bool = True
    check: bool = True
    unjudged: tuple[str, ...] = ()
    side_by_side: int = 1
    timeout_s: float = 1800.0
    memory_mb: float | None = None


def measure_row(
    workload: Workload,
    settings: Settings,
    contenders: Sequence[str],
    plan: Plan,
    notify: Notify = lambda *_: None,
    server: Server | Servers | None = None,
) -> Row:
    """Measure every contender on one workload; the result of a contender that fails or crashes has the reason.

    Args:
        server: forks the processes; None: new servers for this row.
    """
    row = new_row(workload, settings)
    row.side_by_side = plan.side_by_side
    contenders = selected_contenders(workload, settings, contenders)
    row.results = {name: Result(name) for name in contenders}
    if missing := workload.missing():
        for result in row.results.values():
            result.fail("skipped", f"pip install {' '.join(missing)}")
        return row
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="smelt-bench-caches-"))
        used = server or stack.enter_context(Servers(plan.side_by_side, workload.needs, settings.threads))
        measurement = _Measurement(row, workload.key, settings, plan, Path(folder), notify, used)
        if plan.rounds:
            measurement.starts(contenders)
            measurement.steps()
            measurement.limit()
        if plan.tensors:
            measurement.tensors()
        for name in contenders:
            measurement.accuracy(name)
    row.rate()
    return row


def selected_contenders(workload: Workload, settings: Settings, contenders: Sequence[str]) -> list[str]:
    """Returns eager and the contenders whose mode is one of the modes in which the workload is measured."""

    def is_selected(name: str) -> bool:
        return name == "eager" or (mode_of(name) or settings.mode or DEFAULT) in workload.modes

    return [name for name in contenders if not workload.modes or is_selected(name)]


def new_row(workload: Workload, settings: Settings) -> Row:
    """Make the row of a workload under these settings, without results."""
    unable = (f"eager fails in {precision}: {reason}" for precision, reason in workload.unable.items())
    return Row(
        workload.name,
        workload.suite,
        workload.shape,
        settings.train,
        settings.precision,
        settings.device,
        size=settings.size,
        mode=settings.mode,
        dynamic=settings.dynamic,
        optimizer=settings.optimizer,
        note="; ".join([*filter(None, [workload.note]), *unable]),
    )


@dataclass
class _Measurement:
    """The state that the phases of one row share."""

    row: Row
    key: str
    settings: Settings
    plan: Plan
    caches: Path
    notify: Notify
    server: Server | Servers
    verdicts: dict[str, Outcome] = field(default_factory=dict)

    def run(
        self, name: str, caches_of: Sequence[str], other: Mapping[str, str] = MappingProxyType({}), /, **arguments: Any
    ) -> Outcome:
        """Run one task in a fresh process that uses the caches of these contenders, and `other` environment
        variables.
        """
        task = {"task": name, "model": self.key, "settings": self.settings.to_dict(), **arguments}
        limits = Limits(self.plan.timeout_s, self.plan.memory_mb)
        return self.server.run(task, cache_environment(self.caches, caches_of) | dict(other), limits)

    def alive(self) -> list[str]:
        return [name for name, result in self.row.results.items() if result.status == "pass"]

    def starts(self, names: Sequence[str]) -> None:
        """Measure the starts of each contender. If eager fails, no contender passes."""
        found: dict[str, list[Outcome]] = {}
        if self.plan.side_by_side > 1:
            self.notify(self.row, "all", f"cold starts, {self.plan.side_by_side} at a time")
            with ThreadPoolExecutor(self.plan.side_by_side) as lanes:
                found = dict(zip(names, lanes.map(self._start_and_judge, names), strict=True))
        for name in names:
            if self.row.results.get("eager", Result("eager")).status != "pass":
                self.row.results[name].fail("eager_fails", "nothing to compare with")
            else:
                self._record(self.row.results[name], found[name] if found else self._start(name, self.notify))

    def _start_and_judge(self, name: str) -> list[Outcome]:
        """Start a contender and judge its accuracy; other contenders may still be compiling."""
        found = self._start(name)
        if self._is_judged(name) and not isinstance(found[-1], Failure):
            self.verdicts[name] = self._judge(name)
        return found

    def _start(self, name: str, notify: Notify = lambda *_: None) -> list[Outcome]:
        """Measure a start with empty caches and, if requested, a start in a second process with the caches kept."""
        notify(self.row, name, "cold start")
        found = [self.run("start", [name], contender=name, steps=0 if self.plan.cold else MEMORY_STEPS)]
        if self.plan.cold and not isinstance(found[0], Failure):
            notify(self.row, name, "warm start, memory")
            found.append(self.run("start", [name], contender=name, steps=MEMORY_STEPS))
        return found

    def _record(self, result: Result, starts: Sequence[Outcome]) -> None:
        """Record the figures of the starts. The memory is that of the last one."""
        cold, last = starts[0], starts[-1]
        if isinstance(cold, Failure):
            return result.fail(cold.status, cold.error)
        result.cold_s = cold["first_s"]
        if isinstance(last, Failure):
            return result.fail(last.status, last.error)
        if len(starts) > 1:
            result.warm_s = last["first_s"]
        for figure in ("peak_mb", "steady_peak_mb", "reserved_mb"):
            setattr(result, figure, last.get(figure))
        result.counts = last["counts"] | cold["counts"]
        self._captured(result)

    def _captured(self, result: Result) -> None:
        """Mark a compiler as failed if it left most of the model to eager."""
        counts, eager = result.counts, self.row.results.get("eager")
        if counts.get("fallbacks"):
            return result.fail("fail_compile", f"{counts['fallbacks']} frames ran in eager instead")
        if counts.get("graphs") == 0:
            return result.fail("fail_compile", f"nothing was captured; {_reasons(counts)}")
        if eager is None or counts.get("graphs") is None:
            return
        left, total = (sum(each.get("eager_ops", {}).values()) for each in (counts, eager.counts))
        if total and left > LEFT * total:
            result.fail(
                "fail_compile", f"{left / total:.0%} of eager's operators still ran in eager; {_reasons(counts)}"
            )

    def steps(self) -> None:
        """Measure interleaved steps of all contenders that started; if the process dies, those that fail alone are
        excluded, too.
        """
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

    def _steps(self, names: Sequence[str]) -> Outcome:
        if not names:
            return {}
        plan = {"rounds": self.plan.rounds, "warmup": self.plan.warmup, "least_s": self.plan.least_s}
        return self.run("steps", names, contenders=list(names), **plan)

    def limit(self) -> None:
        """Compute the least time of a step on this machine; it stays unknown if its products cannot be counted.

        This uses the store of the user, which keeps the ceilings of the machine for later rows and benchmarks.
        """
        if not self.plan.limit or not self.alive():
            return
        self.notify(self.row, "all", "limit of the machine")
        found = self.run("limit", ["eager"], {"SMELT_CACHE_DIR": str(environment().cache_dir)})
        if not isinstance(found, Failure):
            self.row.limit_s = found["limit_s"]

    def tensors(self) -> None:
        """Measure the memory of each contender's tensors in a step."""
        for name in self.alive():
            self.notify(self.row, name, "memory of tensors")
            found, result = self.run("tensors", [name], contender=name), self.row.results[name]
            if isinstance(found, Failure):
                result.fail(found.status, found.error)
            else:
                result.tensors_mb = found["tensors_mb"]

    def accuracy(self, name: str) -> None:
        """Judge the contender against eager in float64; eager itself is the yardstick and is not judged."""
        result = self.row.results[name]
        if not self._is_judged(name):
            return
        if name not in self.verdicts:
            self.notify(self.row, name, "accuracy")
            self.verdicts[name] = self._judge(name)
        found = self.verdicts[name]
        if isinstance(found, Failure):
            if found.status == "eager_fails" and "eager" in self.row.results:
                self.row.results["eager"].fail(found.status, found.error)
            return result.fail(found.status, found.error)
        if not result.counts:  # set the counts if no start was measured
            result.counts = found["counts"]
            self._captured(result)
        result.accuracy = Verdict(**found["verdict"])
        self.row.dropout = result.accuracy.dropout
        if not result.accuracy.ok:
            result.fail("fail_accuracy", "; ".join(result.accuracy.failures))

    def _is_judged(self, name: str) -> bool:
        passed = self.row.results[name].status == "pass"
        return passed and self.plan.check and name != "eager" and name not in self.plan.unjudged

    def _judge(self, name: str) -> Outcome:
        return self.run("accuracy", [name], contender=name)


def _reasons(counts: dict[str, Any]) -> str:
    return "; ".join(list(counts.get("break_reasons") or [])[:2]) or "no reason is known"
