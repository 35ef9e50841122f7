"""Runs in the parent process: starts a child for the copy and one for each problem; prints a table, writes JSON."""

from __future__ import annotations

import datetime
import json
import math
import re
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from smelt.base.errors import OptionError, SmeltError, unknown_name
from smelt.bench.bandwidth.measure import DTYPES
from smelt.bench.bandwidth.problems import PROBLEMS
from smelt.bench.machine import describe_machine
from smelt.bench.processes.process import Failure, Limits, Server, cache_environment
from smelt.bench.reading import file_to_resume, read_dataclass, write_dataclass
from smelt.bench.results import Spread
from smelt.bench.tables import describe_machine_line

LIMIT_S = 300.0
"""Default of the maximum number of seconds that one problem may take."""


@dataclass(frozen=True)
class Run:
    """The settings of a run.

    Args:
        device, contenders, dtype: the device, contenders and name of the dtype of every problem.
        only: a regular expression, searched in the problems' names: the problems that match are run.
        command: the command line, kept with the figures.
        seconds: maximum duration of the run. An unfinished problem is left for `resume`.
        limit: maximum number of seconds that one problem may take.
        json_file: path of the file with the figures, rewritten after every problem.
        resume: continue the run in `json_file`.
    """

    device: str
    contenders: tuple[str, ...]
    dtype: str = "bf16"
    only: str = ""
    command: str = ""
    seconds: float | None = None
    json_file: Path | None = None
    resume: bool = False
    limit: float = LIMIT_S


@dataclass
class Figure:
    """The figures of one contender on one problem: the spread of its seconds and the share of the copy's speed, or the
    error.
    """

    time: Spread | None = None
    share: float | None = None
    error: str | None = None


@dataclass
class Measured:
    """The figures of one problem: number of bytes that must move, and a Figure by contender."""

    name: str
    moved: int
    figures: dict[str, Figure] = field(default_factory=dict)


@dataclass
class Bandwidth:
    """The results of a whole run. `copy_bytes_s` counts bytes read and bytes written."""

    command: str
    machine: dict[str, Any]
    started: str
    device: str
    dtype: str
    copy_bytes_s: float
    problems: list[Measured] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> Bandwidth:
        """Read the file of a run.

        Raises:
            SmeltError: the file cannot be read, or is not the file of such a run.
        """
        try:
            return read_dataclass(cls, json.loads(path.read_text(encoding="utf-8")), "the run")
        except (OSError, ValueError) as error:
            hint = "give a file that `smelt bench bandwidth --json FILE` wrote"
            raise SmeltError(f"{path} holds no bandwidths", why=str(error), hint=hint) from None


def run_bandwidth(run: Run, console: Console) -> Bandwidth:
    """Measure all selected problems; prints and saves each when it ends.

    Raises:
        OptionError: the dtype is unknown; the pattern is no regular expression or matches no problem; the JSON file
            exists and is not to be resumed, or is of another device or dtype.
        SmeltError: the copy cannot be measured.
    """
    names = choose(run)
    path = file_to_resume(run.json_file, run.resume)
    deadline = None if run.seconds is None else time.monotonic() + run.seconds
    with Server() as server, tempfile.TemporaryDirectory(prefix="smelt-bench-") as folder:
        environment = cache_environment(Path(folder), run.contenders)
        found = start(run, server, environment) if path is None else resumed(run, path)
        console.print(f"a copy on {run.device}: {found.copy_bytes_s / 1e9:.0f} GB/s", highlight=False)
        save(found, run)
        left = [name for name in names if name not in {problem.name for problem in found.problems}]
        while left:
            rest = math.inf if deadline is None else deadline - time.monotonic()
            if rest <= 0:
                break
            task = {"task": "bandwidth", "problem": left[0], "dtype": run.dtype, "device": run.device}
            value = server.run(task | {"contenders": run.contenders}, environment, Limits(min(run.limit, rest)))
            if isinstance(value, Failure) and value.status == "timeout" and rest < run.limit:
                break  # the run's time limit caused the failure
            found.problems.append(read_problem(left.pop(0), value, found.copy_bytes_s, run.contenders))
            console.print(one_line(found.problems[-1]), highlight=False, markup=False, soft_wrap=True)
            save(found, run)
    console.print(bandwidth_table(found))
    if left:
        console.print(f"out of time before: {'; '.join(left)}", highlight=False, markup=False)
    console.print(f"{describe_machine_line(found.machine)}; {found.started}", style="dim", highlight=False)
    return found


