"""Launches of generated kernels as data: the kernel, the size of the grid, and the arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smelt.abi.kernel_source import Config, KernelSource
from smelt.base.errors import CompileError

Extent = tuple[int, str | None]
"""(number of elements along one dimension of the grid, name of the constant for the elements of a program, or None: one
element).
"""

Argument = tuple[int, int] | int
"""(slot, bytes), which means the pointer table.slots[slot] + bytes; or an integer."""

Launch = tuple[int, Sequence[Extent], Sequence[Argument]]
"""(index of the kernel, up to three extents, arguments in the order of the signature)."""

_MAX_PROGRAMS = (2**31 - 1, 65535, 65535)


@dataclass(frozen=True)
class PlannedLaunch:
    """A launch with one of its kernel's configurations."""

    source: KernelSource
    config: Config
    grid: tuple[int, int, int]
    arguments: tuple[Argument, ...]

    def sizes(self) -> list[int]:
        """Returns the sizes among the arguments, on which the kernel's time depends."""
        pairs = zip(self.source.signature, self.arguments, strict=True)
        return [value for (name, _), value in pairs if isinstance(value, int) and name.startswith("z")]


def plan_launch(
    source: KernelSource, config: Config, extents: Sequence[Extent], arguments: Sequence[Argument]
) -> PlannedLaunch:
    """Returns the complete launch.

    Raises:
        CompileError: the grid is larger than a GPU allows, or arguments do not match the signature.
    """
    constants = dict(config.constants)
    sizes = [-(-number // constants[name]) if name is not None else number for number, name in extents]
    grid = (*sizes, *[1] * (3 - len(sizes)))
    for axis, (size, most) in enumerate(zip(grid, _MAX_PROGRAMS, strict=True)):
        if not 0 <= size <= most:
            raise CompileError(f"kernel {source.name!r} needs {size} programs along dimension {axis} of the grid")
    _check(source, arguments)
    return PlannedLaunch(source, config, (grid[0], grid[1], grid[2]), tuple(arguments))


def _check(source: KernelSource, arguments: Sequence[Argument]) -> None:
    if len(arguments) != len(source.signature):
        raise CompileError(
            f"kernel {source.name!r} takes {len(source.signature)} arguments, a launch gives {len(arguments)}"
        )
    for (name, kind), argument in zip(source.signature, arguments, strict=True):
        if isinstance(argument, tuple) != kind.startswith("*"):
            raise CompileError(f"kernel {source.name!r}: {argument} for parameter {name} of type {kind}")
        if kind == "i32" and not -(2**31) <= argument < 2**31:  # type: ignore[operator]
            raise CompileError(f"kernel {source.name!r}: {argument} for parameter {name} of 32 bits")
