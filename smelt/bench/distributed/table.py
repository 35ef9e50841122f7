"""`smelt bench distributed`: starts the ranks, prints the rows, goals and predictions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from smelt.bench.distributed.communication import Collective, Timeline
from smelt.bench.distributed.ranks import Task
from smelt.bench.distributed.simulation import Cluster, predict
from smelt.bench.machine import describe_machine
from smelt.bench.processes.process import cache_environment, end_session, last_line

SINGLE = "single"
"""The wrapper of one process, with whose steps those of the other wrappers are compared."""

GOALS = (
    ("ddp", "step / one process", "step_s", (SINGLE, "smelt"), 1.03),
    ("ddp", "step / torch.compile's", "step_s", ("ddp", "torch.compile"), 1 / 1.3),
    ("ddp", "first step / one process", "cold_s", (SINGLE, "smelt"), 1.2),
    ("fsdp2", "step / DDP's", "step_s", ("ddp", "smelt"), 1.25),
    ("fsdp2", "step / torch.compile's", "step_s", ("fsdp2", "torch.compile"), 1.0),
    ("fsdp2", "peak memory / eager's", "peak_mb", ("fsdp2", "eager"), 1.0),
)
"""(wrapper of smelt's row, title of the comparison, figure, (wrapper, contender) whose figure is the divisor, maximum
ratio) for each goal.
"""

WIDTH = 110
"""Width of the table in columns of text, even if the output is not a terminal."""

Row = dict[str, dict[str, Any]]
"""The figures of `ranks.measured` by contender, or `failed` with the reason."""


@dataclass(frozen=True)
class Run:
    """The settings of a run.

    Attributes:
        processes: number of ranks on this machine; each has one GPU on `cuda`.
        limit_s: maximum number of seconds that one measurement may take.
    """

    wrappers: tuple[str, ...]
    contenders: tuple[str, ...]
    processes: int
    limit_s: float
    task: Task


def measure(run: Run, wrapper: str, contender: str, folder: Path) -> dict[str, Any]:
    """Make one measurement in fresh processes with empty compiler caches; returns its figures.

    Args:
        folder: directory that keeps the reference parameters of the row between its measurements.
    """
    processes = 1 if wrapper == SINGLE else run.processes
    task = replace(run.task, wrapper=wrapper, contender=contender, reference=str(folder / f"reference-{wrapper}"))
    with tempfile.TemporaryDirectory(prefix="smelt-bench-distributed-") as name:
        task_file, result_file, log_file = (Path(name) / file for file in ("task.json", "result.json", "log.txt"))
        task_file.write_text(json.dumps(asdict(task)))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command += ["-m", "smelt.bench.distributed.ranks", str(task_file), str(result_file)]
        environment = {**os.environ, **cache_environment(Path(name), [contender])}
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
        with log_file.open("w") as log:
            child = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
            try:
                code = child.wait(timeout=run.limit_s)
            except subprocess.TimeoutExpired:
                return {"failed": f"no result within {run.limit_s:g} s; {last_line(log_file)}"}
            finally:
                end_session(child.pid)
                child.wait()
        if code == 0 and result_file.exists():
            found: dict[str, Any] = json.loads(result_file.read_text())
            return found
        errors = sorted(Path(name).glob("result.json.*"), key=lambda file: file.stat().st_mtime_ns)
        return {"failed": errors[0].read_text() if errors else f"exit code {code}; {last_line(log_file)}"}


def run_distributed(run: Run, command: str, console: Console, json_file: Path | None = None) -> dict[str, Row]:
    """Measure each wrapper with each contender; print a table and the goals; write everything to `json_file`.

    Returns:
        Rows by wrapper.
    """
    rows: dict[str, Row] = {}
    with tempfile.TemporaryDirectory(prefix="smelt-bench-distributed-") as folder:
        for wrapper in run.wrappers:
            row = rows[wrapper] = {}
            for contender in run.contenders:
                console.print(f"measuring {wrapper}, {contender}", style="dim", highlight=False)
                row[contender] = measure(run, wrapper, contender, Path(folder))
                if json_file is not None:
                    kept = {"command": command, "machine": describe_machine(), "run": asdict(run), "distributed": rows}
                    json_file.write_text(json.dumps(kept, indent=1) + "\n")
    task = run.task
    title = f"{task.model}, {task.precision}, {task.optimizer}, {run.processes} x {task.device}"
    console.print(table(rows, title), width=max(WIDTH, console.width), crop=False)
    for line in [*failures(rows), *goals(rows)]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return rows


def table(rows: Mapping[str, Row], title: str) -> Table:
    """Make a table with a line for each wrapper and contender."""
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, title=title)
    for head in ("wrapper", "compiled by"):
        shown.add_column(head, no_wrap=True)
    heads = "step ms", "x eager", "x single", "hidden", "MiB", "first s", "graphs", "loss err.", "error"
    for head in heads:
        shown.add_column(head, justify="right", no_wrap=True)
    for wrapper, row in rows.items():
        for contender, found in row.items():
            cells = ["failed"] if "failed" in found else list(figures(rows, wrapper, contender))
            shown.add_row(wrapper if contender == next(iter(row)) else "", contender, *cells)
    return shown


def figures(rows: Mapping[str, Row], wrapper: str, contender: str) -> Iterable[str]:
    """Yields the cells of one measurement; see `table`. Errors are relative to the first contender of the row."""
    found, first = rows[wrapper][contender], next(iter(rows[wrapper].values()))
    yield f"{found['step_s'] * 1e3:.2f}"
    for other in (rows[wrapper].get("eager", {}), rows.get(SINGLE, {}).get(contender, {})):
        yield f"{other['step_s'] / found['step_s']:.2f}" if "step_s" in other else ""
    yield "" if found["hidden"] is None else f"{found['hidden']:.0%}"
    yield f"{found['peak_mb']:.0f}"
    yield f"{found['cold_s']:.2f}"
    yield str(found["counts"].get("graphs", ""))
    if found is first or "failed" in first:
        yield from ("", "")
    else:
        pairs = zip(found["losses"], first["losses"], strict=True)
        yield f"{max(abs(mine - theirs) / max(1.0, abs(theirs)) for mine, theirs in pairs):.1e}"
        yield f"{found['parameter_error']:.1e}"


def failures(rows: Mapping[str, Row]) -> Iterable[str]:
    """Yields a line for each measurement that failed."""
    for wrapper, row in rows.items():
        for contender, found in row.items():
            if "failed" in found:
                yield f"{wrapper}, {contender}: {' '.join(found['failed'].split())[:300]}"


def goals(rows: Mapping[str, Row]) -> Iterable[str]:
    """Yields a line for each goal whose two figures were measured."""
    for wrapper, what, key, (other, contender), most in GOALS:
        above = rows.get(wrapper, {}).get("smelt", {}).get(key)
        below = rows.get(other, {}).get(contender, {}).get(key)
        if above and below:
            verdict = "reached" if above / below <= most else "missed"
            yield f"{wrapper}: {what}: {above / below:.2f} (goal: at most {most:.2f}): {verdict}"


def predictions(rows: Mapping[str, Row], processes: int, gpus: Sequence[int], cluster: Cluster) -> Table:
    """Make a table of predicted steps on more GPUs, for each measurement that has a timeline; see `simulation`."""
    shown = Table(box=box.SIMPLE_HEAD, title="predicted steps in ms (share of waiting for collectives)")
    for head in ("wrapper", "compiled by", *(f"{number} GPUs" for number in gpus)):
        shown.add_column(head)
    for wrapper, row in rows.items():
        for contender, found in row.items():
            if wrapper != SINGLE and found.get("timeline"):
                measured = timeline_of(found["timeline"])
                values = [predict(measured, processes, number, cluster) for number in gpus]
                cells = [f"{value.seconds * 1e3:.1f} ({value.waiting_share:.0%})" for value in values]
                shown.add_row(wrapper, contender, *cells)
    return shown


def timeline_of(values: Mapping[str, Any]) -> Timeline:
    """Make a timeline from its plain values."""
    compute = tuple((begin, end) for begin, end in values["compute"])
    return Timeline(compute, tuple(Collective(**each) for each in values["collectives"]))
