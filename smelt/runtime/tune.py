"""Picks the fastest of several ways to run one operation: timed once per operation, then remembered.

Timings are kept in memory and, as plain JSON text, in the store, under a key that names processor, torch version and
thread count. The first step of a model pays for tuning, so it is cheap: a few runs per candidate, one or two for long
ones, more only for candidates that are close to each other. A result from a busy machine is used but not stored.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from smelt.base.locks import new_lock
from smelt.base.store import content_key
from smelt.base.version import VERSION
from smelt.runtime.build import cpu_features
from smelt.runtime.tuned import TIMING
from smelt.runtime.tuner import Tuner

_tuner: Tuner[str] = Tuner("tune", tie=TIMING.tie_factor, close=TIMING.close_factor)
_lock = new_lock()
_losses: dict[tuple[str, str], float] = {}
"""(family, candidate) -> clear losses; infinitely negative once it came close to winning."""


class Clock(Protocol):
    """Times what runs on a device."""

    def recording(self) -> bool:
        """Whether the current stream is being recorded: nothing can be timed then."""

    def time(self, run: Callable[[], object]) -> float:
        """Seconds that the device takes for what `run` launches."""

    def name(self) -> str:
        """Of the device, for what is remembered."""


@functools.cache
def machine_key() -> str:
    """What timings depend on besides the operation and the thread count: processor, torch and smelt."""
    return content_key(cpu_features(), torch.__version__, VERSION)


def remembered(operation: str, names: tuple[str, ...]) -> str | None:
    """The winner recorded for `operation` among exactly these candidate names, from memory or the store."""
    return _tuner.remembered(_key(operation, names), names.__contains__)


def take(operation: str, names: tuple[str, ...], winner: str) -> None:
    """Remember what was chosen elsewhere, on such a machine: where nothing is known here, nothing is timed."""
    if winner in names and remembered(operation, names) is None:
        _tuner.keep(_key(operation, names), winner, None)


def choose(
    operation: str, candidates: Mapping[str, Callable[[], object]], family: str = "", clock: Clock | None = None
) -> str:
    """The name of the fastest candidate; runs them unless the answer is remembered.

    Args:
        operation: what is run, with everything the timing depends on (shapes, strides, dtypes, parameters).
        candidates: name -> a run on prepared inputs, the preferred first. Runs must be repeatable.
        clock: of the device that candidates run on; those that its libraries refuse are out. None: this processor.
        family: operations that differ in sizes only. A candidate that clearly lost in several of a family and never
            won is not tried on the rest (a library without kernels for this processor loses everywhere).
    """
    names = tuple(candidates)
    known = remembered(operation, names)
    if known is not None:
        return known
    tried = {name: run for name, run in candidates.items() if not _hopeless(family, name)} or candidates
    if clock is not None:
        runs = measure(_accepted(tried), clock.time)
    else:
        try:
            runs = measure(tried)
        except RuntimeError:  # what is left refuses these arguments
            if len(tried) == len(candidates):
                raise
            runs = measure(candidates)
    best = {name: min(times) for name, times in runs.items()}
    winner = _tuner.fastest(best)
    with _lock:
        for name, seconds in best.items():
            _record(family, name, seconds / best[winner])
    record = {"operation": operation, "threads": torch.get_num_threads(), "seconds": best}
    _tuner.keep(_key(operation, names), winner, record if _steady(runs[winner]) else None)
    return winner


def _accepted(candidates: Mapping[str, Callable[[], object]]) -> dict[str, Callable[[], object]]:
    """Those that run at all, and the preferred one. What they set up at their first run is done then."""
    found = dict(candidates)
    for name in list(found)[1:]:
        try:
            found[name]()
        except RuntimeError:  # the library has no kernel for this, or the memory is not there
            del found[name]
    return found


def _on_this_processor(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def measure(
    candidates: Mapping[str, Callable[[], object]],
    seconds: Callable[[Callable[[], object]], float] = _on_this_processor,
) -> dict[str, list[float]]:
    """Seconds of every run of each candidate, interleaved so that a disturbance hits all of them.

    One that refuses its arguments (oneDNN refuses strides of elements that overlap) is out, unless all do.
    """
    runs: dict[str, list[float]] = {name: [] for name in candidates}
    active = list(candidates)
    for turn in range(TIMING.max_runs):
        for name in list(active):
            try:
                runs[name].append(seconds(candidates[name]))
            except RuntimeError:
                if len(runs) == 1:
                    raise
                active.remove(name)
                del runs[name]
        if len(runs) == 1:
            break
        least = min(min(times) for times in runs.values())
        active = [name for name in active if sum(runs[name]) < TIMING.long_s]
        if turn + 1 >= TIMING.min_runs:
            active = [name for name in active if not _tuner.is_behind(min(runs[name]), least)]
            if len(active) < 2:
                break
    return runs


def _hopeless(family: str, name: str) -> bool:
    with _lock:
        return bool(family) and _losses.get((family, name), 0) >= TIMING.max_losses


def _record(family: str, name: str, ratio: float) -> None:
    change = 1.0 if ratio >= TIMING.lost_factor else float("-inf")
    _losses[family, name] = _losses.get((family, name), 0.0) + change


def _steady(times: list[float]) -> bool:
    """Whether the best time was seen (nearly) twice, or the operation is long enough to trust one run."""
    ordered = sorted(times)
    return ordered[0] >= TIMING.long_s or (len(ordered) > 1 and ordered[1] <= TIMING.steady_factor * ordered[0])


def forget() -> None:
    """Drop what is remembered in memory (the store keeps its entries)."""
    _tuner.forget()
    with _lock:
        _losses.clear()


def _key(operation: str, names: tuple[str, ...]) -> str:
    return content_key(machine_key(), str(torch.get_num_threads()), operation, ",".join(names))
