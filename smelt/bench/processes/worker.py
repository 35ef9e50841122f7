"""The child side of a measurement: one task in a fresh process (see `process` for the parent's side).

Each task takes plain values and returns plain values. A failure is a status of `results.STATUSES` and a text.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from smelt.base.options import environment
from smelt.bench.accuracy import EagerFailed, judge_workload
from smelt.bench.ahead.measure import save
from smelt.bench.bandwidth.measure import measure_copy, measure_problem
from smelt.bench.census.examine import EagerFails, examine
from smelt.bench.census.libraries import find_library
from smelt.bench.contenders import compiler_counts, find_contender, use_torch_allocator_only
from smelt.bench.limit import limit_of_step
from smelt.bench.meter import meter_of
from smelt.bench.overhead import call_overhead, guard_overhead
from smelt.bench.processes.process import phase_file_of
from smelt.bench.processes.turns import alone
from smelt.bench.regional import measure as regional
from smelt.bench.steps import Stepper, build_batch, build_model, use_tf32
from smelt.bench.workload import Settings
from smelt.bench.workloads import find_workload


class Failed(Exception):
    """Raised when a measurement ends early, with the row's status and the reason."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@contextmanager
def failing_with_status(status: str) -> Iterator[None]:
    """A context in which any error becomes a Failed with that status."""
    try:
        yield
    except Failed:
        raise
    except Exception as error:
        raise Failed(status, describe_error(error)) from error


def describe_error(error: BaseException) -> str:
    """Describe an error by type, message and innermost source location, in at most a few hundred characters."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {str(error)[:600]}{at}"


def read_settings(values: dict[str, Any]) -> Settings:
    """Make the settings of a task and apply those that concern the process."""
    settings = Settings(**values)
    use_tf32(settings)
    return settings


def start(model: str, contender: str, settings: dict[str, Any], steps: int) -> dict[str, Any]:
    """Time the first step, from the built model on, then make `steps` more; returns also the peak memory of the first
    and of the others.
    """
    options = read_settings(settings)
    broken = "eager_fails" if contender == "eager" else "fail_compile"
    with failing_with_status(broken):
        workload = find_workload(model, options.size)
        stepper = Stepper(workload, build_model(workload, options), build_batch(workload, options), options)
        prepare, meter = find_contender(contender), meter_of(options.device)
        meter.wait_for_device()
    begin = time.perf_counter()
    with failing_with_status(broken):
        stepper.compile(prepare)()
    first = time.perf_counter() - begin
    peak = meter.peak_mb()
    steady_known = meter.reset_peak()
    with failing_with_status(broken if contender == "eager" else "fail_run"):
        for _ in range(steps):
            stepper()
    steady = meter.peak_mb() if steps and steady_known else None
    reserved = meter.reserved_mb()
    with failing_with_status("fail_run"):
        watched = environment().debug_memory  # the check would run operators of PyTorch, which would be counted
        left = stepper.eager_operators() if steps and not watched else None
    return {
        "first_s": first,
        "peak_mb": max(peak, steady or 0.0),
        "steady_peak_mb": steady,
        "reserved_mb": reserved,
        "counts": compiler_counts(contender) | ({} if left is None else {"eager_ops": left}),
    }


def steps(
    model: str, contenders: Sequence[str], settings: dict[str, Any], rounds: int, warmup: int, least_s: float = 0.0
) -> dict[str, Any]:
    """Time steps of the contenders in turn (A B C A B C); returns the seconds of each. A contender that fails does not
    end the others.

    Each makes at least `rounds` steps, and more until the rounds have taken `least_s` seconds (at most ten times
    `rounds`).
    """
    options = read_settings(settings)
    with failing_with_status("fail_run"):
        workload = find_workload(model, options.size)
        original = build_model(workload, options)
        batch, meter = build_batch(workload, options), meter_of(options.device)
    running: dict[str, Stepper] = {}
    found: dict[str, Any] = {}
    for name in contenders:
        try:
            stepper = Stepper(workload, copy.deepcopy(original), batch, options).compile(find_contender(name))
            for _ in range(warmup):
                stepper()
        except Exception as error:
            found[name] = {"status": "fail_run", "error": describe_error(error)}
        else:
            running[name] = stepper
            found[name] = {"seconds": []}
        gc.collect()
        meter.release()  # free the memory of a contender that ran out of it, for the next ones
    with alone():
        started = time.perf_counter()
        for taken in range(10 * rounds):
            if taken >= rounds and time.perf_counter() - started > least_s:
                break
            for name in list(running):
                try:
                    found[name]["seconds"].append(meter.seconds(running[name].launch))
                except Exception as error:
                    del running[name]
                    found[name] = {"status": "fail_run", "error": describe_error(error)}
    return found


def tensors(model: str, contender: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Measure the largest memory that the tensors of the third step take."""
    options = read_settings(settings)
    with failing_with_status("fail_run"):
        if not options.device.startswith("cuda"):
            use_torch_allocator_only(contender)
        workload = find_workload(model, options.size)
        stepper = Stepper(workload, build_model(workload, options), build_batch(workload, options), options)
        stepper.compile(find_contender(contender))
        for _ in range(2):
            stepper()
        return {"tensors_mb": meter_of(options.device).tensors_mb(stepper.launch)}


