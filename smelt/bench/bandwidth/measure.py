"""Runs in the child process: times one problem with all contenders in turn, and the copy that is the reference."""

from __future__ import annotations

import functools
import gc
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.bench.bandwidth.problems import LARGE, PROBLEMS, SMALL, Problem, Sizes
from smelt.bench.contenders import find_contender
from smelt.bench.meter import Meter, meter_of
from smelt.bench.verdict import Tensors, judge
from smelt.bench.workload import Settings

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
"""Dtype of the matrices by name."""

FLOOR = {"bf16": 2e-2, "fp16": 2e-3, "fp32": 1e-5}
"""Relative error of a result that is always accepted, by name of the dtype."""

BURST = 20
"""Number of consecutive calls per measurement on a GPU."""

AHEAD = 0.03
"""Seconds for which the GPU is delayed before these calls: all are queued when it begins, so that only kernels are
timed.
"""

WARMUP = 3


def measure_copy(device: str, rounds: int = 15) -> float:
    """Measure a copy between two large tensors on the device; returns bytes per second, read and written."""
    sizes, meter, burst = _scale(device)
    source = torch.randn(2 * sizes.rows, sizes.columns, device=device)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)

    meter.seconds(copy, WARMUP)
    seconds = statistics.median(meter.seconds(copy, burst, AHEAD) for _ in range(rounds))
    return 2 * source.numel() * source.element_size() / seconds


def measure_problem(name: str, dtype: str, device: str, contenders: Sequence[str], rounds: int = 15) -> dict[str, Any]:
    """Returns by contender the seconds of each execution, measured in turn with the others, or the reason of its
    failure.

    Before the measurement, results are compared with float64; the accepted error follows from eager's error.
    """
    sizes, meter, burst = _scale(device)

    def make() -> Problem:
        torch.manual_seed(0)
        return PROBLEMS[name](sizes, DTYPES[dtype], torch.device(device))

    reference, expected = eager_results(make().widened()), eager_results(make())
    found: dict[str, dict[str, Any]] = {}
    running: dict[str, Callable[[], Any]] = {}
    for contender in contenders:
        problem = make()  # each contender gets separate tensors: a compiled optimizer keeps its state
        try:
            call = find_contender(contender)(problem.function, Settings(train=problem.train, device=device))  # type: ignore[arg-type]
            verdict = judge(reference, expected, problem.results(call), FLOOR[dtype])
            for _ in range(WARMUP):
                problem.once(call)
        except Exception as error:
            found[contender] = {"error": f"{type(error).__name__}: {error}"[:600]}
        else:
            found[contender] = {"error": "; ".join(verdict.failures) or None, "seconds": []}
            running[contender] = functools.partial(problem.once, call)
        gc.collect()
        meter.release()
    for _ in range(rounds):
        for contender, work in running.items():
            found[contender]["seconds"].append(meter.seconds(work, burst, AHEAD))
    return {"moved": make().moved, "contenders": found}


def eager_results(problem: Problem) -> Tensors:
    """Returns eager's results of one execution by name."""
    return problem.results(problem.function)


def _scale(device: str) -> tuple[Sizes, Meter, int]:
    large = device.startswith("cuda")
    return LARGE if large else SMALL, meter_of(device), BURST if large else 1
