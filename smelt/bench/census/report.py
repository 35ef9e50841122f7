"""Formats a census as text: one line for each row, a summary, and a Markdown report."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from smelt.bench.census.results import STATUSES, Census, Row
from smelt.bench.tables import describe_machine_line

SHOWN = 40
"""Maximum number of reasons that are listed, the most frequent first."""


def one_line(row: Row) -> str:
    """Format a row as one line for the terminal."""
    reasons = [*row.errors, *(f"{times} x {reason}" for reason, times in row.reasons.items())]
    tail = f": {'; '.join(reasons)[:300]}" if reasons and row.status != "whole" else ""
    return f"{row.name} ({row.seconds:.1f} s): {row.status}{tail}"


def counts(rows: list[Row]) -> Counter[str]:
    """Returns the number of rows by status."""
    return Counter(row.status for row in rows)


def share(rows: list[Row]) -> str:
    """Describe how many of the rows that eager runs are captured whole, without and with the rows of status `forks`."""
    by_status = counts(rows)
    counted = len(rows) - by_status["eager_fails"]
    if not counted:
        return "none runs in eager"
    whole, forks = by_status["whole"], by_status["forks"]
    text = f"{whole} of {counted} captured whole ({100 * whole / counted:.1f} %)"
    return f"{text}, {whole + forks} with forks ({100 * (whole + forks) / counted:.1f} %)" if forks else text


def frequent_reasons(rows: list[Row]) -> list[tuple[str, list[Row]]]:
    """Returns break reasons without source locations, and errors, with the rows where they occurred; most frequent
    first.
    """
    met: dict[str, list[Row]] = {}
    for row in rows:
        if row.status in ("whole", "eager_fails"):
            continue
        found = [_without_location(reason) for reason in row.reasons] or [error[:160] for error in row.errors]
        for reason in dict.fromkeys(found or ["more than one graph, without a break"]):
            met.setdefault(reason, []).append(row)
    return sorted(met.items(), key=lambda item: (-len(item[1]), item[0]))


def summary(census: Census) -> str:
    """Describe the result in a few lines."""
    rows = census.rows
    by_status = counts(rows)
    lines = [f"{census.library} ({census.version}): {share(rows)}"]
    lines.append(", ".join(f"{by_status[status]} {status}" for status in STATUSES if by_status[status]))
    recompiled = sum(any(outcome.recompiles for outcome in row.modes.values()) for row in rows)
    if recompiled:
        lines.append(f"{recompiled} compiled again at a second, equal call")
    for reason, met in frequent_reasons(rows)[:8]:
        lines.append(f"  {len(met):4} {reason}")
    return "\n".join(lines)


def markdown(census: Census) -> str:
    """Write the whole report: totals, reasons with their rows, and every row that is not captured whole."""
    rows = census.rows
    by_status = counts(rows)
    lines = [f"# Census of {census.library}", "", f"{census.version}. {share(rows)}.", ""]
    lines += ["| status | architectures |", "|---|---:|"]
    lines += [f"| {status} | {by_status[status]} |" for status in STATUSES if by_status[status]]
    reasons = frequent_reasons(rows)
    if reasons:
        lines += ["", "## Why not whole", "", "| architectures | reason | such as |", "|---:|---|---|"]
        for reason, met in reasons[:SHOWN]:
            lines.append(f"| {len(met)} | {_cell(reason)} | {', '.join(row.name for row in met[:3])} |")
    odd = [row for row in rows if row.status not in ("whole", "eager_fails")]
    if odd:
        lines += ["", "## Rows", "", "| architecture | class or file | inputs | status | graphs (breaks) | what |"]
        lines.append("|---|---|---|---|---:|---|")
        lines += [_row(row) for row in odd]
    failing = [row for row in rows if row.status == "eager_fails"]
    if failing:
        lines += ["", "## Eager fails (not counted)", ""]
        lines += [f"- {row.name}: {_cell((row.errors or ['?'])[0])[:200]}" for row in failing]
    lines += ["", f"`{census.command}`", "", f"{describe_machine_line(census.machine)}; {census.started}"]
    return "\n".join(lines) + "\n"


def write_census(out: Path, census: Census) -> Path:
    """Write the Markdown report into the folder, which is created if missing; returns the report's path."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"census-{census.library}.md"
    path.write_text(markdown(census), encoding="utf-8")
    return path


def _row(row: Row) -> str:
    graphs = ", ".join(f"{mode} {o.graphs} ({o.breaks})" for mode, o in row.modes.items())
    what = "; ".join([*row.errors, *row.reasons])
    return f"| {row.name} | {row.kind} | {row.shape} | {row.status} | {graphs} | {_cell(what)[:300]} |"


def _without_location(reason: str) -> str:
    return re.sub(r" \([^()]*\.py:\d+\)$", "", reason)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
