"""Programs for boards as files: budgets are errors of the linker, and what is wrong is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from smelt.base.errors import BuildError, OptionError
from smelt.tiny.boards.board import BOARDS, Board, find_board
from smelt.tiny.boards.build import BudgetError, build, write_sources
from tests.tiny.emulated import program

BARE = [name for name, board in BOARDS.items() if board.bare]

SIZED = """
#include <stdint.h>
static volatile uint8_t zeros[ZEROS];
static const uint8_t constants[CONSTANTS] = {1};
int main(void) { return zeros[1] + constants[zeros[0]]; }
"""


@pytest.fixture(params=BARE)
def board(request: pytest.FixtureRequest) -> Board:
    found = find_board(request.param)
    try:
        found.find_compiler()
    except BuildError as error:
        pytest.skip(str(error))
    return found


def sized(zeros: int, constants: int) -> str:
    return SIZED.replace("ZEROS", str(zeros)).replace("CONSTANTS", str(constants))


def test_sizes_are_read_from_the_program(board: Board, tmp_path: Path) -> None:
    built = program(board, sized(5000, 7000), tmp_path, stack=4096)
    assert 5000 + 4096 <= built.ram < 5000 + 4096 + 64
    assert 7000 < built.flash < 7000 + 4096


@pytest.mark.parametrize("over", [16, 100_000])
def test_a_program_over_budget_is_not_linked(board: Board, over: int, tmp_path: Path) -> None:
    ram = 64 << 10
    fits = program(board, sized(1000, 1000), tmp_path, ram=ram, stack=4096)
    room = ram - fits.ram
    program(board, sized(1000 + room - 8, 1000), tmp_path, ram=ram, stack=4096)
    with pytest.raises(BudgetError, match=r"exceeds RAM by [\d,]+ bytes"):
        program(board, sized(1000 + room + over, 1000), tmp_path, ram=ram, stack=4096)
    with pytest.raises(BudgetError, match=r"exceeds FLASH by [\d,]+ bytes"):
        program(board, sized(1000, 1000 + over), tmp_path, ram=ram, stack=4096, flash=fits.flash)


def test_wrong_programs_and_budgets_are_errors(board: Board, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="refuses the program(.|\n)*undefined reference to `absent'"):
        program(board, "void absent(void); int main(void) { absent(); return 0; }", tmp_path)
    for budget in ({"ram": 0}, {"stack": 1 << 20}, {"stack": 1001}, {"flash": -1}):
        with pytest.raises(BuildError, match="multiple of 16"):
            write_sources(board, {}, tmp_path, **budget)
    with pytest.raises(BuildError, match="has files of these names: board.h"):
        write_sources(board, {"board.h": ""}, tmp_path)


def test_an_unknown_board_is_an_error() -> None:
    with pytest.raises(OptionError, match="unknown board 'mps2'"):
        find_board("mps2")


def test_every_file_of_a_board_is_there() -> None:
    for board in BOARDS.values():
        texts = board.texts(1 << 20, 1 << 18, 8192)
        assert set(board.sources) <= texts.keys()
        assert ("link.ld" in texts) == board.bare
        assert not any("@" in text for name, text in texts.items() if name == "link.ld")


def test_the_host_is_built_for(tmp_path: Path) -> None:
    board = find_board("host")
    built = build(board, write_sources(board, {"main.c": "int main(void) { return 0; }"}, tmp_path), tmp_path)
    assert built.path.exists()
