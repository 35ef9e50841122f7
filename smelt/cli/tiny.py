"""`smelt tiny`: projects that train on microcontrollers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from smelt.base.errors import SmeltError
from smelt.cli.bench import user_errors

if TYPE_CHECKING:
    from smelt.tiny.graph import Int8Graph
    from smelt.tiny.scheme import Scheme

tiny = typer.Typer(help="Int8 networks that train on microcontrollers.", no_args_is_help=True)


@tiny.callback()
def _group() -> None:
    """Keep `smelt tiny` a command group even if it has only one command."""


@tiny.command()
def export(
    model: Annotated[Path, typer.Argument(help="NAME.json of an int8 network, with NAME.npz beside it.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The folder to make.")],
    scheme: Annotated[
        str,
        typer.Option(help="mcunet-49kb and its kin, classifier, bias-K, last-K, within-SIZE, full; or a JSON file."),
    ] = "classifier",
    budget: Annotated[str, typer.Option(help="RAM in all: arena, what trains, stack.")] = "256KB",
    flash: Annotated[str, typer.Option(help="Flash: code and constants.")] = "1MB",
    stack: Annotated[str, typer.Option(help="Of the RAM; a multiple of 16 bytes.")] = "4KB",
    board: Annotated[str, typer.Option(help="mps2-an500, mps2-an386, generic-cortex-m7, rv32-virt, host.")] = "host",
    classes: Annotated[int | None, typer.Option(min=2, help="A new float classifier of so many classes.")] = None,
    size: Annotated[int | None, typer.Option(min=1, help="Height and width of images (default: the file's).")] = None,
    rounding: Annotated[str, typer.Option(help="Of int8 updates: stochastic, nearest, latent.")] = "stochastic",
    momentum: Annotated[float, typer.Option(help="Of SGD.")] = 0.0,
    backward: Annotated[str, typer.Option(help="Gradients of convolutions: float32, int8.")] = "float32",
) -> None:
    """Write a C99 project: inference and training of a model within a budget of RAM and flash."""
    from smelt.tiny.boards.board import find_board
    from smelt.tiny.models import load, with_head
    from smelt.tiny.program import StepOptions
    from smelt.tiny.project.export import Budget, describe
    from smelt.tiny.project.export import export as write
    from smelt.tiny.scheme import parse_size

    with user_errors():
        graph = load(model, size)
        graph = with_head(graph, classes) if classes else graph
        chosen = _scheme(scheme, graph)
        limits = Budget(parse_size(budget), parse_size(flash), parse_size(stack))
        target = find_board(board)
        made = write(graph, chosen, out, target, limits, StepOptions(rounding, momentum, backward=backward))
        print(describe(made, chosen, target))


@tiny.command()
def figures(
    models: Annotated[list[Path], typer.Argument(help="NAME.json of int8 networks, with NAME.npz beside each.")],
    scheme: Annotated[
        list[str] | None,
        typer.Option(help="As of export, several times; default: classifier, the network's presets, full."),
    ] = None,
    board: Annotated[str | None, typer.Option(help="Also build and run: mps2-an500, mps2-an386, rv32-virt.")] = None,
    budget: Annotated[str, typer.Option(help="RAM in all: arena, what trains, stack.")] = "256KB",
    flash: Annotated[str, typer.Option(help="Flash: code and constants.")] = "1MB",
    stack: Annotated[str, typer.Option(help="Of the RAM; a multiple of 16 bytes.")] = "8KB",
    classes: Annotated[int, typer.Option(min=2, help="A new float classifier of so many classes.")] = 10,
    size: Annotated[int | None, typer.Option(min=1, help="Height and width of images (default: the file's).")] = None,
    backward: Annotated[str, typer.Option(help="Gradients of convolutions: float32, int8.")] = "float32",
    steps: Annotated[int, typer.Option(min=1, help="Training steps on the board.")] = 1,
    check: Annotated[bool, typer.Option("--check", help="Compare them with the simulation, to the bit.")] = False,
) -> None:
    """Memory of training steps by the planner; on an emulated board also flash, stack and counts of instructions."""
    from smelt.tiny.boards.board import find_board
    from smelt.tiny.models import load, with_head
    from smelt.tiny.program import StepOptions
    from smelt.tiny.project.export import Budget
    from smelt.tiny.project.figures import Runs, tables, usual_schemes
    from smelt.tiny.scheme import parse_size

    with user_errors():
        if board is None and (check or steps > 1):
            raise SmeltError("--steps and --check run on a board", hint="--board mps2-an500")
        limits = Budget(parse_size(budget), parse_size(flash), parse_size(stack))
        runs = None if board is None else Runs(find_board(board), limits, steps, check)
        options, console = StepOptions(backward=backward), Console(highlight=False)
        for model in models:
            graph = with_head(load(model, size), classes)
            chosen = [_scheme(name, graph) for name in scheme] if scheme else usual_schemes(graph)
            for table in tables(graph, chosen, runs, options):
                console.print(table)


@tiny.command()
def demo(
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of the table and the plot.")] = Path(
        "smelt_report/tiny"
    ),
    board: Annotated[str, typer.Option(help="mps2-an500, mps2-an386, rv32-virt, host.")] = "mps2-an500",
    quick: Annotated[bool, typer.Option("--quick", help="On a few images: it learns next to nothing.")] = False,
) -> None:
    """Have a network learn new kinds of clothing on an emulated board, by five schemes, with live accuracy."""
    from smelt.tiny.boards.board import find_board
    from smelt.tiny.project.demo import QUICK, Size, run_demo

    with user_errors():
        run_demo(find_board(board), out, Console(), QUICK if quick else Size())


def _scheme(name: str, graph: Int8Graph) -> Scheme:
    """A scheme by name, or from a JSON file."""
    from smelt.tiny.scheme import from_json, named

    if not name.endswith(".json"):
        return named(name, graph)
    try:
        made = from_json(json.loads(Path(name).read_text()))
    except (OSError, ValueError) as error:
        raise SmeltError(f"the scheme {name} cannot be read", why=str(error)) from error
    made.check(graph)
    return made
