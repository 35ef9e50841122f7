"""`smelt bench`: measure models, the cost of a call, and print saved results."""

from __future__ import annotations

import itertools
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from smelt.base.errors import OptionError, SmeltError, unknown_name
from smelt.cli.groups import DefaultGroup
from smelt.cli.outputs import output_file, output_folder

if TYPE_CHECKING:
    from smelt.bench.results import Benchmark

bench = typer.Typer(
    cls=DefaultGroup,
    help="Measure eager, torch.compile and smelt side by side: `bench MODEL...`, `--suite`, `overhead`, `bandwidth`, "
    "`ceilings`, `aot`, `regional`, `distributed`, `report`.",
    no_args_is_help=True,
)


@bench.command()
def run(
    models: Annotated[
        list[str] | None, typer.Argument(help="bert, gpt2, resnet50, vit, or a name that `smelt bench models` lists.")
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help="huggingface, timm, torchbench or all: 163 models; or baselines: 8 for a GPU.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="Of the suite, the models whose SUITE/NAME this finds.")] = None,
    sample: Annotated[int | None, typer.Option(min=1, help="So many models of each suite, drawn by --seed.")] = None,
    seed: Annotated[int, typer.Option(help="What --sample draws by.")] = 0,
    shard: Annotated[str | None, typer.Option(help="I/N: the I-th of N parts of the models, counted from 1.")] = None,
    size: Annotated[
        str | None,
        typer.Option(help="Of a suite's models: cpu (small), or full (as published; default of baselines on cuda)."),
    ] = None,
    train: Annotated[bool, typer.Option("--train/--infer", help="Whole training steps, or forward passes.")] = True,
    precision: Annotated[
        str | None, typer.Option(help="fp32 (default), tf32, or amp (bfloat16 autocast); baselines have their own.")
    ] = None,
    amp: Annotated[bool, typer.Option("--amp", help="The same as --precision amp.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    optimizer: Annotated[
        str | None,
        typer.Option(help="Of a training step: sgd (default), adam, adamw, or none (default of baselines)."),
    ] = None,
    rivals: Annotated[
        str, typer.Option(help="Who runs beside it, by commas, such as torch.compile:reduce-overhead.")
    ] = "eager,torch.compile",
    contender: Annotated[
        str, typer.Option(help="Who is judged: smelt, smelt:step (the whole training step), smelt:MODE, smelt:BACKEND.")
    ] = "smelt",
    mode: Annotated[
        str | None, typer.Option(help="The mode of compilers that name none, such as max-autotune.")
    ] = None,
    dynamic: Annotated[bool | None, typer.Option("--dynamic/--static", help="Symbolic or fixed shapes.")] = None,
    cold: Annotated[
        bool | None, typer.Option("--cold/--no-cold", help="Start again with warm caches (default: not for a suite).")
    ] = None,
    tensors: Annotated[
        bool, typer.Option("--tensors/--no-tensors", help="How much memory the tensors of a step take.")
    ] = False,
    side_by_side: Annotated[
        int, typer.Option(min=1, help="Starts of a row at a time. They disturb each other; the results say so.")
    ] = 1,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Compare with float64 eager.")] = True,
    check_rivals: Annotated[bool, typer.Option("--check-rivals/--trust-rivals", help="Compare the rivals too.")] = True,
    steps: Annotated[int, typer.Option(min=0, help="Timed steps of each contender; 0 only checks.")] = 15,
    timeout: Annotated[float, typer.Option(help="Limit of one measuring process, in seconds.")] = 1800.0,
    seconds: Annotated[float | None, typer.Option(help="End after so many, with the rows that are done.")] = None,
    memory: Annotated[float | None, typer.Option(help="Limit of its memory, in GiB (default: the machine's).")] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Rows at a time, which share the cores; steps are timed one row at a time.")
    ] = 1,
    json: Annotated[Path | None, typer.Option(help="Where to keep the results.", callback=output_file)] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the rows that the JSON file has.")] = False,
) -> None:
    """Measure cold start, interleaved steps, memory and accuracy of each model."""
    from smelt.bench.contenders import find_contender
    from smelt.bench.measure import Plan
    from smelt.bench.meter import check_device
    from smelt.bench.run import Run, physical_memory_mb, run_benchmark
    from smelt.bench.selection import Selection, select
    from smelt.bench.workload import Settings

    console = Console()
    with user_errors():
        names = _contenders(rivals, contender)
        for name in names:
            find_contender(name)
        precision = _precision(precision, amp)
        explicit = {name for name, value in (("precision", precision), ("optimizer", optimizer)) if value is not None}
        check_device(device)
        size = size or _usual_size(suite, device)
        workloads = select(Selection(tuple(models or ()), suite, only, size, sample, seed, shard))
        settings = Settings(
            train=train,
            precision=precision or "fp32",
            device=device,
            mode=mode,
            dynamic=dynamic,
            size=size,
            optimizer=optimizer or "sgd",
        )
        plan = Plan(
            rounds=steps,
            least_s=0.5 if suite else 0.0,
            cold=suite is None if cold is None else cold,
            tensors=tensors,
            check=check,
            unjudged=_unjudged(names, contender, check_rivals),
            side_by_side=side_by_side,
            timeout_s=timeout,
            memory_mb=memory * 1024 if memory else 0.9 * physical_memory_mb() / jobs,
        )
        run = Run(workloads, settings, names, plan, command(), json, jobs, resume, frozenset(explicit), seconds)
        benchmark = run_benchmark(run, console)
    if len(benchmark.rows) < len(workloads) or not _passes(benchmark, contender):
        raise typer.Exit(1)


def _passes(benchmark: Benchmark, contender: str) -> bool:
    judged = [row.results[contender] for row in benchmark.rows if contender in row.results]
    return all(result.status in ("pass", "skipped") for result in judged)


def _contenders(rivals: str, contender: str) -> list[str]:
    """The names of the contenders without duplicates, with the one under test last."""
    return list(dict.fromkeys([*_names(rivals), contender]))


def _precision(precision: str | None, amp: bool) -> str | None:
    if amp and precision not in (None, "amp"):
        raise OptionError(f"--amp and --precision {precision} exclude each other")
    return "amp" if amp else precision


def _usual_size(suite: str | None, device: str) -> str:
    return "full" if suite == "baselines" and device != "cpu" else "cpu"


def _unjudged(names: list[str], contender: str, check_rivals: bool) -> tuple[str, ...]:
    """The contenders whose accuracy is not judged."""
    return () if check_rivals else tuple(name for name in names if name != contender)


@bench.command(name="ceilings")
def measure_ceilings(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    again: Annotated[bool, typer.Option("--again", help="Measure even if the cache has them.")] = False,
) -> None:
    """Measure what this machine can do at most: bandwidth of its memory by size, rate of products by dtype. (Measure on
    a quiet machine: shares of the limit refer to these figures.)
    """
    from smelt.bench.meter import check_device
    from smelt.roofline.measure import ceilings

    with user_errors():
        check_device(device)
        found = ceilings(device, again)
    console = Console()
    console.print(found.machine, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for head in ("moved", "GB/s", "product of", "GFLOP/s"):
        table.add_column(head, justify="right")
    moved = [(f"{size >> 10:,} KiB", f"{speed / 1e9:.1f}") for size, speed in found.bandwidths]
    products = [(name, f"{speed / 1e9:.1f}") for name, speed in found.products.items()]
    for left, right in itertools.zip_longest(moved, products, fillvalue=("", "")):
        table.add_row(*left, *right)
    console.print(table)


@bench.command()
def models(
    suite: Annotated[str, typer.Option(help="huggingface, timm, torchbench, all or baselines.")] = "all",
    size: Annotated[str, typer.Option(help="cpu or full: the size of the inputs shown.")] = "cpu",
) -> None:
    """List the models of the suites: their inputs, and what is odd about them."""
    from smelt.bench.suites.entries import suite_workloads

    with user_errors():
        found = suite_workloads(suite, size)
    table = Table("model", "inputs", "missing", "note", box=box.SIMPLE_HEAD)
    for each in found:
        table.add_row(each.key, each.shape, " ".join(each.missing()), each.note)
    Console().print(table)


@bench.command()
def overhead(
    rivals: Annotated[str, typer.Option(help="Who runs beside smelt, by commas.")] = "eager,torch.compile",
    guards: Annotated[
        bool, typer.Option("--guards/--no-guards", help="Also the guards of BERT-base and of 48 blocks.")
    ] = True,
    json: Annotated[Path | None, typer.Option(help="Where to keep the figures.", callback=output_file)] = None,
) -> None:
    """Microseconds of a compiled `x + 1`, and of the guards of BERT-base and of 48 small blocks."""
    from smelt.bench.run import run_overhead

    with user_errors():
        names = [*filter(None, (name.strip() for name in rivals.split(","))), "smelt"]
        run_overhead(names, guards, command(), Console(), json)


@bench.command()
def aot(
    models: Annotated[
        list[str], typer.Argument(help="bert, gpt2, resnet50, vit, or a name that `bench models` lists.")
    ],
    train: Annotated[bool, typer.Option("--train/--infer", help="A whole training step, or a forward pass.")] = True,
    rounds: Annotated[int, typer.Option(min=1, help="Starts of each, in turn.")] = 5,
    json: Annotated[Path | None, typer.Option(help="Where to keep the figures.", callback=output_file)] = None,
) -> None:
    """The first step from an artefact (import, load, apply, step) beside eager's, in fresh processes in turn."""
    from smelt.bench.ahead.measure import run_ahead
    from smelt.bench.selection import Selection, select
    from smelt.bench.workload import Settings

    with user_errors():
        found = select(Selection(tuple(models), None, None, "cpu", None, 0, None))
        values = run_ahead(found, Settings(train=train), rounds, command(), Console(), json)
    if len(values) < len(found):
        raise typer.Exit(1)


@bench.command()
def regional(
    models: Annotated[
        list[str] | None, typer.Argument(help="8-layers, 32-layers, 64-layers (small); 1B, 3B, 8B, 13B (published).")
    ] = None,
    batches: Annotated[str, typer.Option(help="Batch sizes, by commas.")] = "1,4",
    length: Annotated[int, typer.Option(min=1, help="Tokens of a sequence.")] = 128,
    train: Annotated[
        bool, typer.Option("--train/--forward", help="Backward too, or forward with gradients on.")
    ] = False,
    dtype: Annotated[str | None, typer.Option(help="fp32 (default on a CPU), fp16 (default on a GPU) or bf16.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    contenders: Annotated[
        str, typer.Option(help="Who is measured, by commas.")
    ] = "eager,torch.compile,torch.compile:regions,smelt,smelt:regions",
    rounds: Annotated[int, typer.Option(min=1, help="Timed passes of each contender.")] = 50,
    json: Annotated[Path | None, typer.Option(help="Where to keep the figures.", callback=output_file)] = None,
) -> None:
    """Decoders compiled whole and by regions: cold start and step, the rows of Accelerate's published table."""
    from smelt.bench.contenders import find_contender
    from smelt.bench.meter import check_device
    from smelt.bench.regional.measure import Passes, chosen_dtype
    from smelt.bench.regional.models import chosen_decoders
    from smelt.bench.regional.table import failures, run_regional

    with user_errors():
        check_device(device)
        names = _names(contenders)
        for name in names:
            find_contender(name)
        passes = Passes(1, length, train, chosen_dtype(dtype, device), device)
        found = chosen_decoders(models or (), device)
        rows = run_regional(found, _sizes(batches), passes, names, rounds, command(), Console(), json)
    if any(failures(rows)):
        raise typer.Exit(1)


def _sizes(text: str, option: str = "--batches") -> list[int]:
    """The whole numbers of a comma-separated list, without duplicates."""
    items = [item.strip() for item in text.split(",")]
    if not all(item.isdecimal() and int(item) for item in items):
        raise OptionError(f"{option} wants whole numbers from 1 by commas, got {text!r}")
    return list(dict.fromkeys(map(int, items)))


def _names(text: str) -> list[str]:
    """The names of a comma-separated list, without duplicates."""
    return list(dict.fromkeys(filter(None, (name.strip() for name in text.split(",")))))


@bench.command()
def distributed(
    model: Annotated[
        str, typer.Argument(help="llama-246m, llama-tiny, or a name that `bench models` lists.")
    ] = "llama-246m",
    wrapper: Annotated[
        str, typer.Option(help="By commas: single, ddp, ddp-inside, fsdp2, fsdp2-whole, tp.")
    ] = "single,ddp,fsdp2",
    processes: Annotated[int, typer.Option(min=2, help="Ranks on this machine, one GPU each on cuda.")] = 2,
    contenders: Annotated[
        str, typer.Option(help="Who is measured, by commas; errors are those against the first.")
    ] = "eager,torch.compile,smelt",
    device: Annotated[str, typer.Option(help="cpu (gloo) or cuda (NCCL).")] = "cpu",
    precision: Annotated[
        str | None, typer.Option(help="fp32 (default on a CPU), tf32 or amp (default on cuda).")
    ] = None,
    optimizer: Annotated[str, typer.Option(help="adamw (fused on cuda) or sgd.")] = "adamw",
    rounds: Annotated[int, typer.Option(min=1, help="Timed rounds; the median counts.")] = 5,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a round.")] = 10,
    limit: Annotated[float, typer.Option(min=1, help="Seconds that one measurement may take.")] = 600.0,
    predict: Annotated[
        str, typer.Option(help="Numbers of GPUs, by commas, for which steps are predicted from the trace (cuda).")
    ] = "8,64,512",
    node: Annotated[int, typer.Option(min=1, help="GPUs of one node, for the prediction.")] = 8,
    inner: Annotated[
        float, typer.Option(min=0.001, help="GB/s that a GPU sends inside a node, for the prediction.")
    ] = 350.0,
    network: Annotated[float, typer.Option(min=0.001, help="GB/s that a GPU sends between nodes, for it.")] = 45.0,
    json: Annotated[Path | None, typer.Option(help="Where to keep the figures.", callback=output_file)] = None,
) -> None:
    """DDP, FSDP2 and tensor parallel training on several processes: step, hidden communication, memory, first step."""
    from smelt.bench.contenders import find_contender
    from smelt.bench.distributed.models import find_model
    from smelt.bench.distributed.ranks import Task
    from smelt.bench.distributed.simulation import Cluster
    from smelt.bench.distributed.table import Run, failures, predictions, run_distributed
    from smelt.bench.distributed.wrappers import find_wrapper
    from smelt.bench.meter import check_device

    console = Console()
    with user_errors():
        check_device(f"cuda:{processes - 1}" if device == "cuda" else device)
        names, wrappers = _names(contenders), _names(wrapper)
        for name in names:
            find_contender(name)
        for name in wrappers:
            find_wrapper(name)
        find_model(model, device)
        numbers = _sizes(predict, "--predict")
        chosen = precision or ("amp" if device == "cuda" else "fp32")
        if optimizer not in ("adamw", "sgd"):
            raise unknown_name("optimizer", optimizer, ("adamw", "sgd"))
        task = Task(model, "", "", "", device, chosen, optimizer, rounds, steps)
        run = Run(tuple(wrappers), tuple(names), processes, limit, task)
        rows = run_distributed(run, command(), console, json)
    if device == "cuda":
        console.print(predictions(rows, processes, numbers, Cluster(node, inner, network)))
    if any(failures(rows)):
        raise typer.Exit(1)


@bench.command()
def bandwidth(
    device: Annotated[str, typer.Option(help="cpu (small sizes, a trial) or cuda.")] = "cuda",
    contenders: Annotated[
        str, typer.Option(help="Who is measured, by commas, the judged one last.")
    ] = "eager,torch.compile,smelt",
    dtype: Annotated[str, typer.Option(help="Of the matrices: bf16, fp16 or fp32. AdamW is fp32 always.")] = "bf16",
    only: Annotated[str | None, typer.Option(help="The problems whose name this regular expression finds.")] = None,
    seconds: Annotated[float | None, typer.Option(help="End after so many, with the problems that are done.")] = None,
    limit: Annotated[float, typer.Option(min=1, help="Seconds that one problem may take.")] = 300.0,
    json: Annotated[Path | None, typer.Option(help="Where to keep the figures.", callback=output_file)] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the problems that the JSON file has.")] = False,
) -> None:
    """Layer norm, softmax, cross entropy, a GELU chain and AdamW as a share of the speed of a copy."""
    from smelt.bench.bandwidth.run import Run, run_bandwidth
    from smelt.bench.contenders import find_contender
    from smelt.bench.meter import check_device

    with user_errors():
        names = _names(contenders)
        for name in names:
            find_contender(name)
        check_device(device)
        run = Run(device, tuple(names), dtype, only or "", command(), seconds, json, resume, limit)
        run_bandwidth(run, Console())


@bench.command()
def report(
    files: Annotated[list[Path], typer.Argument(help="Files that --json wrote.")],
    out: Annotated[
        Path | None, typer.Option(help="Write report.md and index.html, over all files, here.", callback=output_folder)
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Two files, OLD NEW: what changed, worse first.")] = False,
    contender: Annotated[str | None, typer.Option(help="Whose changes --compare lists (default: smelt).")] = None,
    readme: Annotated[
        Path | None, typer.Option(help="Write the figures of a GPU in FILES between the marks of this README.")
    ] = None,
) -> None:
    """Print saved results as Markdown, compare two runs, or write a report with plots."""
    from smelt.bench.report.compare import compare as compare_runs
    from smelt.bench.report.markdown import comparison_markdown
    from smelt.bench.report.readme import write_readme
    from smelt.bench.report.sections import headline
    from smelt.bench.report.summary import merge
    from smelt.bench.report.write import write_report
    from smelt.bench.results import Benchmark
    from smelt.bench.tables import markdown

    if compare and len(files) != 2:
        raise typer.BadParameter("--compare takes two files, OLD NEW")
    if readme is not None:
        with user_errors():
            write_readme(readme, files)
        return
    with user_errors():
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
    """The command line that repeats this run."""
    return shlex.join(["smelt", *sys.argv[1:]])


@contextmanager
def user_errors() -> Iterator[None]:
    """Context that turns an error of the user into a message and exit code 2."""
    try:
        yield
    except SmeltError as error:
        Console(stderr=True).print(str(error), style="red", markup=False, highlight=False)
        raise typer.Exit(2) from None
    except OSError as error:
        if error.filename is None:
            raise
        Console(stderr=True).print(f"{error.filename}: {error.strerror}", style="red", markup=False, highlight=False)
        raise typer.Exit(2) from None
