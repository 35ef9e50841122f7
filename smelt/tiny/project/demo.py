"""`smelt tiny demo`: a network learns new classes on an emulated board, by several schemes, with live accuracy."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from smelt.base.errors import SmeltError
from smelt.tiny.boards.board import Board
from smelt.tiny.boards.build import build
from smelt.tiny.program import Program
from smelt.tiny.project.commands import Commands, send
from smelt.tiny.project.demo_report import Adapted, write_report
from smelt.tiny.project.export import Budget, export
from smelt.tiny.project.transfer import Task, prepare
from smelt.tiny.ram import ram_of
from smelt.tiny.scheme import Scheme, last_layers, memory
from smelt.tiny.search import search
from smelt.tiny.simulate import Training
from smelt.tiny.trial import Trial, recipe

STACK = 4096
RATE = 0.02


@dataclass(frozen=True)
class Size:
    """The amount of work of a demo.

    Attributes:
        images, epochs: number of images and of epochs of the training in PyTorch.
        trial: the settings of the search's trainings; they use images on which the board trains as well.
        steps: training steps on the board, one image each.
        looks: number of measurements of the accuracy on the board.
        held_out: number of images for measuring the accuracy.
        checked: number of first steps whose losses are compared bit for bit with those of the simulation.
    """

    images: int = 12_000
    epochs: int = 3
    trial: Trial = field(default_factory=lambda: Trial(steps=300, held_out=500))
    steps: int = 1500
    looks: int = 5
    held_out: int = 400
    checked: int = 100


QUICK = Size(600, 1, Trial(steps=8, held_out=40), steps=24, looks=2, held_out=20, checked=12)


def run_demo(board: Board, out: Path, console: Console, size: Size, seed: int = 0) -> list[Adapted]:
    """Prepare, search, and adapt by each scheme on the board; writes `schemes.md` and `accuracy.png` into a folder.

    Raises:
        DataError: Fashion-MNIST is not installed.
        BuildError: the board's compiler or emulator is not installed.
        SmeltError: a loss on the board differs from the simulation's.
    """
    board.find_compiler()
    if board.bare:
        board.find_emulator()
    console.print(f"training a network on {size.images:,} images of five kinds of clothing ...", style="dim")
    task = prepare(size.images, size.epochs, seed)
    console.print(f"it knows them in {task.known:.1%} of the test images; {task.graph.macs():,} products an image")
    schemes = schemes_of(task, size, console)
    adapted: list[Adapted] = []
    with Live(console=console, refresh_per_second=4) as live:
        for scheme in schemes:
            one = Adapted(scheme, memory(task.graph, scheme).total)
            adapted.append(one)
            adapt(task, one, board, size, lambda: live.update(table(adapted, board)), seed)
    written = write_report(out, adapted, task.known, board)
    console.print(f"report: {written}", highlight=False, soft_wrap=True)
    return adapted


def schemes_of(task: Task, size: Size, console: Console) -> list[Scheme]:
    """The schemes to compare: classifier alone, biases, last layers, the best sparse scheme in the memory that the last
    layers take, and everything.
    """
    graph, count = task.graph, len(task.graph.layers)
    last = last_layers(graph, 3, "last 3 layers")
    limit = ram_of(graph, last, STACK)
    console.print(f"looking for the scheme that learns most within {limit:,} bytes of RAM ...", style="dim")
    found = search(graph, task.train, limit, trial=size.trial, stack=STACK)
    console.print(f"found: {found}", highlight=False)
    return [
        Scheme("classifier"),
        Scheme("biases", count),
        last,
        Scheme("sparse", found.biases, found.weights),
        Scheme("full", count, dict.fromkeys(range(count), Fraction(1))),
    ]


def adapt(task: Task, one: Adapted, board: Board, size: Size, show: Callable[[], None], seed: int) -> None:
    """Train on the board by one scheme, in several runs of the program; a checkpoint carries the parameters from run to
    run.
    """
    train, test = task.train.sample(size.steps, seed), task.test.sample(size.held_out, seed)
    x, held_out, rate = train.quantised(task.graph), test.quantised(task.graph), recipe(size.steps, RATE)
    with tempfile.TemporaryDirectory() as folder:
        made = export(task.graph, one.scheme, Path(folder) / "project", board, Budget(stack=STACK))
        one.ram, one.flash = made.ram, made.flash
        built = build(board, sorted(path.name for path in made.folder.glob("*.c")), made.folder)
        for steps in _parts(size):
            commands = Commands(made.program)
            if one.seen:
                commands.load()
            for step in steps:
                commands.train(x[step], int(train.labels[step]), float(rate[step]))
            commands.save()
            for image in held_out:
                commands.infer(image)
            answers = send(built, commands)
            if not steps.start:
                compare(
                    answers.values[bool(one.seen) :],
                    made.program,
                    [(x[n], int(train.labels[n]), rate[n]) for n in steps[: size.checked]],
                )
            kinds = [value[0] for value in answers.values[-len(held_out) :] if isinstance(value, tuple)]
            one.seen.append((steps.stop, float((np.array(kinds) == test.labels).mean())))
            one.stack = max(one.stack, answers.stack)
            one.instructions = answers.train_instructions[-1] if answers.train_instructions else 0
            show()


def compare(answers: Sequence[object], program: Program, steps: Sequence[tuple[np.ndarray, int, float]]) -> None:
    """Check that the board's losses are bit for bit those of the simulation.

    Args:
        answers: the answer to each step from the first one on: (loss, logits).

    Raises:
        SmeltError: a loss differs.
    """
    simulated = Training(program)
    for number, (step, found) in enumerate(zip(steps, answers, strict=False)):
        wanted = simulated.step(*step)
        if not isinstance(found, tuple) or np.float32(found[0]) != wanted:
            raise SmeltError(f"step {number} on the board has a loss other than {wanted}, that of the simulation")


def _parts(size: Size) -> Iterator[range]:
    """The ranges of steps before each measurement of the accuracy; before the first measurement the range is empty."""
    ends = [round(size.steps * look / size.looks) for look in range(size.looks + 1)]
    yield range(0)
    for begin, end in zip(ends, ends[1:], strict=False):
        yield range(begin, end)


def table(adapted: list[Adapted], board: Board) -> Table:
    """A table with a line for each scheme, which shows the present state of its training."""
    shown = Table(title=f"new classes, on {board.name}", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("scheme", "images", "accuracy", "RAM B", "kept for training B", "M instructions a step"):
        shown.add_column(name, justify="left" if name == "scheme" else "right")
    for one in adapted:
        images, accuracy = one.seen[-1] if one.seen else (0, 0.0)
        steps = f"{one.instructions / 1e6:.2f}" if one.instructions else ""
        shown.add_row(one.scheme.name, f"{images:,}", f"{accuracy:.1%}", f"{one.ram:,}", f"{one.memory:,}", steps)
    return shown
