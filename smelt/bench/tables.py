"""Formats benchmark results as tables for the terminal (rich) and for Markdown files, from the same cells."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from smelt.bench.results import STATUSES, Benchmark, Result, Row
from smelt.bench.verdict import FACTOR

HEADS = (
    "model",
    "contender",
    "cold s",
    "warm s",
    "step ms",
    "±",
    "x eager",
    "of limit",
    "peak MiB",
    "error",
    "graphs (breaks)",
    "verdict",
)
LEFT = {"model", "contender", "verdict"}


def cells(row: Row, result: Result) -> tuple[str, ...]:
    """Returns the cells of one line; an empty cell is a figure that was not measured."""
    step = result.step
    return (
        row.model,
        result.contender,
        _number(result.cold_s, 2),
        _number(result.warm_s, 2),
        _number(step.median * 1e3 if step else None, 2),
        spread_text(result),
        _number(result.speedup, 2),
        limit_text(row, result),
        _number(result.peak_mb, 0),
        error_text(result),
        graphs_text(result),
        result.status,
    )


def limit_text(row: Row, result: Result) -> str:
    """Format the least time of a step on this machine as a share of the measured time."""
    return f"{row.limit_s / result.step.median:.0%}" if row.limit_s and result.step else ""


def spread_text(result: Result) -> str:
    """Format half the distance between the quartiles of the steps, as a share of their median."""
    step = result.step
    return f"{50 * (step.high - step.low) / step.median:.0f}%" if step else ""


def error_text(result: Result) -> str:
    """Format the worst tensor's error as a multiple of eager's own."""
    return f"{result.accuracy.ratio:.1f}x" if result.accuracy else ""


def graphs_text(result: Result) -> str:
    """Format the number of graphs, with the number of graph breaks in brackets."""
    counts = result.counts
    return f"{counts['graphs']} ({counts.get('breaks', 0)})" if counts.get("graphs") is not None else ""


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


NARROW = ("contender", "cold s", "warm s", "step ms", "±", "eager", "limit", "MiB", "error", "graphs", "verdict")
"""Heads of the terminal's table: HEADS without the model, which has a separate line; short enough for 80 columns."""


def results_table(rows: Sequence[Row], title: str = "", busy: tuple[str, str, str] | None = None) -> Table:
    """Make a table of every result so far; `busy` = (model, contender, phase) is the current measurement."""
    title = f"{title}: {', '.join(busy)} ..." if busy else title
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for head in NARROW:
        left = head in LEFT
        table.add_column(head, justify="left" if left else "right", min_width=13 if left else None, overflow="fold")
    for row in rows:
        table.add_row(f"[bold]{row.model}[/]")
        for result in row.results.values():
            line = list(cells(row, result))[1:]
            if busy and busy[0] == row.model and busy[1] in (result.contender, "all"):
                line[-1] = "[cyan]...[/]"
            elif result.status != "pass":
                line[-1] = f"[red]{result.status}[/]"
            table.add_row(*line)
    return table


def compact_table(rows: Sequence[Row]) -> Table:
    """Make a table with one line for each model: the last contender is judged, the others are compared with it."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    names = list(dict.fromkeys(name for row in rows for name in row.results))
    judged = list(rows[0].results)[-1:] if rows else []
    rivals = [name for name in names if name not in ("eager", *judged)]
    table.add_column("model", overflow="ellipsis", no_wrap=True, max_width=24)
    for head in ("eager ms", *(f"{name} x" for name in [*rivals, *judged]), "cold s", "MiB x", "error", "graphs"):
        table.add_column(head, justify="right", overflow="fold", max_width=8)
    table.add_column("verdict", no_wrap=True, min_width=13)
    for row in rows:
        table.add_row(*_compact_cells(row, [*rivals, *judged]))
    return table


def _compact_cells(row: Row, compared: Sequence[str]) -> list[str]:
    """Returns the cells of a model's line; `compared`: the contenders whose speed is shown."""
    eager, ours = row.results.get("eager"), list(row.results.values())[-1]
    memory = ours.peak_mb / eager.peak_mb if eager and eager.peak_mb and ours.peak_mb else None
    return [
        row.model,
        _number(eager.step.median * 1e3 if eager and eager.step else None, 2),
        *(_speed(row.results[name]) if name in row.results else "" for name in compared),
        _number(ours.cold_s, 1),
        _number(memory, 2),
        error_text(ours),
        graphs_text(ours),
        _verdict(ours),
    ]


