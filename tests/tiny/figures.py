"""What figures of `smelt tiny figures` are compared with: `python -m tests.tiny.figures [NETWORK ...] [--board]`.

Memory beside what the paper (arXiv 2206.15472, figure 9) measured on its board, and beside a training step in PyTorch;
with --board the instructions of a step on an emulated Cortex-M7 beside those of a straightforward float32 build of the
full update. SMELT_MCU_MODELS names the folder of the pretrained networks.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from smelt.tiny.boards.board import Board, find_board
from smelt.tiny.boards.build import build, write_sources
from smelt.tiny.boards.emulate import run
from smelt.tiny.graph import Int8Graph
from smelt.tiny.models import load, with_head
from smelt.tiny.project.figures import Runs, measured, planned
from smelt.tiny.scheme import Scheme, named
from tests.tiny import float_build, pytorch_step
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


def scheme_of(graph: Int8Graph) -> Scheme:
    """The paper's scheme for MCUNet; for others, about whose schemes it says nothing, one by rule in its manner."""
    return named("mcunet-49kb" if graph.name.startswith("mcunet") else "within-49KB", graph)


def float_instructions(graph: Int8Graph, board: Board) -> int:
    """Millions of instructions of the float build's step. Its 16 MB do not fit a board's RAM: it has the PSRAM's."""
    large = dataclasses.replace(board, ram_origin=PSRAM)
    texts = float_build.render(graph) | {"main.c": FLOAT_MAIN % {"size": graph.tensors[graph.input].elements}}
    with tempfile.TemporaryDirectory() as folder:
        sources = write_sources(large, texts, Path(folder), flash=FLOAT_FLASH, ram=FLOAT_RAM, stack=STACK)
        return run(build(large, sources, Path(folder)), limit_s=600).numbers()["millions"]


def memory_table(graphs: dict[str, Int8Graph]) -> Table:
    """Peak memory of full, sparse, and sparse and reordered updates, beside the paper's."""
    table = Table(title="KB of arena and trained parameters, in brackets the paper's board")
    for name in ("network", "full", "sparse", "sparse, reordered", "full over these"):
        table.add_column(name, justify="left" if name == "network" else "right")
    for name, graph in graphs.items():
        sparse = planned(graph, scheme_of(graph))
        sizes = [planned(graph, named("full", graph)).held, sparse.held, sparse.arena + sparse.trained]
        cells = [f"{size / 1024:,.0f} ({paper:,})" for size, paper in zip(sizes, PAPER[name], strict=True)]
        times = " and ".join(f"{sizes[0] / size:.1f}" for size in sizes[1:])
        table.add_row(name, *cells, times)
    return table


def pytorch_table(graphs: dict[str, Int8Graph]) -> Table:
    """Peaks of a full float32 step in PyTorch, beside the sparse and reordered one."""
    table = Table(
        title="MiB of a full float32 training step in PyTorch: tensors, process; times the sparse, reordered one"
    )
    for name in ("network", "tensors", "times", "process", "times"):
        table.add_column(name, justify="left" if name == "network" else "right")
    for name, graph in graphs.items():
        sparse = planned(graph, scheme_of(graph))
        ours = (sparse.arena + sparse.trained) / 2**20
        cells = [(peak, peak / ours) for peak in pytorch_step.peaks(name)]
        table.add_row(name, *(text for peak, times in cells for text in (f"{peak:.1f}", f"{times:,.0f}")))
    return table


def float_table(graphs: dict[str, Int8Graph], board: Board) -> Table:
    """Instructions of a step, beside those of the float build."""
    table = Table(title=f"{board.name}, the scheme of 49 KB; millions of instructions of a step")
    for name in ("network", "int8", "float, full update", "times"):
        table.add_column(name, justify="left" if name == "network" else "right")
    for name, graph in graphs.items():
        ours, plain = measured(graph, scheme_of(graph), Runs(board)).train / 1e6, float_instructions(graph, board)
        table.add_row(name, f"{ours:.1f}", f"{plain:,}", f"{plain / ours:.1f}")
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
        console.print(float_table(graphs, find_board("mps2-an500")))


if __name__ == "__main__":
    main()