def limit(model: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Compute the least seconds of one step at the measured ceilings of this machine, see `smelt.bench.limit`."""
    options = read_settings(settings)
    with failing_with_status("eager_fails"):
        workload = find_workload(model, options.size)
        stepper = Stepper(workload, build_model(workload, options), build_batch(workload, options), options)
        return {"limit_s": limit_of_step(stepper.compile(find_contender("eager")))}


def accuracy(model: str, contender: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Judge the contender against eager in float64; returns the verdict as a dictionary, and what the compiler
    counted.
    """
    options = read_settings(settings)
    with failing_with_status("fail_compile"):
        try:
            verdict = judge_workload(find_workload(model, options.size), options, find_contender(contender))
        except EagerFailed as error:
            raise Failed("eager_fails", describe_error(error.__cause__ or error)) from error
    return {"verdict": dataclasses.asdict(verdict), "counts": compiler_counts(contender)}


def overhead(contender: str, guards: bool) -> dict[str, Any]:
    """Measure the seconds of a call: of `x + 1` and, if requested, of BERT-base and 48 blocks with graphs that do
    nothing.
    """
    with failing_with_status("fail_run"):
        found = call_overhead(contender)
        return found | (guard_overhead(contender) if guards else {})


def copy_speed(device: str) -> dict[str, Any]:
    """Measure a copy on the device in bytes per second."""
    with failing_with_status("fail_run"):
        return {"bytes_s": measure_copy(device)}


def bandwidth(problem: str, dtype: str, device: str, contenders: Sequence[str]) -> dict[str, Any]:
    """Measure the seconds of a program that moves memory, see `smelt.bench.bandwidth.measure`."""
    with failing_with_status("fail_run"):
        return measure_problem(problem, dtype, device, contenders)


def census(library: str, architecture: str) -> dict[str, Any]:
    """Examine one architecture of a library in eval and train mode, see `smelt.bench.census.examine`."""
    try:
        return examine(lambda: find_library(library).build(architecture), report_phase)
    except EagerFails as error:
        raise Failed("eager_fails", str(error)) from error


def ahead(model: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Make an artefact of a model's step, see `smelt.bench.ahead.measure`."""
    with failing_with_status("fail_compile"):
        return save(model, read_settings(settings))


def first_pass(model: str, contender: str, passes: dict[str, Any]) -> dict[str, Any]:
    """Measure a decoder's first pass, see `smelt.bench.regional.measure`."""
    with failing_with_status("eager_fails" if contender == "eager" else "fail_compile"):
        regional_passes = regional.Passes(**passes)
        use_tf32(regional_passes.settings())
        return regional.first_pass(model, contender, regional_passes)


def passes_in_turn(model: str, contenders: Sequence[str], passes: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Measure passes of a decoder by several contenders in turn, see `smelt.bench.regional.measure`."""
    with failing_with_status("fail_run"):
        regional_passes = regional.Passes(**passes)
        use_tf32(regional_passes.settings())
        return regional.passes_in_turn(model, contenders, regional_passes, rounds)


def report_phase(name: str) -> None:
    """Write the current phase to a file, which the parent reads if this process hangs or crashes."""
    phase_file.write_text(name)


phase_file = Path(os.devnull)

TASKS: dict[str, Callable[..., dict[str, Any]]] = {
    "start": start,
    "steps": steps,
    "tensors": tensors,
    "limit": limit,
    "accuracy": accuracy,
    "overhead": overhead,
    "copy_speed": copy_speed,
    "bandwidth": bandwidth,
    "census": census,
    "ahead": ahead,
    "first_pass": first_pass,
    "passes_in_turn": passes_in_turn,
}


def main(task_file: str, result_file: str) -> None:
    """Run the task described in one JSON file and write its outcome to another."""
    global phase_file
    phase_file = phase_file_of(Path(result_file))
    task = json.loads(Path(task_file).read_text())
    try:
        outcome: dict[str, Any] = {"value": TASKS[task.pop("task")](**task)}
    except Failed as failed:
        traceback.print_exc()
        outcome = {"status": failed.status, "error": failed.reason}
    Path(result_file).write_text(json.dumps(outcome))
