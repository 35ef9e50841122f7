"""`smelt demo`: races the tasks with live progress, prints a table, writes the report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from torch import nn

from smelt.bench.contenders import load_compiler
from smelt.bench.machine import describe_machine
from smelt.demo.race import Compile, Runner, race
from smelt.demo.report import HEADS, Part, summary_rows, verdict, write_report
from smelt.demo.tasks import Task, find_task


def compile_model(model: nn.Module) -> Any:
    """Compile a model by `smelt.compile`, the one line of code that the demo demonstrates."""
    return load_compiler().compile(model)


def run_demo(
    *, seconds: float, out: Path, parts: Sequence[str], console: Console, compile: Compile = compile_model
) -> Path:
    """Run each training for about `seconds`, show both sides while they run, and return the report's path."""
    finished: list[Part] = []
    for name in parts:
        console.print(f"loading {name} ...", style="dim")
        finished.append(run_part(find_task(name), seconds, console, compile))
    for part in finished:
        console.print(summary_table(part), f"[bold]{verdict(part)}[/]\n", highlight=False)
    file = write_report(out, finished, describe_machine())
    console.print(f"report: ./{file}" if not file.is_absolute() else f"report: {file}", highlight=False, soft_wrap=True)
    return file


def run_part(task: Task, seconds: float, console: Console, compile: Compile) -> Part:
    """Race one task under a live display."""
    begin = time.perf_counter()
    with Live(console=console, refresh_per_second=4) as live:

        def show(runners: list[Runner]) -> None:
            live.update(progress(task, runners, time.perf_counter() - begin, seconds))

        runners = race(task, compile, seconds, show)
    if not console.is_terminal:
        console.print()
    sample = ""
    if task.sample is not None:
        model = next(runner.model for runner in runners if runner.name == "smelt").eval()
        with torch.no_grad():
            sample = task.sample(model)
    return Part(task.title, task.score_name, runners, sample)


def progress(task: Task, runners: Sequence[Runner], elapsed: float, seconds: float) -> Group:
    """Title, progress bar, and one line for each side: step, loss, steps per second, first step."""
    table = Table("", "step", "loss", "steps/s", "first step s", box=box.SIMPLE_HEAD)
    for runner in sorted(runners, key=lambda runner: runner.name):
        table.add_row(
            runner.name,
            str(len(runner.losses)),
            f"{runner.losses[-1]:.4f}",
            f"{1 / runner.median_s:.2f}",
            f"{runner.first_s:.2f}",
        )
    return Group(f"[bold]{task.title}[/]", ProgressBar(total=seconds, completed=min(elapsed, seconds)), table)


def summary_table(part: Part) -> Table:
    """A table of the finished training with a row for each side."""
    table = Table(*HEADS[:-1], part.score_name, title=part.title, title_justify="left", box=box.SIMPLE_HEAD)
    for row in summary_rows(part):
        table.add_row(*row)
    return table
