"""Figures of the tiny target as a command: `python -m tests.tiny.figures [NETWORK ...] [--board]`.

Memory is what the planner lays out, beside what the paper (arXiv 2206.15472, figure 9) measured on its board; with
--board the linker's sizes, the stack and counts of instructions on an emulated Cortex-M7, beside those of a
straightforward float32 build of the full update.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from fractions import Fraction
from math import prod
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional

from smelt.bench.memory import tensors_mb
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
from tests.tiny import float_build
from tests.tiny import model_files as files

PAPER = {"mcunet-5fps": (3650, 560, 173), "proxyless-w0.3": (2745, 326, 135), "mbv2-w0.35": (2939, 335, 141)}
"""KB on an STM32F746: full update, sparse update, sparse update reordered."""

CLASSES, STACK = 10, 8192
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


def pytorch_peak(graph: Int8Graph) -> float:
    """Most MiB of tensors in a training step of one image in PyTorch, float32, plain SGD: parameters included."""
    net = float_build.FloatNet(graph)
    sgd = torch.optim.SGD(net.parameters(), 0.01)
    height, width, channels = graph.tensors[graph.input].shape
    image, label = torch.randn(1, channels, height, width), torch.tensor([1])

    def step() -> None:
        sgd.zero_grad()
        functional.cross_entropy(net(image), label).backward()
        sgd.step()

    step()
    return tensors_mb(step)


def float_instructions(graph: Int8Graph, board: Board) -> int:
    """Millions of instructions of the float build's step. Its 16 MB do not fit a board's RAM: it has the PSRAM's."""
    large = dataclasses.replace(board, ram_origin=PSRAM)
    texts = float_build.render(graph) | {"main.c": FLOAT_MAIN % {"size": graph.tensors[graph.input].elements}}
    with tempfile.TemporaryDirectory() as folder:
        sources = write_sources(large, texts, Path(folder), flash=FLOAT_FLASH, ram=FLOAT_RAM, stack=STACK)
        return run(build(large, sources, Path(folder)), limit_s=600).numbers()["millions"]


def memory_table(graphs: dict[str, Int8Graph]) -> Table:
    """Peak memory of full, sparse, and sparse and reordered updates, beside the paper's."""
    table = Table(title="KB of arena and trained parameters, in brackets the paper's board; MiB of PyTorch's tensors")
    for name in ("network", "full", "sparse", "sparse, reordered", "arena", "its bound", "over it", "PyTorch MiB"):
        table.add_column(name, justify="left" if name == "network" else "right")
    for name, graph in graphs.items():
        scheme, full = scheme_of(graph, 49 << 10), named("full", graph)
        sizes = [taken(graph, full, True), taken(graph, scheme, True), taken(graph, scheme, False)]
        _, arena, least = sizes[2]
        cells = [f"{size / 1024:,.0f} ({paper:,})" for (size, *_), paper in zip(sizes, PAPER[name], strict=True)]
        bound = [f"{arena:,}", f"{least:,}", f"{100 * (arena / least - 1):.1f} %"]
        table.add_row(name, *cells, *bound, f"{pytorch_peak(graph):.1f}")
    return table


def board_table(graphs: dict[str, Int8Graph], board: Board) -> Table:
    """RAM and flash by the linker, stack and instructions under the emulator."""
    table = Table(title=f"{board.name}, the scheme of 49 KB; millions of instructions")
    for name in ("network", "RAM", "flash", "stack used", "inference", "step", "float, full step", "times"):
        table.add_column(name, justify="left" if name == "network" else "right")
    for name, graph in graphs.items():
        with tempfile.TemporaryDirectory() as folder:
            made = export(graph, scheme_of(graph, 49 << 10), Path(folder) / "out", board, Budget(stack=STACK))
            built = build(board, sorted(path.name for path in made.folder.glob("*.c")), made.folder)
            commands, shape = Commands(made.program), graph.tensors[graph.input].shape
            image = (np.arange(prod(shape)) * 37 % 255 - 127).astype(np.int8).reshape(shape)
            commands.infer(image)
            commands.train(image, 1, 0.01)
            found = send(built, commands)
        counted = found.infer_instructions[0] / 1e6, found.train_instructions[0] / 1e6
        plain = float_instructions(graph, board)
        sizes = [f"{value:,}" for value in (made.ram, made.flash, found.stack)]
        table.add_row(name, *sizes, *(f"{c:.1f}" for c in counted), f"{plain:,}", f"{plain / counted[1]:.1f}")
    return table


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", choices=[*files.NAMES, []], help="of the pretrained ones; default: all")
    parser.add_argument("--board", action="store_true", help="build for an emulated Cortex-M7 and count instructions")
    chosen = parser.parse_args()
    names = chosen.networks or files.NAMES
    graphs = {name: with_head(load(files.pretrained(name)), CLASSES) for name in names}
    console = Console(width=140)
    console.print(memory_table(graphs))
    if chosen.board:
        console.print(board_table(graphs, find_board("mps2-an500")))


if __name__ == "__main__":
    main()
