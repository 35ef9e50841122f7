"""`smelt census`: every architecture of a library, captured and compared with eager."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from smelt.cli.bench import command, user_errors
from smelt.cli.outputs import output_file, output_folder


def census(
    library: Annotated[str, typer.Option(help="timm, transformers, or suites (the 163 models of `smelt bench`).")],
    only: Annotated[str, typer.Option(help="Architectures whose name this regular expression finds.")] = "",
    sample: Annotated[int | None, typer.Option(help="So many of them, spread over the list (default: all).")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Architectures at a time, which share the cores.")] = 1,
    timeout: Annotated[float, typer.Option(min=1.0, help="Limit of one architecture, in seconds.")] = 300.0,
    memory: Annotated[float | None, typer.Option(help="Limit of its memory, in GiB (default: the machine's).")] = None,
    json: Annotated[Path | None, typer.Option(help="Where to keep the results.", callback=output_file)] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the rows that the JSON file has.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write a Markdown report into this folder.", callback=output_folder)
    ] = None,
) -> None:
    """Capture every architecture of a library at a small size, in eval and train mode: whole, with breaks, or wrong?"""
    from smelt.bench.census.report import write_census
    from smelt.bench.census.run import Run, run_census
    from smelt.bench.processes.process import Limits
    from smelt.bench.run import physical_memory_mb

    console = Console()
    with user_errors():
        limits = Limits(timeout, memory * 1024 if memory else 0.9 * physical_memory_mb() / jobs)
        found = run_census(Run(library, only, sample, jobs, limits, command(), json, resume), console)
        if out is not None:
            console.print(f"written: {write_census(out, found)}", highlight=False, soft_wrap=True)
    if any(row.status in ("wrong", "error", "timeout") for row in found.rows):
        raise typer.Exit(1)
