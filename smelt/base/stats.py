"""Counters since the last reset: graphs, operators, compile time, graph breaks, recompiles, fallbacks and their
reasons."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from smelt.base.locks import new_lock

_lock = new_lock()
_counts: Counter[str] = Counter()
_named: defaultdict[str, Counter[str]] = defaultdict(Counter)
_seconds: defaultdict[str, float] = defaultdict(float)
_waits: defaultdict[str, float] = defaultdict(float)

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
    """Add to the counters of a table, such as `break_reasons`: text or name -> number to add."""
    with _lock:
        _named[table].update(names)


def spend(stage: str, seconds: float) -> None:
    """Add compile time in seconds to a stage."""
    with _lock:
        _seconds[stage] += seconds


def spend_waiting(seconds: float) -> None:
    """Add to the time for which programs waited for collectives of tensors of the CPU."""
    with _lock:
        _waits["collective_wait_s"] += seconds


def stats() -> dict[str, Any]:
    """Counters since `reset`, `compile_s` (seconds, all stages) and `stage_s` (seconds by stage).

    The tables map a text to a number of occurrences:

    - `break_reasons`: graph breaks.
    - `recompile_reasons`: recompiles by the guard that caused them, with the expected and the found value.
    - `extern_ops`: calls by ATen operator that compiled programs leave to torch; `fallback_ops` is their sum.
    - `cuda_graph_reasons`: programs on a GPU that ran without a CUDA graph, with the reason.
    - `kernel_choices`: kernels that were chosen by timing for attention and convolutions on a GPU.
    - `product_choices`: matrix products that a library or a template computes, where that was chosen by timing.
    - `second_ways`: kernels and library calls that failed, with the code that ran instead.

    `unaligned_kernels`, present only if not 0, counts kernels for GPU tensors that do not begin at a multiple of 16
    bytes. `collectives` and `collective_wait_s`, present only then, count the collectives of tensors of the CPU that
    compiled programs began, and the seconds for which they waited for them.
    """
    with _lock:
        known: dict[str, Any] = {name: _counts[name] for name in NAMES if name != "compile_s"}
        known |= dict(_counts) | dict(_waits)
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
        _waits.clear()
        _named.clear()
