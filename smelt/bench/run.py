"""A whole benchmark run: rows in fresh processes, a live table, and a JSON file that is always complete so far."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import queue
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
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
from smelt.bench.results import Benchmark, Row, setting_of
from smelt.bench.tables import LEGEND, describe, failures, totals
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
    with _ended_by_sigterm(), LiveTable(benchmark, settings, len(run.workloads), console) as table:
        workers = _Workers(run, settings, benchmark, table, measure or measure_row)
        if not workers.work(todo):
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
    if run.json_file is None:
        if run.resume:
            raise OptionError("--resume goes on with a file of results, and none is named", hint="--json FILE")
        return benchmark
    if not run.json_file.exists():
        if not run.json_file.resolve().parent.is_dir():
            raise OptionError(f"{run.json_file}: there is no such folder", hint="make it, or name another file")
        return benchmark
    if not run.resume:
        raise OptionError(f"{run.json_file} exists already", hint="--resume goes on with it; or name another file")
    old = Benchmark.load(run.json_file)
    for row in old.rows:
        if setting_of(row) != setting_of(settings) or set(row.results) != set(run.contenders):
            raise OptionError(
                f"{run.json_file} holds results of other settings ({row.model})",
                hint="repeat the command that made it, or name another file",
            )
    old.command = run.command.replace(" --resume", "")
    return old


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does (which a shell switches off for what it starts in the background)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Workers:
    """Threads that each measure one row after the other, with a server of their own."""

    def __init__(self, run: Run, settings: Settings, benchmark: Benchmark, table: LiveTable, measure: Measure) -> None:
        self.run, self.settings, self.benchmark, self.table, self.measure = run, settings, benchmark, table, measure
        self._order = {(w.suite, w.name): index for index, w in enumerate(run.workloads)}
        self._todo: queue.SimpleQueue[Workload] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        packages = [package for workload in run.workloads for package in workload.needs]
        self._servers = [Server(packages, settings.threads) for _ in range(run.jobs)]

    def work(self, todo: Sequence[Workload]) -> bool:
        """Measure these; False if Ctrl-C ended it early. What a row was doing then is lost, finished rows are not."""
        for workload in todo:
            self._todo.put(workload)
        threads = [threading.Thread(target=self._rows, args=(server,), daemon=True) for server in self._servers]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
        except KeyboardInterrupt:
            return False
        finally:
            self._stop.set()
            for server in self._servers:
                server.close()
        for error in self._errors:
            if not isinstance(error, KeyboardInterrupt):
                raise error
        return not self._errors

    def _rows(self, server: Server) -> None:
        while not self._stop.is_set():
            try:
                workload = self._todo.get_nowait()
            except queue.Empty:
                return
            try:
                row = self.measure(workload, self.settings, self.run.contenders, self.run.plan, self.table.show, server)
            except BaseException as error:  # a bug of the bench itself: the run ends with it
                self._errors.append(error)
                self._stop.set()
                return
            if self._stop.is_set():
                return  # it was cut short
            self._keep(row)

    def _keep(self, row: Row) -> None:
        with self._lock:
            self.benchmark.rows.append(row)
            self.benchmark.rows.sort(key=lambda each: self._order[each.suite, each.model])
            self.table.finished(row)
            if self.run.json_file is not None:
                self.benchmark.save(self.run.json_file)


def physical_memory_mb() -> float:
    """Memory of the machine in MiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20


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
