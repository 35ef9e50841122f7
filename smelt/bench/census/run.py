"""Runs a census: architectures in forked processes with limits; shows each row and rewrites a JSON file after it."""

from __future__ import annotations

import datetime
import importlib.metadata
import random
import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from smelt.base.errors import OptionError
from smelt.bench.census.libraries import LIBRARIES, find_library
from smelt.bench.census.report import one_line, summary
from smelt.bench.census.results import Census, Outcome, Row
from smelt.bench.machine import describe_machine, usable_cores
from smelt.bench.processes.process import Failure, Limits, cache_environment
from smelt.bench.processes.server import COMPILER
from smelt.bench.processes.servers import Servers
from smelt.bench.processes.workers import Workers, ended_by_sigterm
from smelt.bench.reading import file_to_resume, read_dataclass


@dataclass(frozen=True)
class Run:
    """The settings of a census.

    Args:
        only: a regular expression, searched in the architectures' names: those that match are taken.
        sample: number of them to take, spread evenly over the list; None: all.
        jobs: number of architectures that are examined at the same time. Each gets an equal share of the cores.
        command: the command line, kept with the results.
        json_file: path of the file with the results, rewritten after every row.
        resume: continue the run in `json_file`.
    """

    library: str
    only: str = ""
    sample: int | None = None
    jobs: int = 1
    limits: Limits = Limits(300.0)
    command: str = ""
    json_file: Path | None = None
    resume: bool = False


def run_census(run: Run, console: Console) -> Census:
    """Examine all selected architectures; shows and saves each row. Ctrl-C and SIGTERM end the run and keep its rows.

    Raises:
        OptionError: the library is unknown; the pattern is no regular expression or matches nothing; the JSON file
            exists and is not to be resumed, or is of another library.
        SmeltError: the library's package is not installed.
    """
    names = choose(find_library(run.library).names(), run)
    census = start_census(run)
    have = {row.name for row in census.rows}
    todo = [name for name in names if name not in have]
    order = {name: index for index, name in enumerate(names)}

    def keep(row: Row) -> None:
        census.rows.append(row)
        census.rows.sort(key=lambda each: order.get(each.name, len(order)))
        console.print(f"{len(census.rows)}/{len(names)} {one_line(row)}", markup=False, highlight=False, soft_wrap=True)
        if run.json_file is not None:
            census.save(run.json_file)

    threads = max(1, usable_cores() // run.jobs) if run.jobs > 1 else None
    with ended_by_sigterm(), tempfile.TemporaryDirectory(prefix="smelt-census-") as folder:
        environment = cache_environment(Path(folder), ["smelt"])

        def examine(name: str, server: Servers) -> Row:
            return examine_row(run.library, name, server, environment, run.limits)

        workers = Workers(run.jobs, [*LIBRARIES[run.library].needs, COMPILER], threads, examine, keep)
        if not workers.work(todo):
            console.print(f"interrupted after {len(census.rows)} of {len(names)} architectures", highlight=False)
            if run.json_file is not None:
                console.print(f"go on with: {census.command} --resume", highlight=False)
    console.print(summary(census), markup=False, highlight=False)
    return census


def examine_row(library: str, name: str, server: Servers, environment: dict[str, str], limits: Limits) -> Row:
    """Examine one architecture in a separate process; returns its row."""
    began = time.monotonic()
    found = server.run({"task": "census", "library": library, "architecture": name}, environment, limits)
    seconds = round(time.monotonic() - began, 2)
    if isinstance(found, Failure):
        # A failure while eager builds or runs the model is not one of capture.
        in_eager = found.phase == "eager" or found.status == "eager_fails"
        status = "eager_fails" if in_eager else "timeout" if found.status == "timeout" else "error"
        return Row(name, seconds=seconds, failure=status, error=found.error)
    modes = {mode: read_dataclass(Outcome, outcome, f"{name}, {mode}") for mode, outcome in found["modes"].items()}
    return Row(name, found["kind"], found["shape"], seconds, modes)


def choose(names: Sequence[str], run: Run) -> list[str]:
    """Returns the names that `run` selects.

    Raises:
        OptionError: the pattern is no regular expression or matches nothing, or the sample is less than one.
    """
    try:
        pattern = re.compile(run.only)
    except re.error as error:
        raise OptionError(f"--only {run.only!r} is not a regular expression: {error}") from None
    found = [name for name in names if pattern.search(name)]
    if not found:
        raise OptionError(f"{run.library} has no architecture with {run.only!r} in its name")
    if run.sample is None or run.sample >= len(found):
        return found
    if run.sample < 1:
        raise OptionError(f"--sample {run.sample} takes no architecture at all", hint="--sample 100")
    # The sample is spread evenly, because neighbours in the list are variants of each other; it is always the same one.
    step = len(found) / run.sample
    offset = random.Random(0).random() * step
    return [found[int(offset + index * step)] for index in range(run.sample)]


def start_census(run: Run) -> Census:
    """Returns an empty census, or the saved census that is resumed.

    Raises:
        OptionError: see `run_census`.
    """
    packages = LIBRARIES[run.library].needs
    version = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    census = Census(run.library, version, run.command, today, describe_machine())
    path = file_to_resume(run.json_file, run.resume)
    if path is None:
        return census
    old = Census.load(path)
    if (old.library, old.version) != (census.library, census.version):
        raise OptionError(f"{run.json_file} holds a census of {old.version}", hint="name another file")
    old.command = run.command.replace(" --resume", "")
    return old