def one_line(row: Row) -> str:
    """Format a row for a log: each contender's median step, speed-up, start and peak, or its failure."""
    entries = []
    for name, result in row.results.items():
        figures = [
            f"{result.step.median * 1e3:.2f} ms" if result.step else "",
            f"{result.speedup:.2f}x" if result.speedup and name != "eager" else "",
            f"cold {result.cold_s:.1f} s" if result.cold_s else "",
            f"{result.peak_mb:.0f} MiB" if result.peak_mb else "",
            f"tensors {result.tensors_mb:.1f} MiB" if result.tensors_mb else "",
            error_text(result),
            result.status if result.status != "pass" else "",
        ]
        entries.append(f"{name} {' '.join(filter(None, figures))}")
    return f"{row.suite}/{row.model}, {row.precision}: {'; '.join(entries)}"


def _speed(result: Result) -> str:
    """Format the speed-up over eager, in red for a contender that has not passed."""
    number = _number(result.speedup, 2)
    return number if result.status == "pass" else f"[red]{number or '-'}[/]"


def _verdict(result: Result) -> str:
    return f"[{'green' if result.status == 'pass' else 'red'}]{result.status}[/]"


def totals(rows: Sequence[Row]) -> str:
    """Returns the number of rows by status for each contender, and the geometric mean of its speed-up over eager."""
    lines = []
    for name in dict.fromkeys(name for row in rows for name in row.results):
        results = [row.results[name] for row in rows if name in row.results]
        statuses = Counter(result.status for result in results)
        line = f"{name}: " + ", ".join(f"{statuses[status]} {status}" for status in STATUSES if statuses[status])
        speeds = [result.speedup for result in results if result.status == "pass" and result.speedup]
        if speeds and name != "eager":
            line += f"; {statistics.geometric_mean(speeds):.2f}x eager (geometric mean of {len(speeds)})"
        lines.append(line + _tensors(rows, name))
    return "\n".join(lines)


def _tensors(rows: Sequence[Row], name: str) -> str:
    """Describe the memory of this contender's tensors relative to eager's, where it was measured: the median and the
    maximum.
    """
    shares = {}
    for row in rows:
        eager, own = row.results.get("eager"), row.results.get(name)
        if name != "eager" and eager and own and eager.tensors_mb and own.tensors_mb:
            shares[row.model] = own.tensors_mb / eager.tensors_mb
    if not shares:
        return ""
    worst = max(shares, key=lambda model: shares[model])
    above = sum(share > 1 for share in shares.values())
    middle = statistics.median(shares.values())
    return f"; tensors {middle:.2f}x eager's (median), at most {shares[worst]:.2f}x ({worst}), {above} above"


def failures(rows: Sequence[Row]) -> list[str]:
    """Returns one line for each result that is not `pass`, with its reason."""
    return [
        f"{row.model}, {result.contender}: {result.status}: {' '.join((result.error or '').split())[:300]}"
        for row in rows
        for result in row.results.values()
        if result.status != "pass"
    ]


def markdown(benchmark: Benchmark) -> str:
    """Format the run as a Markdown section: table, failures, command, machine."""
    lines = ["| " + " | ".join(HEADS) + " |", "|" + "|".join("---" if h in LEFT else "---:" for h in HEADS) + "|"]
    for row in benchmark.rows:
        lines += ["| " + " | ".join(cells(row, result)) + " |" for result in row.results.values()]
    lines += ["", *(f"- {line}" for line in failures(benchmark.rows))]
    lines += ["", f"`{benchmark.command}`", "", describe(benchmark), "", LEGEND]
    return "\n".join(lines) + "\n"


def describe(benchmark: Benchmark) -> str:
    """Describe machine and versions in one sentence."""
    return f"{describe_machine_line(benchmark.machine)}; {benchmark.started}"


def describe_machine_line(machine: Mapping[str, Any]) -> str:
    """Format the result of `describe_machine` in one line."""
    packages = ", ".join(f"{name} {version}" for name, version in machine.get("packages", {}).items())
    gpus = f", {', '.join(machine['gpus'])}" if machine.get("gpus") else ""
    gpus += "".join(f", {name} {version}" for name, version in machine.get("cuda", {}).items())
    return (
        f"{machine.get('cpu')}, {machine.get('cores')} cores, {machine.get('threads')} threads, "
        f"{machine.get('memory_gb')} GiB{gpus}; Python {machine.get('python')}, {packages}; "
        f"{machine.get('compiler') or 'no C++ compiler'}"
    )


LEGEND = (
    "cold: from the built model to the end of the first whole step in a fresh process with empty caches, with the "
    "import of the compiler, `compile()` and the step itself; warm: the same again with the caches kept; step: median, "
    "contenders taking turns in one process; ±: half the distance between the quartiles; of limit: the least time in "
    "which this machine computes the step's products and moves its parameters, by the step; peak: resident memory of a "
    f"fresh process; error: the worst tensor's error against float64 as a multiple of eager's own (up to {FACTOR:.0f}x "
    "is accepted)."
)
