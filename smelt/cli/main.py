"""The `smelt` command. Each subcommand lives in its own module and is loaded when it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from smelt.base.text import visible
from smelt.cli.bench import bench, user_errors
from smelt.cli.cache import cache
from smelt.cli.census import census
from smelt.cli.outputs import output_file, output_folder, page_file
from smelt.cli.tiny import tiny

app = typer.Typer(
    name="smelt",
    help="A compiler for PyTorch programs: check the installation, see it at work, measure it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(bench, name="bench")
app.command()(census)
app.add_typer(cache, name="cache")
app.add_typer(tiny, name="tiny")


@app.command()
def verify() -> None:
    """Check this installation: versions, compiler, OpenMP, extensions, cache, one compiled function on each target."""
    from smelt.cli.verify import run_checks, show_checks

    checks = run_checks()
    show_checks(checks, Console())
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)


SCRIPT_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
"""Settings of a command that runs a script: arguments after the script are passed to the script."""

Script = Annotated[
    str, typer.Argument(help="A Python file, or - for standard input; with -m a module. Its arguments follow.")
]
AsModule = Annotated[bool, typer.Option("-m", help="Run a module, as `python -m` does.")]


def _expect_script(script: str, module: bool) -> None:
    """Raise an error if the script does not exist; a folder with a `__main__.py` is a script, as for Python."""
    if module or script == "-":
        return
    if not Path(script).is_file() and not (Path(script) / "__main__.py").is_file():
        raise typer.BadParameter(f"there is no file {script}", param_hint="SCRIPT")


@app.command(context_settings=SCRIPT_ARGUMENTS)
def run(
    context: typer.Context,
    script: Script,
    module: AsModule = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No summary at the end.")] = False,
    saved: Annotated[
        bool, typer.Option("--saved", help="Run it again in eager, all it does too, and tell the time saved.")
    ] = False,
) -> None:
    """Run a script with its torch.compile calls compiled by smelt; a summary of what was compiled is printed to stderr
    at the end.
    """
    from smelt.cli.run import run_script

    _expect_script(script, module)
    raise typer.Exit(run_script(script, context.args, module, quiet, saved))


@app.command(context_settings=SCRIPT_ARGUMENTS)
def explain(
    context: typer.Context,
    script: Script,
    module: AsModule = False,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page for a browser instead.", callback=page_file)
    ] = None,
    perf: Annotated[
        bool, typer.Option("--perf", help="Time each kernel, and compare it with what this machine can do at most.")
    ] = False,
    ranks: Annotated[
        Path | None,
        typer.Option(
            "--ranks", help="Write a report of each rank to this folder, for `smelt ranks`.", callback=output_folder
        ),
    ] = None,
) -> None:
    """Run a script as `smelt run` does; at its end, tell of each compiled frame: graphs, breaks, guards, recompiles."""
    from smelt.cli.explain import explain_script

    _expect_script(script, module)
    if ranks is not None and (html is not None or perf):
        raise typer.BadParameter("a report of ranks is no page and no table of kernels", param_hint="--ranks")
    raise typer.Exit(explain_script(script, context.args, module, html, perf, ranks))


@app.command()
def ranks(
    folder: Annotated[
        Path, typer.Argument(help="The folder of `torchrun ... -m smelt explain --ranks FOLDER SCRIPT`.")
    ],
    rank: Annotated[int | None, typer.Option(help="Print the whole report of this rank instead.")] = None,
) -> None:
    """Compare what the processes of a distributed run have compiled: counters side by side, then what differs."""
    from smelt.cli.ranks import merged, read_reports

    with user_errors():
        reports = read_reports(folder)
        chosen = [report for report in reports if rank is None or report.rank == rank]
        if not chosen:
            raise typer.BadParameter(f"{folder} has no report of rank {rank}", param_hint="--rank")
        print(visible(merged(reports) if rank is None else chosen[0].text))


@app.command(context_settings=SCRIPT_ARGUMENTS)
def check(
    context: typer.Context,
    script: Script,
    module: AsModule = False,
) -> None:
    """Run a script beside eager: the first tensor that differs beyond rounding ends it (exit status 3)."""
    from smelt.debug.check import check_script

    _expect_script(script, module)
    raise typer.Exit(check_script(script, context.args, module))


@app.command()
def repro(
    report: Annotated[Path, typer.Argument(help="The folder that the warning of a failure names, or its repro.py.")],
) -> None:
    """Run the graph of a report again: exit status 1 if it still fails, 0 if not."""
    from smelt.debug.repro import main

    raise typer.Exit(main(str(report)))


@app.command()
def minify(
    report: Annotated[Path, typer.Argument(help="The folder that the warning of a failure names, or its repro.py.")],
    out: Annotated[
        Path | None, typer.Option(help="The smaller script (default: minified.py beside it).", callback=output_file)
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="How long to go on.")] = 300.0,
) -> None:
    """Reduce the graph of a report to a small one that fails in the same way."""
    from smelt.debug.minify import main

    raise typer.Exit(main(report, out, seconds))


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=0.0, help="Training time of each of the two parts, in seconds.")] = 90.0,
    out: Annotated[Path, typer.Option(help="Folder of the report.", callback=output_folder)] = Path("smelt_report"),
    part: Annotated[list[str] | None, typer.Option(help="text or digits; may be repeated. Default: both.")] = None,
) -> None:
    """Train a GPT-2 on source text and a ResNet on handwritten digits, eager and compiled side by side."""
    from smelt.demo.run import run_demo

    with user_errors():
        run_demo(seconds=seconds, out=out, parts=part or ["text", "digits"], console=Console())


@app.command()
def ops(
    aten: Annotated[
        bool, typer.Option("--aten", help="Canonical ATen instead, which primitives are made from.")
    ] = False,
    status: Annotated[
        str | None, typer.Option(help="Only these: prim, decomposed, extern kernel or eager fallback.")
    ] = None,
    write: Annotated[
        Path | None, typer.Option(help="Write both sets to this file (docs/operators.md).", callback=output_file)
    ] = None,
) -> None:
    """List the primitive operators that every captured graph is reduced to, and how each runs."""
    from smelt.cli.operators import STATUSES
    from smelt.cli.ops import show_ops, write_ops

    if status is not None and status not in STATUSES:
        raise typer.BadParameter(f"{status!r} is none of {', '.join(STATUSES)}", param_hint="--status")
    if write is not None:
        with user_errors():
            write_ops(write)
        return
    show_ops(Console(), aten, status)


def main() -> None:
    """Run the `smelt` command of this process's arguments."""
    from smelt.cli.run import end_like_python

    end_like_python(lambda: app(prog_name="smelt"))


if __name__ == "__main__":
    main()
