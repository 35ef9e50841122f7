"""Compiles and links C files into a program for a board; errors state by how many bytes a budget is exceeded."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from smelt.base.errors import BuildError
from smelt.tiny.boards.board import Board

LIMIT_S = 600.0


class BudgetError(BuildError):
    """A program that does not fit its flash or RAM."""


@dataclass(frozen=True)
class Program:
    """A linked program.

    Attributes:
        flash: bytes of code, constants and initial values; 0 on a machine with an operating system.
        ram: bytes of stack, initialised data and zero-initialised data; 0 on a machine with an operating system.
    """

    board: Board
    path: Path
    flash: int
    ram: int

    def function_at(self, address: int) -> str | None:
        """Name and line of the function at an address; None if the tools or debug information are missing."""
        tool = shutil.which(self.board.compiler.removesuffix("gcc") + "addr2line")
        if tool is None:
            return None
        ran = subprocess.run([tool, "-f", "-e", self.path, hex(address)], capture_output=True, text=True)
        name, _, line = ran.stdout.strip().partition("\n")
        if ran.returncode or name in ("", "??"):
            return None
        return f"{name} ({line.rsplit('/', 1)[-1]})"


def write_sources(
    board: Board,
    texts: Mapping[str, str],
    folder: Path,
    *,
    flash: int = 1 << 20,
    ram: int = 256 << 10,
    stack: int = 8192,
) -> list[str]:
    """Write a program and its board's files into a folder; returns the names of the C files.

    Raises:
        BuildError: as `Board.texts`, or two files have one name.
    """
    own = board.texts(flash, ram, stack)
    if both := own.keys() & texts.keys():
        raise BuildError(f"the board {board.name} has files of these names: {', '.join(sorted(both))}")
    for name, text in {**own, **texts}.items():
        (folder / name).write_text(text)
    return sorted(name for name in {**own, **texts} if name.endswith(".c"))


def build(board: Board, sources: Sequence[str], folder: Path, flags: Sequence[str] = ()) -> Program:
    """Compile and link files of a folder into `program.elf` there.

    Raises:
        BudgetError: it is larger than the board's flash or RAM.
        BuildError: the compiler is missing or refuses a file.
    """
    out = "program.elf"
    compiler = board.find_compiler()
    command = [compiler, *board.compile_flags(), *flags, *sources, "-o", out, *board.link_flags()]
    try:
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{board.compiler} was stopped after {LIMIT_S:.0f} s") from error
    except OSError as error:
        raise BuildError(f"{compiler} cannot be run", why=error.strerror or str(error)) from error
    if ran.returncode or not (folder / out).exists():
        _refuse(board, ran.stderr.strip() or f"it ended with status {ran.returncode} and no message")
    flash, ram = _sizes(board, folder / out) if board.bare else (0, 0)
    return Program(board, folder / out, flash, ram)


def _refuse(board: Board, linker_output: str) -> None:
    over = {
        region: int(bytes_) for region, bytes_ in re.findall(r"region `(\w+)' overflowed by (\d+) bytes", linker_output)
    }
    if over:
        parts = " and ".join(f"{region} by {count:,} bytes" for region, count in over.items())
        raise BudgetError(
            f"the program for {board.name} exceeds {parts}", hint="a smaller scheme, a smaller stack or a larger budget"
        )
    lines = [line for line in linker_output.splitlines() if _TELLS.search(line)] or [linker_output]
    raise BuildError(f"{board.compiler} refuses the program", why="\n".join(lines[:8]))


_TELLS = re.compile(r"error|failed|cannot|undefined reference|No space left")
"""What lines of a compiler's or linker's output that tell of an error have in them."""


def _sizes(board: Board, path: Path) -> tuple[int, int]:
    """Bytes of flash and RAM of a linked program, from its sections."""
    tool = shutil.which(board.compiler.removesuffix("gcc") + "size")
    if tool is None:
        raise BuildError(
            f"the compiler {board.compiler} has no `size` beside it", hint=f"apt-get install {board.package}"
        )
    ran = subprocess.run([tool, "-A", path], capture_output=True, text=True)
    if ran.returncode:
        raise BuildError(f"{tool} cannot read the program that {board.compiler} made", why=ran.stderr.strip() or None)
    sections = {name: int(size) for name, size in re.findall(r"^(\.[\w.]+)\s+(\d+)\s+\d+$", ran.stdout, re.M)}
    flash = sum(sections.get(name, 0) for name in (".text", ".ARM.exidx", ".data"))
    return flash, sum(sections.get(name, 0) for name in (".stack", ".data", ".bss"))