def save(found: Bandwidth, run: Run) -> None:
    """Write the present results to the run's file, if it has one."""
    if run.json_file is not None:
        write_dataclass(found, run.json_file)


def choose(run: Run) -> list[str]:
    """Returns the names of the problems that `run` selects."""
    if run.dtype not in DTYPES:
        raise unknown_name("dtype", run.dtype, DTYPES)
    try:
        names = [name for name in PROBLEMS if re.search(run.only, name)]
    except re.error as error:
        raise OptionError(f"--only {run.only!r} is not a regular expression: {error}") from None
    if not names:
        raise OptionError(f"no problem has {run.only!r} in its name", hint=", ".join(PROBLEMS))
    return names


def start(run: Run, server: Server, environment: dict[str, str]) -> Bandwidth:
    """Start a new run: measure the speed of the copy; no problems are measured yet."""
    value = server.run({"task": "copy_speed", "device": run.device}, environment, Limits(LIMIT_S))
    if isinstance(value, Failure):
        raise SmeltError(f"a copy on {run.device} cannot be measured", why=value.error)
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    return Bandwidth(run.command, describe_machine(), today, run.device, run.dtype, value["bytes_s"])


def resumed(run: Run, path: Path) -> Bandwidth:
    """Returns the saved run in `path`, to which `run` adds problems."""
    found = Bandwidth.load(path)
    if (found.device, found.dtype) != (run.device, run.dtype):
        raise OptionError(f"{path} is of {found.dtype} on {found.device}", hint="name another file")
    return found


def read_problem(
    name: str, value: dict[str, Any] | Failure, copy_bytes_s: float, contenders: tuple[str, ...]
) -> Measured:
    """Convert the answer of a problem's process to its figures."""
    if isinstance(value, Failure):
        return Measured(name, 0, {contender: Figure(error=value.error) for contender in contenders})
    measured = Measured(name, value["moved"])
    for contender, one in value["contenders"].items():
        figure = measured.figures[contender] = Figure(error=one["error"])
        if one.get("seconds"):
            figure.time = Spread.of(one["seconds"])
            figure.share = measured.moved / figure.time.median / copy_bytes_s
    return measured


def one_line(problem: Measured) -> str:
    """Format one problem as a line of a log."""
    return f"{problem.name}: {', '.join(f'{who} {_cell(figure)}' for who, figure in problem.figures.items())}"


def bandwidth_table(found: Bandwidth) -> Table:
    """Make the table of all problems with each contender's share of the copy's speed."""
    names = list(dict.fromkeys(name for problem in found.problems for name in problem.figures))
    title = f"{found.dtype} on {found.device}: ms (share of a copy's {found.copy_bytes_s / 1e9:.0f} GB/s)"
    table = Table("problem", "MB", *names, box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for problem in found.problems:
        cells = (_cell(problem.figures[name]) if name in problem.figures else "" for name in names)
        table.add_row(problem.name, f"{problem.moved / 1e6:.0f}", *cells)
    return table


def _cell(figure: Figure) -> str:
    if figure.time is None or figure.share is None:
        return f"failed: {' '.join((figure.error or '').split())[:200]}"
    wrong = f" WRONG: {figure.error[:200]}" if figure.error else ""
    return f"{figure.time.median * 1e3:.3f} ({figure.share:.0%}){wrong}"
