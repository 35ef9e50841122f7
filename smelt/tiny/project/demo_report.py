"""The results of the demo as a table in Markdown and a plot of accuracy against memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from smelt.tiny.boards.board import Board
from smelt.tiny.scheme import Scheme


@dataclass
class Adapted:
    """A training on the board.

    Attributes:
        seen: (number of images trained on, accuracy then), in order.
        memory: bytes that the scheme takes by the memory model.
        ram, flash: bytes that the program takes in total, from the linker if there is one.
        stack: bytes of it that were in use; 0 on a machine with an operating system.
        instructions: number of instructions of a training step; 0 on a machine with an operating system.
    """

    scheme: Scheme
    memory: int
    ram: int = 0
    flash: int = 0
    stack: int = 0
    instructions: int = 0
    seen: list[tuple[int, float]] = field(default_factory=list)


def write_report(folder: Path, adapted: Sequence[Adapted], known: float, board: Board) -> Path:
    """Write `schemes.md` and the plot beside it; returns the path of the table."""
    folder.mkdir(parents=True, exist_ok=True)
    images = adapted[0].seen[-1][0]
    lines = [
        "# Learning new classes on a board",
        "",
        f"A network that knows five kinds of clothing ({known:.1%} of test images) learns five others from {images:,}",
        f"images, one a step, on {board.describe} ({board.name}).",
        "",
        "| scheme | accuracy | RAM in all B | flash B | stack in use B | kept for training B | instructions a step |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for one in adapted:
        numbers = (one.ram, one.flash, one.stack, one.memory, one.instructions)
        lines.append(
            f"| {one.scheme} | {one.seen[-1][1]:.1%} | " + " | ".join(f"{n:,}" if n else "" for n in numbers) + " |"
        )
    path = folder / "schemes.md"
    path.write_text("\n".join([*lines, "", "![accuracy against memory](accuracy.png)", ""]))
    draw(adapted, folder / "accuracy.png")
    return path


def draw(adapted: Sequence[Adapted], path: Path) -> None:
    """Accuracy against the RAM of a training step, and while the board trains."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    by_memory, by_images = figure.subplots(1, 2)
    for one in adapted:
        accuracies = [100 * accuracy for _, accuracy in one.seen]
        (drawn,) = by_images.plot([seen for seen, _ in one.seen], accuracies, marker=".", label=one.scheme.name)
        by_memory.plot(one.ram / 1024, accuracies[-1], "o", color=drawn.get_color())
        by_memory.annotate(one.scheme.name, (one.ram / 1024, accuracies[-1]), textcoords="offset points", xytext=(5, 5))
    for axes, title, x in ((by_memory, "accuracy against memory", "RAM, KB"), (by_images, "on the board", "images")):
        axes.set(title=title, xlabel=x, ylabel="test images right, %")
        axes.grid(alpha=0.25)
    by_memory.margins(x=0.2)
    by_images.legend(frameon=False)
    figure.savefig(path, dpi=110)
