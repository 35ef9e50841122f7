"""Figures of the tiny target as a command: `python -m tests.tiny.figures [NETWORK ...] [--board]`.

Memory is what the planner lays out, beside what the paper (arXiv 2206.15472, figure 9) measured on its board, and
beside a training step in PyTorch; with --board the linker's sizes, the stack and counts of instructions on an emulated
Cortex-M7, beside those of a straightforward float32 build of the full update, and the processor time of the export and
of 300 emulated steps. SMELT_MCU_MODELS names the folder of the pretrained networks.
"""

from __future__ import annotations

import argparse
import dataclasses
import resource
import tempfile
import time
from fractions import Fraction
from math import prod
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from smelt.tiny.boards.board import Board, find_board
from smelt.tiny.boards.build import build, write_sources
from smelt.tiny.emulate import run
from smelt.tiny.graph import Int8Graph
from smelt.tiny.models import load, with_head
from smelt.tiny.plan import lay_out
from smelt.tiny.program import StepOptions
from smelt.tiny.project.commands import Commands, send
from smelt.tiny.project.export import Budget, export
from smelt.tiny.render_c import trained_bytes
from smelt.tiny.scheme import PRESETS, Scheme, memory, named
from smelt.tiny.step import step_program
from tests.tiny import float_build, pytorch_step
from tests.tiny import model_files as files

PAPER = {"mcunet-5fps": (3650, 560, 173), "proxyless-w0.3": (2745, 326, 135), "mbv2-w0.35": (2939, 335, 141)}
"""KB on an STM32F746: full update, sparse update, sparse update reordered."""

CLASSES, STACK, STEPS = 10, 8192, 300
FLOAT_FLASH, FLOAT_RAM, PSRAM = 4 << 20, 16 << 20, 0x6000_0000

FLOAT_MAIN = """
#include "board.h"
float train_step(const float *image, int label, float rate);
static float image[%(size)d];
int main(void)
{
    for (int i = 0; i < %(size)d; i++) image[i] = (float)(i * 37 %% 255 - 127) / 128.0f;
    const uint64_t before = board_instructions();
    const float loss = train_step(image, 1, 0.01f);
    const uint64_t after = board_instructions() - before;
    char text[32] = "millions=";
    int at = 31;
    uint32_t left = (uint32_t)(after / 1000000);
    text[--at] = '\\n';
    do text[--at] = (char)('0' + left %% 10); while (left /= 10);
    board_write("millions=");
    board_write(text + at);
    return !(loss > 0.0f && loss < 1e6f);
}
"""


