"""Made-up benchmark runs with figures that are easy to check."""

from __future__ import annotations

from typing import Any

from smelt.bench.results import Benchmark, Result, Row, Spread
from smelt.bench.verdict import Verdict

MACHINE = {"cpu": "a CPU", "cores": 2, "threads": 2, "memory_gb": 8.0, "gpus": [], "python": "3.11", "packages": {}}


def row(name: str, suite: str = "timm", **results: Any) -> Row:
    """A training row. A contender's value is the seconds of its step, a Result, or (status, error)."""
    made = Row(name, suite, "4x3x8x8", True, "fp32", "cpu", "cpu")
    for key, value in results.items():
        contender = {"rival": "torch.compile"}.get(key, key)
        made.results[contender] = result(contender, value)
    return made


def result(contender: str, value: Any) -> Result:
    """A Result from what `row` takes."""
    if isinstance(value, Result):
        return value
    if isinstance(value, tuple):
        return Result(contender, *value)
    return passed(contender, value)


def passed(contender: str, step_s: float, spread: float = 0.0, **more: Any) -> Result:
    """A Result that passed, whose quartiles lie `spread` (relative) from the median."""
    step = Spread(step_s, step_s * (1 - spread), step_s * (1 + spread), 15)
    return Result(contender, step=step, accuracy=None if contender == "eager" else Verdict(True, "loss", 1.0), **more)


def run(*rows: Row, **machine: Any) -> Benchmark:
    """A run of these rows."""
    return Benchmark("smelt bench --suite all", MACHINE | machine, "2030-01-01", list(rows))
