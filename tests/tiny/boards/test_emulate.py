"""Programs on emulated boards: what they read and write, what is counted, and how faults are told."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from smelt.base.errors import BuildError
from smelt.tiny.boards.board import Board, find_board
from smelt.tiny.boards.emulate import BoardFault, EmulationError, run
from tests.tiny.emulated import EMULATED, board_or_skip, program

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(params=("mps2-an500", "rv32-virt"))  # the other Cortex-M has the same start-up code
def board(request: pytest.FixtureRequest) -> Board:
    return board_or_skip(request.param)


@pytest.fixture(params=(*EMULATED, "host"))
def any_board(request: pytest.FixtureRequest) -> Board:
    return board_or_skip(request.param)


COPY = """
#include "board.h"
static uint8_t data[1000];
static int32_t initial[3] = {1, -2, 3};
int main(void)
{
    int from = board_open("in.bin", BOARD_READ), to = board_open("out.bin", BOARD_WRITE);
    if (from < 0 || to < 0 || board_open("absent.bin", BOARD_READ) >= 0)
        return 1;
    const uint32_t got = board_read(from, data, sizeof data);
    for (uint32_t i = 0; i < got; i++)
        data[i] = (uint8_t)(data[i] * initial[2]);
    const uint32_t put = board_save(to, data, got);
    board_close(from), board_close(to);
    board_write("done\\n");
    return put == got && initial[1] == -2 ? 0 : 2;
}
"""


def test_files_and_console(any_board: Board, tmp_path: Path) -> None:
    given = bytes(range(250)) * 3
    (tmp_path / "in.bin").write_bytes(given)
    ran = run(program(any_board, COPY, tmp_path))
    assert ran.output == "done\n"
    assert (tmp_path / "out.bin").read_bytes() == bytes(one * 3 % 256 for one in given)


def test_a_status_is_reported(any_board: Board, tmp_path: Path) -> None:
    text = '#include "board.h"\nint main(void) { board_write("broken"); return 7; }'
    with pytest.raises(EmulationError, match="ended with status 7(.|\n)*broken"):
        run(program(any_board, text, tmp_path))


def test_an_endless_program_is_stopped(board: Board, tmp_path: Path) -> None:
    with pytest.raises(EmulationError, match=r"stopped after 0\.5 s"):
        run(program(board, "int main(void) { for (;;) ; }", tmp_path), limit_s=0.5)


STRAY = """
#include <stdint.h>
static const int32_t constant[4] = {1, 2, 3, 4};
__attribute__((noinline)) static void stray(uintptr_t address) { *(volatile uint32_t *)address = 1; }
static volatile uintptr_t where = ADDRESS;
int main(void) { stray(where); return constant[1] == 2 ? 0 : 1; }
"""


@pytest.mark.parametrize("offset", ["end", "far", "flash", "null"])
def test_a_stray_write_faults(board: Board, offset: str, tmp_path: Path) -> None:
    ram = 256 << 10
    assert board.ram_origin is not None and board.flash_origin is not None
    address = {
        "end": board.ram_origin + ram,
        "far": 0x6000_0000,
        "flash": board.flash_origin + 0x400,
        "null": 0x10,
    }[offset]
    with pytest.raises(BoardFault, match=rf"at address {address:#010x}\n  at:  stray \(main.c:4\)") as told:
        run(program(board, STRAY.replace("ADDRESS", hex(address)), tmp_path, ram=ram))
    assert told.value.address == address
    assert "outside of RAM" in told.value.kind


@pytest.mark.parametrize(("ram", "last"), [(256 << 10, 256 << 10), (200 << 10, 224 << 10), (96 << 10, 96 << 10)])
def test_the_guard_ends_with_ram(board: Board, ram: int, last: int, tmp_path: Path) -> None:
    """To the byte on RISC-V, to an eighth of a power of two on Arm; the last word before it can be written."""
    assert board.ram_origin is not None
    end = board.ram_origin + (last if "arm" in board.compiler else ram)
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    run(program(board, STRAY.replace("ADDRESS", hex(end - 4)), tmp_path / "in", ram=ram))
    with pytest.raises(BoardFault, match="outside of RAM"):
        run(program(board, STRAY.replace("ADDRESS", hex(end)), tmp_path / "out", ram=ram))


DEEP = """
#include "board.h"
__attribute__((noinline)) static int deep(volatile int n)
{
    volatile char room[256];
    room[0] = (char)n;
    return n ? deep(n - 1) + room[0] : 0;
}
int main(void) { deep(DEPTH); board_write(board_stack_high_water() > 256 * DEPTH ? "deep" : "flat"); return 0; }
"""


def test_a_full_stack_faults(board: Board, tmp_path: Path) -> None:
    assert run(program(board, DEEP.replace("DEPTH", "20"), tmp_path)).output == "deep"
    with pytest.raises(BoardFault, match="stack overflow") as told:
        run(program(board, DEEP.replace("DEPTH", "1000"), tmp_path))
    assert told.value.kind == "stack overflow"
    assert "more stack" in str(told.value)


def test_the_stack_is_measured(board: Board, tmp_path: Path) -> None:
    text = """
    #include "board.h"
    static void number(const char *name, uint32_t value)
    {
        char text[11];
        int at = 10;
        text[at] = 0;
        do text[--at] = (char)('0' + value % 10); while (value /= 10);
        board_write(name), board_write(text + at), board_write("\\n");
    }
    __attribute__((noinline)) static void take(void)
    {
        volatile char room[3000];
        room[0] = room[2999] = 1;
    }
    int main(void)
    {
        number("before=", board_stack_high_water());
        take();
        number("after=", board_stack_high_water());
        return 0;
    }
    """
    found = run(program(board, text, tmp_path)).numbers()
    assert 0 < found["before"] < 400
    assert 3000 <= found["after"] < 3000 + 400


def test_instructions_are_counted(board: Board, tmp_path: Path) -> None:
    """A loop of two instructions, 100 000 times, within granules of 40."""
    loop = {
        "arm": "mov r1, %0\\n1: subs r1, #1\\nbne 1b",
        "riscv": "mv t0, %0\\n1: addi t0, t0, -1\\nbnez t0, 1b",
    }["arm" if "arm" in board.compiler else "riscv"]
    clobbered = "r1" if "arm" in board.compiler else "t0"
    text = f"""
    #include "board.h"
    int main(void)
    {{
        const uint64_t before = board_instructions();
        __asm__ volatile("{loop}" :: "r"(100000) : "{clobbered}", "cc");
        const uint64_t taken = board_instructions() - before;
        return board_instructions() < 100000000 && taken >= 200000 - 40 && taken <= 200000 + 200 ? 0 : 1;
    }}
    """
    run(program(board, text, tmp_path))


def test_other_faults_are_reported(board: Board, tmp_path: Path) -> None:
    text = '#include "board.h"\nint main(void) { __asm__ volatile(".short 0xde00, 0" ::: "memory"); return 0; }'
    if "riscv" in board.compiler:
        text = text.replace(".short 0xde00, 0", "unimp")
    with pytest.raises(BoardFault, match="undefined instruction"):
        run(program(board, text, tmp_path))
    jump = "int main(void) { static int data[4]; ((void (*)(void))((char *)data + 1))(); return 0; }"
    if "riscv" in board.compiler:
        jump = jump.replace(" + 1", "")
    with pytest.raises(BoardFault, match="holds no code"):
        run(program(board, jump, tmp_path))


def test_a_package_that_is_not_installed_is_reported(tmp_path: Path) -> None:
    board = board_or_skip("host")
    absent = dataclasses.replace(find_board("mps2-an500"), emulator=("qemu-system-none",), compiler="none-gcc")
    with pytest.raises(BuildError, match="none-gcc is not installed\n  try: apt-get install gcc-arm-none-eabi"):
        program(absent, "", tmp_path)
    built = program(board, "int main(void) { return 0; }", tmp_path)
    with pytest.raises(BuildError, match="qemu-system-none is not installed\n  try: apt-get install qemu-system-arm"):
        run(dataclasses.replace(built, board=absent))
    with pytest.raises(BuildError, match="no emulator of generic-cortex-m7"):
        run(dataclasses.replace(built, board=find_board("generic-cortex-m7")))


def test_large_zeros_do_not_clear_code(tmp_path: Path) -> None:
    """Zeros are loaded where they lie, not behind the initial values: this board's flash repeats after 4 MiB."""
    board = dataclasses.replace(board_or_skip("mps2-an500"), ram_origin=0x6000_0000)
    text = "char zeros[6 << 20]; int value = 3; int main(void) { return zeros[5 << 20] + value - 3; }"
    assert run(program(board, text, tmp_path, ram=8 << 20)).output == ""
