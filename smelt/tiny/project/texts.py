"""The Makefile and the README of a project."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.tiny.boards.board import Board
from smelt.tiny.graph import Int8Graph
from smelt.tiny.scheme import Scheme, kib


def makefile(board: Board, sources: Sequence[str]) -> str:
    """The text of a Makefile that builds `program.elf`; `make run` starts it under the board's emulator, or directly if
    the board is this machine.
    """
    run = " ".join((*board.emulator, "./program.elf"))
    script = " link.ld" if board.bare else ""
    lines = [
        f"# {board.describe}. Debian: apt-get install {board.package} {board.emulator_package}".rstrip(),
        f"CC = {board.compiler}",
        f"CFLAGS = {' '.join(board.compile_flags())}",
        f"LDFLAGS = {' '.join(board.link_flags())}",
        f"SOURCES = {' '.join(sources)}",
        "",
        f"program.elf: $(SOURCES) $(wildcard *.h){script}",
        "\t$(CC) $(CFLAGS) $(SOURCES) -o $@ $(LDFLAGS)",
        "",
    ]
    if board.emulator or not board.bare:
        lines += ["run: program.elf", f"\t{run}", ""]
    return "\n".join([*lines, "clean:", "\trm -f program.elf", "", ".PHONY: run clean", ""])


def readme(
    graph: Int8Graph, scheme: Scheme, board: Board, ram_budget: int, flash_budget: int, ram: int, flash: int
) -> str:
    """The text of a README: the purpose of the folder and how to use it."""
    size = f"{kib(ram)} of {kib(ram_budget)} RAM" + (f", {kib(flash)} of {kib(flash_budget)} flash" if flash else "")
    image = " x ".join(map(str, graph.tensors[graph.input].shape))
    run = (
        "`make run` runs it; it reads `commands.bin` and writes `answers.bin` (`main.c`)."
        if (board.emulator or not board.bare)
        else "`silent.c` has the functions that your board must fill in: files for checkpoints, a console."
    )
    budget = "`link.ld` has the budget" if board.bare else "they use the machine's C library"
    return f"""# {graph.name} on {board.name}

Written by smelt: inference and training of {graph.name} on {board.describe}, in C99 without an allocator, an operating
system or a library. Scheme: {scheme}. It takes {size}; `memory.txt` and `memory.png` say who lives where and when.

`make` builds `program.elf`. {run}

- `model.h`, `model.c`: `infer()`, `train_step(label, rate)`, `model_input()` for the image ({image} int8), and
  `model_trained`, all that trains
- `tiny_*.h`: the kernels that they call
- `checkpoint.h`, `checkpoint.c`: `model_save()` and `model_load()`: two records with version, sequence and CRC; the
  older one survives a torn write
- `main.c`: an example, to be replaced by your program
- `board.h` and the rest: start-up, guards and files of the board; {budget}
"""
