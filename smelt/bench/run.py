"""A whole benchmark run: rows in fresh processes, a live table, and a JSON file that is always complete so far."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from smelt.base.errors import OptionError
from smelt.bench.live import LiveTable
from smelt.bench.machine import describe_machine, usable_cores
from smelt.bench.measure import Plan, measure_row
from smelt.bench.process import Failure, Server, cache_environment, run_task
from smelt.bench.reading import file_to_resume
from smelt.bench.results import Benchmark, Row, setting_of
from smelt.bench.tables import LEGEND, describe, failures, totals
from smelt.bench.workers import Workers, ended_by_sigterm
from smelt.bench.workload import Settings, Workload

Measure = Callable[..., Row]


@dataclass(frozen=True)
class Run:
    """What a run is made of.

    Args:
        contenders: eager first, the judged one last.
        command: the command line, kept with the results.
        json_file: where the results are kept, rewritten after every row.
        jobs: rows measured at the same time. Each gets an equal share of the cores.
        resume: go on with the rows that `json_file` has.
    """

    workloads: Sequence[Workload]
    settings: Settings
    contenders: Sequence[str]
    plan: Plan
    command: str
    json_file: Path | None = None
    jobs: int = 1
    resume: bool = False


def run_benchmark(run: Run, console: Console, measure: Measure | None = None) -> Benchmark:
    """Measure every workload, showing and saving each row as it ends. Ctrl-C ends the run and keeps its rows.

    Raises:
        OptionError: the JSON file exists and is not to be resumed, or holds rows of other settings.
    """
    settings = run.settings
    if run.jobs > 1:
        settings = dataclasses.replace(settings, threads=max(1, usable_cores() // run.jobs))
    benchmark = start_benchmark(run, settings)
    have = {(row.suite, row.model) for row in benchmark.rows}
    todo = [workload for workload in run.workloads if (workload.suite, workload.name) not in have]
    order = {(workload.suite, workload.name): index for index, workload in enumerate(run.workloads)}
    packages = [package for workload in run.workloads for package in workload.needs]
    with ended_by_sigterm(), LiveTable(benchmark, settings, len(run.workloads), console) as table:
        take = measure or measure_row

        def row_of(workload: Workload, server: Server) -> Row:
            return take(workload, settings, run.contenders, run.plan, table.show, server)

        def keep(row: Row) -> None:
            benchmark.rows.append(row)
            benchmark.rows.sort(key=lambda each: order[each.suite, each.model])
            table.finished(row)
            if run.json_file is not None:
                benchmark.save(run.json_file)

        if not Workers(run.jobs, packages, settings.threads, row_of, keep).work(todo):
            console.print(f"interrupted after {len(benchmark.rows)} of {len(run.workloads)} models", highlight=False)
            if run.json_file is not None:
                console.print(f"go on with: {run.command} --resume", highlight=False)
    for line in failures(benchmark.rows):
        console.print(line, style="red", markup=False, highlight=False)
    if len(benchmark.rows) > 1:
        console.print(totals(benchmark.rows), highlight=False)
    console.print(describe(benchmark), LEGEND, sep="\n", style="dim", highlight=False)
    return benchmark


def start_benchmark(run: Run, settings: Settings) -> Benchmark:
    """An empty benchmark, or the one that is resumed.

    Raises:
        OptionError: see `run_benchmark`.
    """
    started = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    benchmark = Benchmark(run.command, describe_machine(settings.threads), started)
    path = file_to_resume(run.json_file, run.resume)
    if path is None:
        return benchmark
    old = Benchmark.load(path)
    for row in old.rows:
        if setting_of(row) != setting_of(settings) or set(row.results) != set(run.contenders):
            raise OptionError(
                f"{run.json_file} holds results of other settings ({row.model})",
                hint="repeat the command that made it, or name another file",
            )
    old.command = run.command.replace(" --resume", "")
    return old


def physical_memory_mb() -> float:
    """Memory of the machine in MiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20


def _overhead_cells(found: dict[str, float]) -> list[str]:
    """What `overhead` measured, in the order of the table's columns."""

    def shown(key: str) -> str:
        best, median = found.get(f"{key}_s"), found.get(f"{key}_median_s")
        return "" if best is None else f"{best * 1e6:.1f}" + ("" if median is None else f" ({median * 1e6:.1f})")

    def ratio(key: str, eager: str) -> str:
        return f"{found[key] / found[eager]:.2f}" if key in found and found.get(eager) else ""

    return [
        shown("call"), ratio("call_s", "eager_call_s"), shown("empty_call"), shown("empty_model"), shown("guards"),
        shown("empty_blocks"), shown("block_guards"), ratio("block_guards_s", "eager_blocks_s"),
    ]  # fmt: skip


def run_overhead(
    contenders: Sequence[str], guards: bool, command: str, console: Console, json_file: Path | None = None
) -> dict[str, dict[str, float]]:
    """Measure each contender in a process of its own, print a table, keep the seconds in `json_file`."""
    found: dict[str, dict[str, float]] = {}
    failed: list[str] = []
    columns = ["x + 1", "of eager", "x + 1, empty graph", "BERT-base, empty graph", "its guards"]
    columns += ["48 blocks, empty graph", "their guards", "of eager's forward"]
    table = Table("contender", *columns, box=box.SIMPLE_HEAD, title="us a call: the best of many short loops (median)")
    for name in contenders:
        with tempfile.TemporaryDirectory(prefix="smelt-bench-caches-") as folder:
            task = {"task": "overhead", "contender": name, "guards": guards and name != "eager"}
            value = run_task(task, cache_environment(Path(folder), [name]), timeout_s=900.0)
        if isinstance(value, Failure):
            failed.append(f"{name}: {value.status}: {value.error}")
            continue
        found[name] = value
        table.add_row(name, *_overhead_cells(value))
    console.print(table)
    for line in failed:
        console.print(line, style="red", markup=False, highlight=False)
    if json_file is not None:
        run = {"command": command, "machine": describe_machine(), "overhead": found}
        json_file.write_text(json.dumps(run, indent=1) + "\n")
    return found
