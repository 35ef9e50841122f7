"""Picks the fastest of several ways to run one operation: timed once per operation, then remembered.

Timings are kept in memory and, as plain JSON text, in the store, under a key that names processor, torch version and
thread count. The first step of a model pays for tuning, so it is cheap: one warm-up and a few runs per candidate, fewer
for long ones, and a candidate that is clearly slower than the best so far is dropped after its first timed run.
"""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable, Mapping

import torch

from smelt.base.store import content_key, store
from smelt.base.version import VERSION
from smelt.runtime.build import cpu_features

RUNS = 4
"""Timed runs of a candidate that stays near the best."""
DROP = 1.5
"""A candidate whose first timed run takes this many times the best is not run again."""
BUDGET_S = 0.05
"""Once a candidate has used this much time it is not run again."""

_lock = threading.Lock()
_known: dict[str, str] = {}


@functools.cache
def machine_key() -> str:
    """What timings depend on besides the operation: processor, torch, thread count is added per call."""
    return content_key(cpu_features(), torch.__version__, VERSION)


def remembered(operation: str, names: tuple[str, ...]) -> str | None:
    """The winner recorded for `operation` among exactly these candidate names, from memory or the store."""
    key = _key(operation, names)
    with _lock:
        if key in _known:
            return _known[key]
    text = store().get_text("tune", key)
    if text is None:
        return None
    try:
        winner = json.loads(text)["winner"]
    except (ValueError, KeyError, TypeError):
        return None  # an older layout of the entry: time again
    if winner not in names:
        return None
    with _lock:
        _known[key] = winner
    return winner


def choose(operation: str, candidates: Mapping[str, Callable[[], object]]) -> str:
    """The name of the fastest candidate; runs them unless the answer is remembered.

    Args:
        operation: what is run, with everything the timing depends on (shapes, strides, dtypes, parameters).
        candidates: name -> a run on prepared inputs. Runs must be repeatable.
    """
    names = tuple(candidates)
    known = remembered(operation, names)
    if known is not None:
        return known
    timings = measure(candidates)
    winner = min(timings, key=timings.__getitem__)
    key = _key(operation, names)
    with _lock:
        _known[key] = winner
    record = {"operation": operation, "threads": torch.get_num_threads(), "winner": winner, "seconds": timings}
    store().put_text("tune", key, json.dumps(record, indent=1) + "\n")
    return winner


def measure(candidates: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds of each candidate: the least of a few runs, interleaved so that a disturbance hits all of them."""
    best: dict[str, float] = {}
    spent: dict[str, float] = {}
    for name, run in candidates.items():
        started = time.perf_counter()
        run()
        spent[name] = time.perf_counter() - started  # first run: one-time set-up of the operation, not counted
        best[name] = float("inf")
    active = dict(candidates)
    for _ in range(RUNS):
        for name, run in active.items():
            started = time.perf_counter()
            run()
            took = time.perf_counter() - started
            best[name] = min(best[name], took)
            spent[name] += took
        least = min(best.values())
        active = {n: run for n, run in active.items() if best[n] <= DROP * least and spent[n] < BUDGET_S}
        if len(active) < 2 and least in (best[n] for n in active):
            break  # everyone else is clearly slower
        if not active:
            break
    return best


def forget() -> None:
    """Drop what is remembered in memory (the store keeps its entries)."""
    with _lock:
        _known.clear()


def _key(operation: str, names: tuple[str, ...]) -> str:
    return content_key(machine_key(), str(torch.get_num_threads()), operation, ",".join(names))
