"""A whole benchmark run: rows one after the other, a live table, and a JSON file that is always complete so far."""

from __future__ import annotations

import datetime
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from smelt.bench.machine import describe_machine
from smelt.bench.measure import Plan, measure_row
from smelt.bench.process import Failure, cache_environment, run_task
from smelt.bench.results import Benchmark, Row
from smelt.bench.tables import LEGEND, describe, failures, results_table
from smelt.bench.workload import Settings, Workload


def run_benchmark(
    workloads: Sequence[Workload],
    settings: Settings,
    contenders: Sequence[str],
    plan: Plan,
    command: str,
    console: Console,
    json_file: Path | None = None,
) -> Benchmark:
    """Measure every workload, showing and saving each row as it ends. Ctrl-C ends the run and keeps its rows."""
    started = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    benchmark = Benchmark(command, describe_machine(), started)
    title = f"{'training' if settings.train else 'inference'}, {settings.precision}, {settings.device}"
    try:
        with Live(results_table([], title), console=console, refresh_per_second=2) as live:

            def show(row: Row, contender: str, phase: str) -> None:
                busy = (row.model, contender, phase)
                live.update(results_table([*benchmark.rows, row], title, busy))

            for workload in workloads:
                benchmark.rows.append(measure_row(workload, settings, contenders, plan, show))
                live.update(results_table(benchmark.rows, title))
                if json_file is not None:
                    benchmark.save(json_file)
    except KeyboardInterrupt:
        console.print(f"interrupted after {len(benchmark.rows)} of {len(workloads)} models")
    for line in failures(benchmark.rows):
        console.print(f"[red]{line}[/]", highlight=False)
    console.print(describe(benchmark), LEGEND, sep="\n", style="dim", highlight=False)
    return benchmark


def run_overhead(
    contenders: Sequence[str], guards: bool, command: str, console: Console, json_file: Path | None = None
) -> dict[str, dict[str, float]]:
    """Measure each contender in a process of its own, print a table, keep the seconds in `json_file`."""
    found: dict[str, dict[str, float]] = {}
    failed: list[str] = []
    table = Table(
        "contender",
        "x + 1, us",
        "x + 1, empty graph, us",
        "BERT-base, empty graph, us",
        "its guards, us",
        box=box.SIMPLE_HEAD,
    )
    for name in contenders:
        with tempfile.TemporaryDirectory(prefix="smelt-bench-caches-") as folder:
            task = {"task": "overhead", "contender": name, "guards": guards and name != "eager"}
            value = run_task(task, cache_environment(Path(folder), [name]), timeout_s=900.0)
        if isinstance(value, Failure):
            failed.append(f"{name}: {value.status}: {value.error}")
            continue
        found[name] = value
        seconds = [value.get(key) for key in ("call_s", "empty_call_s", "empty_model_s", "guards_s")]
        table.add_row(name, *("" if s is None else f"{s * 1e6:.1f}" for s in seconds))
    console.print(table)
    for line in failed:
        console.print(line, style="red", markup=False, highlight=False)
    if json_file is not None:
        run = {"command": command, "machine": describe_machine(), "overhead": found}
        json_file.write_text(json.dumps(run, indent=1) + "\n")
    return found
