"""Records of the supported boards: compiler, flags, files, addresses, emulator."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from smelt.base.errors import BuildError, unknown_name

FLAGS = (
    *("-std=c99", "-O2", "-g", "-Wall", "-Wextra"),
    "-fno-var-tracking-assignments",  # finding where variables are took most of the time; code, lines, types stay
    "-ffp-contract=off",  # no fused multiply-add: the same bits on every board
    *("-fno-strict-aliasing", "-ffunction-sections", "-fdata-sections"),
)
BARE = (
    *("-ffreestanding", "-fno-common", "-I."),
    "-fno-tree-loop-distribute-patterns",  # else GCC turns the loop in memset into a call of memset
)
CORTEX_M7 = ("-mcpu=cortex-m7", "-mthumb", "-mfpu=fpv5-sp-d16", "-mfloat-abi=hard", "-DTINY_MAXMIN=1")
CORTEX_M4 = ("-mcpu=cortex-m4", "-mthumb", "-mfpu=fpv4-sp-d16", "-mfloat-abi=hard")
RV32 = ("-march=rv32imafc_zicsr", "-mabi=ilp32f", "-mcmodel=medany")
ARM_FILES = ("arm.c", "memory.c")


@dataclass(frozen=True)
class Board:
    """A target of projects.

    Attributes:
        compiler: the C compiler's name; `package` installs it on Debian.
        flags: options of the compiler for this processor.
        sources: C files of this package that are linked into programs for this board.
        flash_origin, ram_origin: addresses; None for a machine with an operating system.
        emulator: the command line of the emulator, to which the program's path is appended; () if there is none.
    """

    name: str
    describe: str
    compiler: str
    package: str
    flags: tuple[str, ...]
    sources: tuple[str, ...]
    flash_origin: int | None = None
    ram_origin: int | None = None
    emulator: tuple[str, ...] = ()
    emulator_package: str = ""

    @property
    def bare(self) -> bool:
        """Whether programs run without an operating system."""
        return self.ram_origin is not None

    def compile_flags(self) -> tuple[str, ...]:
        """Options of the compiler for every C file."""
        return (*FLAGS, *(BARE if self.bare else ()), *self.flags)

    def link_flags(self) -> tuple[str, ...]:
        """Options that link objects; a bare board's linker script is `link.ld` in the working folder."""
        bare = ("-nostdlib", "-nostartfiles", "-T", "link.ld", "-Wl,--gc-sections", "-lgcc")
        return bare if self.bare else ()

    def texts(self, flash: int, ram: int, stack: int) -> dict[str, str]:
        """The board's own files by name, for budgets of flash, RAM and stack in bytes.

        Raises:
            BuildError: a budget is not positive, or the stack does not leave room in RAM.
        """
        if min(flash, ram, stack) <= 0 or stack >= ram or stack % 16:
            raise BuildError(
                f"flash of {flash}, RAM of {ram} and a stack of {stack} bytes",
                hint="all above 0; the stack a multiple of 16 that leaves room in RAM",
            )
        folder = files("smelt.tiny.boards")
        headers = ("board.h", "fault.h", "semihosting.h", "string.h") if self.bare else ("board.h",)
        found = {name: folder.joinpath(name).read_text() for name in (*self.sources, *headers)}
        if self.flash_origin is not None and self.ram_origin is not None:
            values = {"FLASH_ORIGIN": hex(self.flash_origin), "RAM_ORIGIN": hex(self.ram_origin)}
            values |= {"FLASH": str(flash), "RAM": str(ram), "STACK": str(stack)}
            found["link.ld"] = _filled(folder.joinpath("memory.ld").read_text(), values)
        return found

    def find_compiler(self) -> str:
        """The path of the compiler.

        Raises:
            BuildError: it is not installed.
        """
        return _found(self.compiler, f"a C compiler for {self.name}", self.package)

    def find_emulator(self) -> tuple[str, ...]:
        """The command of the emulator.

        Raises:
            BuildError: it is not installed, or the board has none.
        """
        if not self.emulator:
            raise BuildError(f"there is no emulator of {self.name}", hint=f"one of {', '.join(emulated())}")
        return (_found(self.emulator[0], f"an emulator of {self.name}", self.emulator_package), *self.emulator[1:])


def _found(command: str, what: str, package: str) -> str:
    path = shutil.which(command)
    if path is None:
        raise BuildError(
            f"{what} is needed, and {command} is not installed",
            hint=f"apt-get install {package} (Debian, Ubuntu; `tools/install_tiny.sh` of a checkout does it)",
        )
    return path


def _filled(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


_QEMU = (
    *("-icount", "shift=0"),  # an instruction takes 1 ns of the emulator's time: timers count instructions
    *("-display", "none", "-monitor", "none", "-serial", "none", "-nodefaults", "-no-reboot"),
    *("-chardev", "stdio,id=console", "-semihosting-config", "enable=on,target=native,chardev=console"),
    "-kernel",
)


def _mps2(machine: str) -> tuple[str, ...]:
    return ("qemu-system-arm", "-M", machine, *_QEMU)


_ARM = {"compiler": "arm-none-eabi-gcc", "package": "gcc-arm-none-eabi", "emulator_package": "qemu-system-arm"}

BOARDS: Mapping[str, Board] = {
    board.name: board
    for board in (
        Board(
            name="mps2-an500",
            describe="Cortex-M7 of Arm's MPS2, as QEMU emulates it",
            flags=CORTEX_M7,
            sources=(*ARM_FILES, "semihosted.c"),
            flash_origin=0,
            ram_origin=0x2000_0000,
            emulator=_mps2("mps2-an500"),
            **_ARM,
        ),
        Board(
            name="mps2-an386",
            describe="Cortex-M4 of Arm's MPS2, as QEMU emulates it",
            flags=CORTEX_M4,
            sources=(*ARM_FILES, "semihosted.c"),
            flash_origin=0,
            ram_origin=0x2000_0000,
            emulator=_mps2("mps2-an386"),
            **_ARM,
        ),
        Board(
            name="generic-cortex-m7",
            describe="any Cortex-M7 with a single-precision FPU; flash and RAM where STM32's are",
            flags=CORTEX_M7,
            sources=(*ARM_FILES, "silent.c"),
            flash_origin=0x0800_0000,
            ram_origin=0x2000_0000,
            compiler="arm-none-eabi-gcc",
            package="gcc-arm-none-eabi",
        ),
        Board(
            name="rv32-virt",
            describe="32-bit RISC-V (rv32imafc), as QEMU's virt machine emulates it",
            compiler="riscv64-unknown-elf-gcc",
            package="gcc-riscv64-unknown-elf",
            flags=RV32,
            sources=("riscv.c", "memory.c", "semihosted.c"),
            flash_origin=0x8000_0000,
            ram_origin=0x8010_0000,
            emulator=("qemu-system-riscv32", "-M", "virt", "-bios", "none", *_QEMU),
            emulator_package="qemu-system-misc",
        ),
        Board(
            name="host",
            describe="the machine at hand",
            compiler="gcc",
            package="gcc",
            flags=(),
            sources=("host.c",),
        ),
    )
}


def emulated() -> list[str]:
    """Names of the boards that an emulator runs."""
    return [board.name for board in BOARDS.values() if board.emulator]


def find_board(name: str) -> Board:
    """The board with this name.

    Raises:
        OptionError: there is none.
    """
    if name not in BOARDS:
        raise unknown_name("board", name, BOARDS)
    return BOARDS[name]
