"""Results of a benchmark run: a Row for each model and setting, a Result for each contender. Reads and writes JSON."""

from __future__ import annotations

import json
import operator
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smelt.base.errors import SmeltError
from smelt.bench.reading import read_dataclass, write_dataclass
from smelt.bench.verdict import Verdict

setting_of = operator.attrgetter("train", "precision", "device", "size", "mode", "dynamic", "optimizer")
"""Returns the setting under which a row, or a run, is measured; rows of different settings are never mixed."""

STATUSES = ("pass", "fail_accuracy", "fail_compile", "fail_run", "eager_fails", "timeout", "skipped")


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of `n` measurements, in seconds."""

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """Returns the spread of at least one measurement."""
        if len(seconds) == 1:
            return cls(seconds[0], seconds[0], seconds[0], 1)
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(median, low, high, len(seconds))


@dataclass
class Result:
    """The figures of one contender in a row. Figures that were not measured, or failed, are None; `error` has the
    reason.

    Attributes:
        cold_s: seconds from the built model to the end of the first step, in a fresh process with empty caches: import
            of the compiler, `compile()`, and one whole step.
        warm_s: the seconds of such a start in a second process, with the caches of the first.
        step: seconds of one step, measured alternately with the other contenders in one process.
        peak_mb: peak resident memory (MiB) of a fresh process, with the caches of the cold start; on a GPU, the peak of
            the memory that torch's allocator has allocated to tensors.
        steady_peak_mb: the peak from the second step on (a replayed CUDA graph allocates nothing, so its memory is only
            counted in peak_mb).
        reserved_mb: the largest memory (MiB) that torch's allocator has taken from a GPU.
        tensors_mb: the largest memory (MiB) of tensors in a later step, with parameters and gradients, but without
            other memory of the process.
        counts: numbers from the compiler: `graphs`, `breaks`, `break_reasons` (occurrences by reason), captured `ops`,
            `fallbacks` (frames that ran in eager because of a compiler error), `extern_ops` (calls by ATen operator
            that the compiled program leaves to torch), `eager_ops` (calls by operator that torch makes in one step,
            see `Stepper.eager_operators`), `compile_s` and `stage_s` (seconds by stage).
    """

    contender: str
    status: str = "pass"
    error: str | None = None
    cold_s: float | None = None
    warm_s: float | None = None
    step: Spread | None = None
    speedup: float | None = None
    peak_mb: float | None = None
    steady_peak_mb: float | None = None
    reserved_mb: float | None = None
    tensors_mb: float | None = None
    accuracy: Verdict | None = None
    counts: dict[str, Any] = field(default_factory=dict)

    def fail(self, status: str, error: str) -> None:
        """Record the first failure; later failures follow from it and are ignored."""
        if self.status == "pass":
            self.status, self.error = status, error


@dataclass
class Row:
    """The results of all contenders on one model under one setting.

    Attributes:
        optimizer: the optimizer of a training step; `none`: only forward and backward.
        limit_s: the least seconds of a step at the measured ceilings of the machine (see `smelt.bench.limit`).
        side_by_side: number of contenders that started at the same time. Above 1, their starts disturbed each other.
        dropout: treatment of dropout in the comparison: `none` (the model has none), `off`, or `eager_rng` (the same
            random numbers as eager).
    """

    model: str
    suite: str
    shape: str
    train: bool
    precision: str
    device: str
    size: str = ""
    mode: str | None = None
    dynamic: bool | None = None
    optimizer: str = "sgd"
    limit_s: float | None = None
    side_by_side: int = 1
    dropout: str = "none"
    note: str = ""
    results: dict[str, Result] = field(default_factory=dict)

    def out_of_memory(self) -> bool:
        """Whether a contender ran out of memory on the device."""
        return any("out of memory" in (result.error or "").lower() for result in self.results.values())

    def rate(self) -> None:
        """Compute each contender's speed-up over eager: the ratio of median steps."""
        base = self.results.get("eager")
        for result in self.results.values():
            if base and base.step and result.step:
                result.speedup = base.step.median / result.step.median


@dataclass
class Benchmark:
    """The results of a whole run: rows, the command line, and the machine."""

    command: str
    machine: dict[str, Any] = field(default_factory=dict)
    started: str = ""
    rows: list[Row] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write JSON and replace the file atomically, so that an interrupted run leaves a readable file."""
        write_dataclass(self, path)

    @classmethod
    def load(cls, path: Path) -> Benchmark:
        """Read a file that `save` wrote, also an older version without the newer fields.

        Raises:
            SmeltError: the file cannot be read or is no benchmark; the message says what to try.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise SmeltError(f"cannot read {path}", why=error.strerror, hint=FROM_RUN) from None
        except ValueError as error:
            raise SmeltError(f"{path} is not JSON", why=f"{error}; the file may be cut short", hint=FROM_RUN) from None
        for key, what in OTHER_FILES.items():
            if isinstance(data, dict) and key in data:
                raise SmeltError(f"{path} holds {what}, not rows", hint=FROM_RUN)
        if not isinstance(data, dict) or "rows" not in data:
            raise SmeltError(f"{path} holds no benchmark", why="it has no 'rows'", hint=FROM_RUN)
        try:
            benchmark = read_dataclass(cls, data, "the benchmark")
            _check(benchmark)
        except ValueError as error:
            raise SmeltError(f"{path} holds no benchmark of this version", why=str(error), hint=FROM_RUN) from None
        return benchmark


OTHER_FILES = {"overhead": "the cost of a call", "problems": "shares of the memory's bandwidth"}
"""Content of the other files of `smelt bench`, by a key that identifies each."""

FROM_RUN = "give a file that `smelt bench MODEL... --json FILE` wrote; update smelt if it is of a newer version"


def _check(benchmark: Benchmark) -> None:
    for row in benchmark.rows:
        for name, result in row.results.items():
            if result.status not in STATUSES:
                raise ValueError(f"row {row.model!r}, {name}: unknown status {result.status!r}")
            if result.contender != name:
                raise ValueError(f"row {row.model!r}, {name}: holds the result of {result.contender!r}")