def scheme_of(graph: Int8Graph, limit: int) -> Scheme:
    """The paper's scheme for MCUNet; for others, about whose schemes it says nothing, one in its manner.

    Biases of the last half of the layers train, and, from the end on, half of the input channels of first pointwise
    convolutions of blocks as long as the memory model stays within `limit` bytes.
    """
    if graph.name.startswith("mcunet"):
        return PRESETS["mcunet-49kb"]
    found = Scheme("49kb", len(graph.layers) // 2)
    for number in reversed(range(len(graph.layers) - found.biases, len(graph.layers))):
        layer = graph.layers[number]
        if layer.depthwise or layer.outputs <= layer.inputs:
            continue
        more = dataclasses.replace(found, weights={**found.weights, number: Fraction(1, 2)})
        found = more if memory(graph, more).total <= limit else found
    return found


def taken(graph: Int8Graph, scheme: Scheme, held: bool) -> tuple[int, int, int]:
    """Bytes of arena and trained parameters together, of the arena, and the bound of its lifetimes."""
    program = step_program(graph, scheme, StepOptions(held=held))
    layout = lay_out(program)
    return layout.size + trained_bytes(program), layout.size, layout.least


def float_instructions(graph: Int8Graph, board: Board) -> int:
    """Millions of instructions of the float build's step. Its 16 MB do not fit a board's RAM: it has the PSRAM's."""
    large = dataclasses.replace(board, ram_origin=PSRAM)
    texts = float_build.render(graph) | {"main.c": FLOAT_MAIN % {"size": graph.tensors[graph.input].elements}}
    with tempfile.TemporaryDirectory() as folder:
        sources = write_sources(large, texts, Path(folder), flash=FLOAT_FLASH, ram=FLOAT_RAM, stack=STACK)
        return run(build(large, sources, Path(folder)), limit_s=600).numbers()["millions"]


def processor_seconds() -> float:
    """Seconds of processor time of this process and of those that it ran to their end."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def memory_table(graphs: dict[str, Int8Graph]) -> Table:
    """Peak memory of full, sparse, and sparse and reordered updates, beside the paper's."""
    table = Table(title="KB of arena and trained parameters, in brackets the paper's board")
    for name in ("network", "full", "sparse", "sparse, reordered", "full over these", "arena", "its bound", "over it"):
        table.add_column(name, justify="left" if name == "network" else "right")
    for name, graph in graphs.items():
        scheme, full = scheme_of(graph, 49 << 10), named("full", graph)
        sizes = [taken(graph, full, True), taken(graph, scheme, True), taken(graph, scheme, False)]
        _, arena, least = sizes[2]
        cells = [f"{size / 1024:,.0f} ({paper:,})" for (size, *_), paper in zip(sizes, PAPER[name], strict=True)]
        times = " and ".join(f"{sizes[0][0] / size:.1f}" for size, *_ in sizes[1:])
        table.add_row(name, *cells, times, f"{arena:,}", f"{least:,}", f"{100 * (arena / least - 1):.1f} %")
    return table


def pytorch_table(graphs: dict[str, Int8Graph]) -> Table:
    """Peaks of a full float32 step in PyTorch, beside the sparse and reordered one."""
    table = Table(
        title="MiB of a full float32 training step in PyTorch: tensors, process; times the sparse, reordered one"
    )
    for name in ("network", "tensors", "times", "process", "times"):
        table.add_column(name, justify="left" if name == "network" else "right")
    for name, graph in graphs.items():
        ours = taken(graph, scheme_of(graph, 49 << 10), False)[0] / 2**20
        cells = [(peak, peak / ours) for peak in pytorch_step.peaks(name)]
        table.add_row(name, *(text for peak, times in cells for text in (f"{peak:.1f}", f"{times:,.0f}")))
    return table


@dataclasses.dataclass(frozen=True)
class OnBoard:
    """What a training on an emulated board takes: bytes, millions of instructions, seconds of processor time."""

    ram: int
    flash: int
    stack: int
    infer: float
    train: float
    export_s: float
    steps_s: float


def on_board(graph: Int8Graph, board: Board) -> OnBoard:
    """Export, build, and train for STEPS steps under the emulator."""
    with tempfile.TemporaryDirectory() as folder:
        before = processor_seconds()
        made = export(graph, scheme_of(graph, 49 << 10), Path(folder) / "out", board, Budget(stack=STACK))
        exported = processor_seconds() - before
        built = build(board, sorted(path.name for path in made.folder.glob("*.c")), made.folder)
        commands, shape = Commands(made.program), graph.tensors[graph.input].shape
        image = (np.arange(prod(shape)) * 37 % 255 - 127).astype(np.int8).reshape(shape)
        commands.infer(image)
        for step in range(STEPS):
            commands.train(image, step % CLASSES, 0.01)
        before = processor_seconds()
        found = send(built, commands, limit_s=1200)
        counted = found.infer_instructions[0] / 1e6, found.train_instructions[0] / 1e6
        return OnBoard(made.ram, made.flash, found.stack, *counted, exported, processor_seconds() - before)


def board_table(graphs: dict[str, Int8Graph], board: Board) -> Table:
    """RAM and flash by the linker, stack, instructions and seconds under the emulator."""
    table = Table(title=f"{board.name}, the scheme of 49 KB; millions of instructions; seconds of processor time")
    names = ("RAM", "flash", "stack used", "inference", "step", "float, full step", "times", "export", f"{STEPS} steps")
    for name in ("network", *names):
        table.add_column(name, justify="left" if name == "network" else "right")
    for name, graph in graphs.items():
        found, plain = on_board(graph, board), float_instructions(graph, board)
        sizes = [f"{value:,}" for value in (found.ram, found.flash, found.stack)]
        counts = [f"{found.infer:.1f}", f"{found.train:.1f}", f"{plain:,}", f"{plain / found.train:.1f}"]
        table.add_row(name, *sizes, *counts, f"{found.export_s:.1f} s", f"{found.steps_s:.0f} s")
    return table


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", choices=[*files.NAMES, []], help="of the pretrained ones; default: all")
    parser.add_argument("--board", action="store_true", help="build for an emulated Cortex-M7 and count instructions")
    chosen = parser.parse_args()
    names = chosen.networks or files.NAMES
    graphs = {name: with_head(load(files.pretrained(name)), CLASSES) for name in names}
    console = Console(width=140, highlight=False)
    console.print(memory_table(graphs))
    console.print(pytorch_table(graphs))
    if chosen.board:
        console.print(board_table(graphs, find_board("mps2-an500")))


if __name__ == "__main__":
    main()
