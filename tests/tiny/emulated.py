"""Boards whose compiler and emulator are installed; tests of others are skipped with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from smelt.base.errors import BuildError
from smelt.tiny.boards.board import Board, emulated, find_board
from smelt.tiny.boards.build import Program, build, write_sources

EMULATED = tuple(emulated())


def board_or_skip(name: str) -> Board:
    """The board of a name; the test is skipped where it cannot be built for or run."""
    board = find_board(name)
    try:
        board.find_compiler()
        if board.bare:
            board.find_emulator()
    except BuildError as error:
        pytest.skip(str(error))
    return board


def program(board: Board, text: str, folder: Path, **budget: int) -> Program:
    """A program of one C file."""
    return build(board, write_sources(board, {"main.c": text}, folder, **budget), folder, ("-Werror",))
