"""`smelt bench`: measure models, the cost of a call, and print saved results."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from smelt.base.errors import SmeltError
from smelt.cli.groups import DefaultGroup

bench = typer.Typer(
    cls=DefaultGroup,
    help="Measure eager, torch.compile and smelt side by side: `smelt bench MODEL...`, `overhead`, `report FILE...`.",
    no_args_is_help=True,
)


@bench.command()
def run(
    models: Annotated[list[str], typer.Argument(help="bert, gpt2, resnet50, vit, tiny-mlp, tiny-conv, tiny-bert")],
    train: Annotated[bool, typer.Option("--train/--infer", help="Whole training steps, or forward passes.")] = True,
    precision: Annotated[str, typer.Option(help="fp32, or amp (bfloat16 autocast).")] = "fp32",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    rivals: Annotated[str, typer.Option(help="Who runs beside smelt, by commas.")] = "eager,torch.compile",
    contender: Annotated[str, typer.Option(help="Who is judged: smelt, or smelt:BACKEND.")] = "smelt",
    mode: Annotated[str | None, typer.Option(help="The compilers' mode, such as max-autotune.")] = None,
    dynamic: Annotated[bool | None, typer.Option("--dynamic/--static", help="Symbolic or fixed shapes.")] = None,
    cold: Annotated[bool, typer.Option("--cold/--no-cold", help="Measure cold and warm starts too.")] = True,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Compare with float64 eager.")] = True,
    steps: Annotated[int, typer.Option(min=2, help="Timed steps of each contender.")] = 15,
    timeout: Annotated[float, typer.Option(help="Limit of one measuring process, in seconds.")] = 1800.0,
    json: Annotated[Path | None, typer.Option(help="Where to keep the results.")] = None,
) -> None:
    """Cold start, interleaved steps, memory and accuracy of each model."""
    from smelt.bench.contenders import find_contender
    from smelt.bench.measure import Plan
    from smelt.bench.run import run_benchmark
    from smelt.bench.workload import Settings
    from smelt.bench.workloads import WORKLOADS, find_workload

    console = Console()
    with complaints():
        contenders = [*filter(None, (name.strip() for name in rivals.split(","))), contender]
        for name in contenders:
            find_contender(name)
        for name in models:
            if name not in WORKLOADS:
                find_workload(name)
        settings = Settings(train=train, precision=precision, device=device, mode=mode, dynamic=dynamic)
        plan = Plan(rounds=steps, cold=cold, check=check, timeout_s=timeout)
        workloads = [WORKLOADS[name] for name in models]
        benchmark = run_benchmark(workloads, settings, list(dict.fromkeys(contenders)), plan, command(), console, json)
    judged = [row.results[contender] for row in benchmark.rows]
    if len(judged) < len(models) or any(result.status not in ("pass", "skipped") for result in judged):
        raise typer.Exit(1)


@bench.command()
def overhead(
    rivals: Annotated[str, typer.Option(help="Who runs beside smelt, by commas.")] = "eager,torch.compile",
    guards: Annotated[bool, typer.Option("--guards/--no-guards", help="Also the guards of BERT-base.")] = True,
    json: Annotated[Path | None, typer.Option(help="Where to keep the figures.")] = None,
) -> None:
    """Microseconds of a compiled `x + 1`, and of BERT-base's guards."""
    from smelt.bench.run import run_overhead

    with complaints():
        names = [*filter(None, (name.strip() for name in rivals.split(","))), "smelt"]
        run_overhead(names, guards, command(), Console(), json)


@bench.command()
def report(
    files: Annotated[list[Path], typer.Argument(help="Files that --json wrote.")],
    out: Annotated[Path | None, typer.Option(help="Write report.md and index.html, over all files, here.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Two files, OLD NEW: what changed, worse first.")] = False,
    contender: Annotated[str | None, typer.Option(help="Whose changes --compare lists (default: smelt).")] = None,
) -> None:
    """Print saved results as Markdown, compare two runs, or write a report with plots."""
    from smelt.bench.report.compare import compare as compare_runs
    from smelt.bench.report.markdown import comparison_markdown
    from smelt.bench.report.sections import headline
    from smelt.bench.report.summary import merge
    from smelt.bench.report.write import write_report
    from smelt.bench.results import Benchmark
    from smelt.bench.tables import markdown

    if compare and len(files) != 2:
        raise typer.BadParameter("--compare takes two files, OLD NEW")
    with complaints():
        runs = [Benchmark.load(file) for file in files]
        comparison = compare_runs(runs[0], runs[1], contender) if compare else None
        if comparison is not None:
            typer.echo(comparison_markdown(comparison))
        elif out is None:
            typer.echo("\n".join(map(markdown, runs)))
        if out is not None:
            shown = runs[-1:] if compare else runs
            paths = write_report(out, shown, comparison)
            typer.echo("\n".join([*headline(merge(shown)[0]), f"written: {', '.join(map(str, paths))}"]))


def command() -> str:
    """The command line as the user would type it again."""
    return shlex.join(["smelt", *sys.argv[1:]])


@contextmanager
def complaints() -> Iterator[None]:
    """Turn an error of the user's making into a message and exit code 2."""
    try:
        yield
    except SmeltError as error:
        Console(stderr=True).print(str(error), style="red", markup=False, highlight=False)
        raise typer.Exit(2) from None
