"""Runs a program for a board under its emulator, with a time limit; a fault raises an error with its location and
cause.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from smelt.base.errors import SmeltError
from smelt.tiny.boards.build import Program

FAULT_EXIT = 97
"""The exit status of a program that faulted: BOARD_FAULT_EXIT in fault.h."""

_FAULT = re.compile(r"BOARD FAULT cause=(\w+) pc=(\w+) address=(\w+) sp=(\w+)")
_NO_ADDRESS = 0xFFFF_FFFF

_ARM_CAUSES = (
    (0, "execution from memory that holds no code"),
    (1, "access outside of RAM and flash, or a write to flash"),
    (3, "a return from an exception that could not read its stack"),
    (4, "an exception that could not write its stack"),
    (5, "floating-point state that could not be written to the stack"),
    (8, "an instruction that could not be fetched"),
    (9, "an access that the bus refuses"),
    (10, "an access that the bus refuses"),
    (12, "a bus error on the stack"),
    (16, "an undefined instruction"),
    (17, "a branch to an address that is no Thumb code"),
    (19, "an instruction of a coprocessor that is off or absent"),
    (24, "an unaligned access"),
    (25, "a division by zero"),
)
"""Bits of the configurable fault status register (Armv7-M Architecture Reference Manual, B3.2.15)."""

_RISCV_CAUSES = {
    0: "execution at an odd address",
    1: "execution from memory that holds no code",
    2: "an undefined instruction",
    3: "a breakpoint",
    4: "an unaligned read",
    5: "a read outside of RAM and flash",
    6: "an unaligned write",
    7: "a write outside of RAM",
}
"""Exception codes of mcause (The RISC-V Instruction Set Manual, volume II, table 3.6)."""


class EmulationError(SmeltError):
    """A program on a board did not end normally."""


class BoardFault(EmulationError):
    """A program on a board caused a processor fault.

    Attributes:
        kind: "stack overflow", or the cause that the processor reports.
        address: the address of the read or write that failed; None if the processor does not report it.
        pc: the address of the instruction; None if it is not known.
    """

    def __init__(self, program: Program, kind: str, address: int | None, pc: int | None) -> None:
        self.kind, self.address, self.pc = kind, address, pc
        where = None if pc is None else program.function_at(pc) or f"instruction {pc:#010x}"
        at = "" if address is None else f" at address {address:#010x}"
        hint = "more stack" if kind == "stack overflow" else "`arm-none-eabi-objdump -dS program.elf`, or gdb"
        super().__init__(f"the program on {program.board.name} faulted: {kind}{at}", at=where, hint=hint)


@dataclass(frozen=True)
class Run:
    """The result of running a program.

    Attributes:
        output: the program's text on the console.
        folder: the folder in which the program read and wrote files.
    """

    output: str
    folder: Path

    def numbers(self) -> dict[str, int]:
        """The `name=value` pairs of the output."""
        return {name: int(value) for name, value in re.findall(r"\b(\w+)=(-?\d+)\b", self.output)}


def run(program: Program, folder: Path | None = None, limit_s: float = 60.0) -> Run:
    """Run a program to its end.

    Args:
        folder: the folder in which the program reads and writes files; None: the folder in which it was built.
        limit_s: seconds after which the program is stopped.

    Raises:
        BoardFault: the program faulted.
        EmulationError: the program exceeded the limit, or its exit status is not 0.
        BuildError: the emulator is not installed, or the board has none.
    """
    folder = program.path.parent if folder is None else folder
    before = program.board.find_emulator() if program.board.bare else ()
    command = [*before, str(program.path.absolute())]
    try:
        ran = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired as error:
        raise EmulationError(
            f"the program on {program.board.name} was stopped after {limit_s:g} s", hint="a longer `limit_s`"
        ) from error
    except OSError as error:
        raise EmulationError(f"{command[0]} cannot be run", why=error.strerror or str(error)) from error
    if (fault := _FAULT.search(ran.stdout)) is not None and ran.returncode == FAULT_EXIT:
        raise _fault(program, *(int(value, 16) for value in fault.groups()))
    if ran.returncode:
        why = (ran.stdout + ran.stderr).strip()[-800:]
        raise EmulationError(f"the program on {program.board.name} ended with status {ran.returncode}", why=why or None)
    return Run(ran.stdout, folder)


def _fault(program: Program, cause: int, pc: int, address: int, sp: int) -> BoardFault:
    low = program.board.ram_origin
    assert low is not None
    arm = "arm" in program.board.compiler
    kind = _arm_cause(cause) if arm else _RISCV_CAUSES.get(cause, f"exception {cause}")
    bad_address = None if address == _NO_ADDRESS else address
    # The stack is the lowest part of RAM: a pointer below it has left it.
    if sp < low:
        kind = "stack overflow"
    return BoardFault(program, kind, bad_address, None if pc == _NO_ADDRESS else pc)


def _arm_cause(cause: int) -> str:
    return next((text for bit, text in _ARM_CAUSES if cause >> bit & 1), f"fault status {cause:#010x}")
