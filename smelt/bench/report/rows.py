"""Formats rows: a line of text and details for each contender. Times and sizes come with their ratios."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from smelt.bench.report.summary import (
    BASE,
    RIVAL,
    Setting,
    cold_s,
    compared,
    peak_mb,
    ratio,
    reference,
    speedup,
    warm_s,
)
from smelt.bench.results import Result, Row
from smelt.bench.tables import error_text, graphs_text, spread_text

HEADS = (
    "model",
    "suite",
    "setting",
    "contender",
    "status",
    "step ms (x eager)",
    "±",
    f"x {RIVAL}",
    "cold s (ratio)",
    "peak MiB (x eager)",
    "error, x eager's",
    "graphs (breaks)",
)
"""Heads of the columns of the table of rows; the first LEFT columns are text."""

LEFT = 5

Lines = list[tuple[str, str]]

NOTE = (
    "In brackets: steps and memory against eager, cold starts against torch.compile (its own against eager), or "
    "against eager where torch.compile did not take part. Figures stand only where both passed."
)

Entry = tuple[Row, Result, str]
"""A row, a contender's result in it, and the contender with which its starts are compared."""


def entries(rows: Iterable[Row]) -> list[Entry]:
    """Returns the entries of all contenders of all rows. Eager, the base of every ratio, has an entry only if it is
    alone.
    """
    return [
        (row, result, reference([row], result.contender))
        for row in rows
        for result in row.results.values()
        if result.contender in compared([row])
    ]


def entry_cells(row: Row, result: Result, other: str) -> tuple[str, ...]:
    """Returns the cells of a line, in the order of HEADS."""
    name, step = result.contender, result.step
    rival = speedup(row, name, RIVAL) if name != RIVAL else None
    return (
        row.model,
        row.suite,
        Setting.of(row).how,
        name,
        result.status,
        beside(step.median * 1e3 if step else None, speedup(row, name)),
        spread_text(result) if speedup(row, name) else "",
        f"{rival:.2f}x" if rival else "",
        beside(result.cold_s, ratio(row, name, other, cold_s)),
        beside(result.peak_mb, ratio(row, name, BASE, peak_mb), 0),
        error_text(result),
        graphs_text(result),
    )


def beside(value: float | None, ratio: float | None, digits: int = 2) -> str:
    """Format a figure with its ratio, or alone if it has no ratio."""
    return "" if value is None or ratio is None else f"{value:.{digits}f} ({ratio:.2f}x)"


def about_lines(row: Row, result: Result, other: str) -> Lines:
    """Returns lines about inputs, ratios with both of their figures, the verdict, and counts."""
    verdict = result.accuracy
    lines: Lines = [("inputs", row.shape), ("dropout", row.dropout), ("note", row.note)]
    lines += [*_step_lines(row, result), *_start_lines(row, result, other)]
    if verdict:
        text = f"{verdict.error:.2e}, eager's own {verdict.eager_error:.2e}, {verdict.tensors} tensors compared"
        lines.append((f"worst tensor: {verdict.worst}", text))
    counted = {"ops": "operators captured", "recompiles": "recompilations", "fallbacks": "frames in eager"}
    lines += [(title, str(result.counts[key])) for key, title in counted.items() if key in result.counts]
    return [(head, text) for head, text in lines if text]


def _step_lines(row: Row, result: Result) -> Lines:
    """Returns lines with the ratios of the step's time to eager's and torch.compile's, each with both times."""
    lines: Lines = []
    for base in (BASE, RIVAL):
        value = speedup(row, result.contender, base) if result.contender != base else None
        own, theirs = result.step, row.results[base].step if base in row.results else None
        if value and own and theirs:
            spreads = [f"{s.median * 1e3:.2f} ({s.low * 1e3:.2f} to {s.high * 1e3:.2f})" for s in (own, theirs)]
            lines.append((f"step, {value:.2f}x as fast as {base}", f"{spreads[0]} ms against {spreads[1]} ms"))
    return lines


def _start_lines(row: Row, result: Result, other: str) -> Lines:
    """Returns lines with the ratios of the cold and the warm start's times to those of `other`, each with both
    times.
    """
    lines: Lines = []
    for title, figure in (("cold start", cold_s), ("warm start", warm_s)):
        value = ratio(row, result.contender, other, figure)
        if value:
            seconds = [figure(row.results[who]) for who in (result.contender, other)]
            lines.append((f"{title}, {value:.2f}x {other}'s", f"{seconds[0]:.2f} s against {seconds[1]:.2f} s"))
    return lines


def stage_lines(counts: Mapping[str, Any]) -> Lines:
    """Returns lines with the seconds of each stage, the longest first, and its share of the whole."""
    stages = counts.get("stage_s")
    if not isinstance(stages, dict):
        return []
    seconds = {str(name): float(s) for name, s in stages.items() if isinstance(s, (int, float))}
    whole = max(float(counts.get("compile_s") or 0.0), sum(seconds.values()))
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return [(name, f"{s:.3f} s, {100 * s / whole:.0f}%") for name, s in ordered if s > 0]
