"""Runs a whole benchmark: rows in fresh processes, a live table, and a JSON file that is rewritten after each row."""

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
from smelt.bench.measure import Plan, measure_row, selected_contenders
from smelt.bench.processes.process import Failure, cache_environment, run_task
from smelt.bench.processes.servers import Servers
from smelt.bench.processes.workers import Workers, ended_by_sigterm
from smelt.bench.reading import file_to_resume
from smelt.bench.results import Benchmark, Row, setting_of
from smelt.bench.tables import LEGEND, describe, failures, totals
from smelt.bench.workload import Settings, Workload

Measure = Callable[..., Row]


@dataclass(frozen=True)
class Run:
    """The settings of a run.

    Args:
        contenders: names of the contenders: eager first, the judged one last.
        command: the command line, kept with the results.
        json_file: path of the file with the results, rewritten after every row.
        jobs: number of rows that are measured at the same time. Each gets an equal share of the cores; steps are timed
            one row at a time. Rows that run out of memory because of the others are measured a second time at the end,
            one by one.
        resume: continue the run in `json_file`.
        explicit: names of the settings that override a workload's own defaults.
        seconds: maximum duration of the run, which keeps its complete rows.
    """

    workloads: Sequence[Workload]
    settings: Settings
    contenders: Sequence[str]
    plan: Plan
    command: str
    json_file: Path | None = None
    jobs: int = 1
    resume: bool = False
    explicit: frozenset[str] = frozenset()
    seconds: float | None = None

    def settings_of(self, workload: Workload) -> Settings:
        """Returns the settings of one row, with the number of threads that it may use."""
        own = {name: value for name, value in workload.defaults.items() if name not in self.explicit}
        threads = max(1, usable_cores() // self.jobs) if self.jobs > 1 else self.settings.threads
        wanted = dataclasses.replace(self.settings, **own, threads=threads)
        unable = workload.why_not(wanted.precision, wanted.device)
        return dataclasses.replace(wanted, precision="fp32") if unable else wanted

    def replaced(self) -> list[str]:
        """Returns the rows that run in fp32 because eager cannot run the requested precision, with the reason."""
        settings = self.settings
        reasons = [(each.key, each.why_not(settings.precision, settings.device)) for each in self.workloads]
        return [f"{key} runs in fp32, since eager fails in {settings.precision}: {why}" for key, why in reasons if why]


def run_benchmark(run: Run, console: Console, measure: Measure | None = None) -> Benchmark:
    """Measure every workload, showing and saving each row when it ends. Ctrl-C ends the run and keeps its rows.

    Raises:
        OptionError: the JSON file exists and is not to be resumed, or contains rows of other settings.
    """
    settings = {workload.key: run.settings_of(workload) for workload in run.workloads}
    benchmark = start_benchmark(run)
    have = {f"{row.suite}/{row.model}" for row in benchmark.rows}
    todo = [workload for workload in run.workloads if workload.key not in have]
    order = [*settings, *(key for key in have if key not in settings)]
    packages = [package for workload in run.workloads for package in workload.needs]
    for line in run.replaced():
        console.print(line, markup=False, highlight=False)
    with ended_by_sigterm(), LiveTable(benchmark, title_of([*settings.values()]), len(order), console) as table:
        take = measure or measure_row

        def row_of(workload: Workload, server: Servers) -> Row:
            return take(workload, settings[workload.key], run.contenders, run.plan, table.show, server)

        def keep(row: Row) -> None:
            benchmark.rows.append(row)
            benchmark.rows.sort(key=lambda each: order.index(f"{each.suite}/{each.model}"))
            table.finished(row)
            if run.json_file is not None:
                benchmark.save(run.json_file)

        threads = next(iter(settings.values())).threads
        lanes, seconds = run.plan.side_by_side, run.seconds
        workers = Workers(run.jobs, packages, threads, row_of, keep, lanes, seconds, Row.out_of_memory)
        if not workers.work(todo):
            console.print(f"interrupted after {len(benchmark.rows)} of {len(order)} models", highlight=False)
            if run.json_file is not None:
                console.print(f"go on with: {benchmark.command} --resume", highlight=False)
    for line in failures(benchmark.rows):
        console.print(line, style="red", markup=False, highlight=False)
    if len(benchmark.rows) > 1:
        console.print(totals(benchmark.rows), highlight=False)
    console.print(describe(benchmark), LEGEND, sep="\n", style="dim", highlight=False)
    return benchmark


def title_of(settings: Sequence[Settings]) -> str:
    """Describe the settings of a run, all values of each, such as `training, amp/tf32, cuda`."""
    shown = (("training" if each.train else "inference", each.precision, each.device) for each in settings)
    return ", ".join("/".join(dict.fromkeys(values)) for values in zip(*shown, strict=True))


def start_benchmark(run: Run) -> Benchmark:
    """Returns an empty benchmark, or the saved benchmark that is resumed.

    Raises:
        OptionError: see `run_benchmark`.
    """
    started = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    threads = {run.settings_of(workload).threads for workload in run.workloads}
    benchmark = Benchmark(run.command, describe_machine(*threads), started)
    path = file_to_resume(run.json_file, run.resume)
    if path is None:
        return benchmark
    old = Benchmark.load(path)
    known = {workload.key: workload for workload in run.workloads}
    for row in old.rows:
        workload = known.get(f"{row.suite}/{row.model}")
        if workload is None:  # the row belongs to another selection of models
            settings, same = run.settings, set(row.results) <= set(run.contenders)
        else:
            settings = run.settings_of(workload)
            same = set(row.results) == set(selected_contenders(workload, settings, run.contenders))
        if not same or setting_of(row) != setting_of(settings):
            raise OptionError(
                f"{run.json_file} holds results of other settings ({row.model})",
                hint="repeat the command that made it, or name another file",
            )
    old.command = run.command.replace(" --resume", "")
    return old


def physical_memory_mb() -> float:
    """Returns the memory of the machine in MiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20


def _overhead_cells(found: dict[str, float]) -> list[str]:
    """Format the figures of `overhead` in the order of the table's columns."""

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
    """Measure each contender in a separate process, print a table, and write the seconds to `json_file`."""
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
