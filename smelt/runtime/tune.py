"""Picks the fastest of several implementations of a library operation: timed once per operation, then remembered.

Timings are kept in memory and, as plain JSON text, in the store, under a key that names processor, torch version and
thread count. The first step of a model pays for tuning, so tuning is cheap: a few runs per candidate, one or two for
long runs, more only for candidates whose times are close to each other. A result from a busy machine is used but not
stored.
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
"""Number of clear losses by (family, candidate); minus infinity once the candidate came close to winning."""


class Clock(Protocol):
    """Times work on a device."""

    def recording(self) -> bool:
        """Whether the current stream is being recorded, so that nothing can be timed."""

    def time(self, run: Callable[[], object]) -> float:
        """Returns the seconds that the device takes for the launches of `run`."""

    def name(self) -> str:
        """The name of the device, for keys of the store."""


@functools.cache
def machine_key() -> str:
    """Returns the key of everything on which timings depend besides operation and thread count: processor, torch and
    smelt.
    """
    return content_key(cpu_features(), torch.__version__, VERSION)


def remembered(operation: str, names: tuple[str, ...]) -> str | None:
    """Returns the winner recorded for `operation` among exactly these candidate names, from memory or the store; None
    if there is no record.
    """
    return _tuner.remembered(_key(operation, names), names.__contains__)


def take(operation: str, names: tuple[str, ...], winner: str) -> None:
    """Remember a choice made on another machine of the same kind, unless this machine has its own choice; the operation
    is then not timed.
    """
    if winner in names and remembered(operation, names) is None:
        _tuner.keep(_key(operation, names), winner, None)


def choose(
    operation: str, candidates: Mapping[str, Callable[[], object]], family: str = "", clock: Clock | None = None
) -> str:
    """Returns the name of the fastest candidate; runs the candidates unless the answer is remembered.

    Args:
        operation: key of the operation with everything on which its time depends (shapes, strides, dtypes, parameters).
        candidates: for each name a run on prepared inputs, the preferred candidate first. Runs must be repeatable.
        clock: clock of the device on which candidates run; candidates that its libraries refuse drop out. None: the
            CPU.
        family: name of a family of operations that differ only in sizes. A candidate that clearly lost in several
            operations of a family and never won is not tried on the rest (a library without kernels for this processor
            always loses).
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
        except RuntimeError:  # all remaining candidates refuse these arguments
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
    """Returns the candidates that run at all, and the preferred one. Their first run also does their initialisation."""
    found = dict(candidates)
    for name in list(found)[1:]:
        try:
            found[name]()
        except RuntimeError:  # the library has no kernel for these arguments, or there is not enough memory
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
    """Returns the seconds of every run of each candidate, interleaved so that a disturbance affects all of them.

    A candidate that refuses its arguments (oneDNN refuses overlapping strides) drops out, unless all do.
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
            active = [name for name in active if not _tuner.is_slower(min(runs[name]), least)]
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
    """Whether the best time was measured (nearly) twice, or the operation is long enough to trust one run."""
    ordered = sorted(times)
    return ordered[0] >= TIMING.long_s or (len(ordered) > 1 and ordered[1] <= TIMING.steady_factor * ordered[0])


def forget() -> None:
    """Clear the cache in memory; the store keeps its entries."""
    _tuner.forget()
    with _lock:
        _losses.clear()


def _key(operation: str, names: tuple[str, ...]) -> str:
    return content_key(machine_key(), str(torch.get_num_threads()), operation, ",".join(names))
