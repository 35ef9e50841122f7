"""Counts since the last reset: what was captured, compiled and why it went elsewhere."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from smelt.base.locks import new_lock

_lock = new_lock()
_counts: Counter[str] = Counter()
_named: defaultdict[str, Counter[str]] = defaultdict(Counter)
_seconds: defaultdict[str, float] = defaultdict(float)

NAMES = ("graphs", "breaks", "ops", "recompiles", "fallbacks", "fallback_ops", "compile_s")
"""The keys that are always present in `stats()`."""

TABLES = (
    "break_reasons", "cuda_graph_reasons", "extern_ops", "kernel_choices", "product_choices", "recompile_reasons",
    "second_ways",
)  # fmt: skip
"""The tables that are always present in `stats()`."""


def count(name: str, by: int = 1) -> None:
    """Add to a counter."""
    with _lock:
        _counts[name] += by


def count_named(table: str, names: Mapping[str, int]) -> None:
    """Add to the counters of a table that is kept by name, such as `break_reasons`."""
    with _lock:
        _named[table].update(names)


def spend(stage: str, seconds: float) -> None:
    """Add compile time in seconds to a stage."""
    with _lock:
        _seconds[stage] += seconds


def stats() -> dict[str, Any]:
    """Counters since `reset`, `compile_s` (seconds, all stages) and `stage_s` (seconds by stage).

    `break_reasons` holds how often each graph break was met, by its text; `recompile_reasons` how often each guard
    caused a recompile, with the value it was made for and the one it found; `extern_ops` how many calls
    of each ATen operator the compiled programs hand back to torch (`fallback_ops` is their sum); `cuda_graph_reasons`
    how often a program on a GPU ran without a CUDA graph, and why; `kernel_choices` what was chosen by time for
    attention and convolutions on a GPU; `product_choices` how many matrix products are
    computed by a library and how many by a template, where that was chosen by timing; `second_ways` which kernels and
    calls of libraries were refused, and what ran instead. `unaligned_kernels`, once there are any, counts
    kernels for tensors of a GPU that do not begin at multiples of 16 bytes.
    """
    with _lock:
        known: dict[str, Any] = {name: _counts[name] for name in NAMES if name != "compile_s"}
        known |= dict(_counts)
        known["compile_s"] = sum(_seconds.values())
        known["fallback_ops"] = sum(_named["extern_ops"].values())
        known["stage_s"] = dict(_seconds)
        known |= {table: dict(_named[table]) for table in TABLES}
        return known


def reset_stats() -> None:
    """Set every counter to zero."""
    with _lock:
        _counts.clear()
        _seconds.clear()
        _named.clear()
