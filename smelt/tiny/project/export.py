"""Writes a folder with a C99 project for a board, from a graph, a scheme and a budget; errors leave no files."""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from smelt.base.errors import BuildError, SmeltError
from smelt.base.eviction import TemporaryFolder, remove_left_over_folders
from smelt.tiny.boards.board import Board
from smelt.tiny.boards.build import BudgetError, Program, build, write_sources
from smelt.tiny.graph import Int8Graph
from smelt.tiny.infer import inference_of
from smelt.tiny.plan import Layout, lay_out
from smelt.tiny.program import Program as Step
from smelt.tiny.program import StepOptions
from smelt.tiny.project.memory_map import as_text, busiest
from smelt.tiny.project.picture import draw
from smelt.tiny.project.texts import makefile, readme
from smelt.tiny.ram import ram_of
from smelt.tiny.render_c import render, trained_bytes
from smelt.tiny.scheme import PRESETS, Scheme, SchemeError, kib, last_layers, memory
from smelt.tiny.step import step_program

MAX_LISTED_TENSORS = 6
"""Number of the largest values that an error about memory names."""


@dataclass(frozen=True)
class Budget:
    """Budgets in bytes: RAM in total, flash, and the stack as a part of RAM."""

    ram: int = 256 << 10
    flash: int = 1 << 20
    stack: int = 4096


@dataclass(frozen=True)
class Exported:
    """A project.

    Attributes:
        program: the training step that its C was made from.
        ram, flash: bytes in total, with the stack; from the linker if the board's compiler is installed, else from the
            planner, which does not know the size of code.
        linked: whether the figures are the linker's: for bare boards whose compiler is installed.
    """

    folder: Path
    program: Step
    identity: int
    ram: int
    flash: int
    linked: bool

    def program_of_inference(self) -> Step:
        """The inference program, which reads trained parameters from RAM."""
        return inference_of(self.program)


def export(
    graph: Int8Graph,
    scheme: Scheme,
    folder: str | Path,
    board: Board,
    budget: Budget | None = None,
    options: StepOptions | None = None,
) -> Exported:
    """Write a project: model.c and model.h, checkpoints, the board's files, a Makefile, a README and a memory map.

    The folder appears whole or not at all. Until then files are in a hidden folder beside it; what a killed export left
    of one is removed by an export to the same folder an hour later.

    Args:
        graph: ends in a float classifier.
        folder: is created; it may exist if it is empty.

    Raises:
        BudgetError: RAM or flash does not suffice; names the values that take most and the nearest scheme that fits.
        SchemeError, OptionError: the scheme or the options do not fit the graph.
        SmeltError: the folder cannot be written, or is not empty.
    """
    budget, out = budget or Budget(), Path(folder)
    _look_at(out)
    step = step_program(graph, scheme, options)
    layout = lay_out(step)
    infer = inference_of(step)
    texts = render(infer, step)
    arena = max(layout.size, lay_out(infer).size)
    rows = {"arena": arena, "trained parameters": trained_bytes(step), "stack": budget.stack}
    if board.bare and sum(rows.values()) > budget.ram:
        raise _over(graph, scheme, step, layout, rows, budget, options)
    identity = zlib.crc32((texts["model.c"] + texts["model.h"]).encode())
    texts |= _own_texts(identity)
    try:
        prefix, parent = f".{out.absolute().name[:_LONGEST]}.smelt-", out.absolute().parent
        remove_left_over_folders(prefix, parent)
        with TemporaryFolder(prefix, parent, private=False) as made:
            inside = made / "project"
            inside.mkdir()
            sources = write_sources(board, texts, inside, flash=budget.flash, ram=budget.ram, stack=budget.stack)
            built = _linked(board, sources, inside)
            ram, flash = (built.ram, built.flash) if built else (sum(rows.values()), 0)
            limits = {"RAM": budget.ram, "flash": budget.flash}
            (inside / "memory.txt").write_text(as_text(step, layout, {**rows, "flash": flash}, limits))
            draw(step, layout, inside / "memory.png")
            (inside / "Makefile").write_text(makefile(board, sources))
            (inside / "README.md").write_text(readme(graph, scheme, board, budget.ram, budget.flash, ram, flash))
            os.replace(inside, out)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise SmeltError(
                f"while the project was made, something else was written to {out}", hint=_ANOTHER
            ) from error
        raise _not_written(out, error) from error
    return Exported(out, step, identity, ram, flash, built is not None)


_ANOTHER = "another folder, or remove what is in it"
_LONGEST = 100
"""Number of characters of a folder's name in that of the hidden folder beside it."""


def _look_at(out: Path) -> None:
    try:
        if out.is_symlink() or (out.exists() and not out.is_dir()):
            raise SmeltError(f"{out} is there and is no folder")
        if out.exists() and any(out.iterdir()):
            raise SmeltError(f"the folder {out} is not empty", hint=_ANOTHER)
        if not out.absolute().parent.is_dir():
            raise SmeltError(f"there is no folder {out.absolute().parent}")
    except OSError as error:
        raise _not_written(out, error) from error


def _not_written(out: Path, error: OSError) -> SmeltError:
    return SmeltError(
        f"{out} cannot be written",
        why=error.strerror or str(error),
        hint="a folder that may be written to, on a disk with room",
    )


def _own_texts(identity: int) -> dict[str, str]:
    here = files("smelt.tiny.project")
    found = {name: here.joinpath(name).read_text() for name in ("checkpoint.h", "checkpoint.c", "main.c")}
    found["project.h"] = (
        "/* Tells checkpoints of this model from those of others. */\n"
        f"#ifndef PROJECT_H\n#define PROJECT_H\n#define PROJECT_IDENTITY {identity:#010x}u\n#endif\n"
    )
    return found


def _linked(board: Board, sources: list[str], folder: Path) -> Program | None:
    """The linked program, for its sizes; None if the board is not bare or its compiler is not installed. The built
    files are removed.
    """
    if not board.bare:
        return None
    try:
        board.find_compiler()
    except BuildError:
        return None
    built = build(board, sources, folder)
    built.path.unlink()
    return built


def _over(
    graph: Int8Graph,
    scheme: Scheme,
    step: Step,
    layout: Layout,
    rows: dict[str, int],
    budget: Budget,
    options: StepOptions | None,
) -> BudgetError:
    number, tensors_in_arena = busiest(step, layout)
    call = step.calls[number]
    during = call.kernel + (f" of {call.op.name}" if call.op else "")
    shown = [f"{name} {size:,} B" for name, size in rows.items()]
    shown += [
        f"in the arena during {during}: "
        + ", ".join(f"{n} {size:,} B" for n, size in tensors_in_arena[:MAX_LISTED_TENSORS])
    ]
    parameters = sorted(step.trained.values(), key=lambda one: -one.bytes)[:3]
    shown += ["trained: " + ", ".join(f"{one.name} {one.bytes:,} B" for one in parameters)]
    fits = largest_fitting_scheme(graph, scheme, budget, options)
    hint = (
        f"the scheme {fits} takes {ram_of(graph, fits, budget.stack, options):,} B"
        if fits
        else ("no scheme fits, not even the classifier alone: a smaller model, smaller images or a larger budget")
    )
    return BudgetError(
        f"scheme {scheme.name!r} takes {sum(rows.values()):,} B of RAM, the budget is {budget.ram:,} B",
        why="\n       ".join(shown),
        hint=hint,
    )


def largest_fitting_scheme(
    graph: Int8Graph, scheme: Scheme, budget: Budget, options: StepOptions | None = None
) -> Scheme | None:
    """The largest scheme (by the memory model) among the presets, `bias-K` and `last-K` that is smaller than `scheme`
    and fits the budget.

    Presets are tried one by one, the others by bisection, which may miss a scheme where planner and memory model order
    two schemes differently.
    """
    limit = memory(graph, scheme).total
    sized = sorted(((memory(graph, one).total, one.name, one) for one in _candidates(graph)), key=lambda one: one[:2])
    smaller = [(total, one) for total, _, one in sized if total < limit]

    def fits(one: Scheme) -> bool:
        return ram_of(graph, one, budget.stack, options) <= budget.ram

    presets = [one for one in reversed(smaller) if one[1].name in PRESETS]
    found = next((one for one in presets if fits(one[1])), (-1, None))
    others = [one for one in smaller if one[1].name not in PRESETS and one[0] > found[0]]
    low, high = 0, len(others)
    while low < high:
        middle = (low + high) // 2
        if fits(others[middle][1]):
            low, found = middle + 1, others[middle]
        else:
            high = middle
    return found[1]


def _candidates(graph: Int8Graph) -> Iterator[Scheme]:
    for preset in PRESETS.values():
        try:
            preset.check(graph)
        except SchemeError:
            continue
        yield preset
    yield Scheme("classifier")
    for count in range(1, len(graph.layers) + 1):
        yield Scheme(f"bias-{count}", count)
        yield last_layers(graph, count)


def describe(made: Exported, scheme: Scheme, board: Board) -> str:
    """A line that sums up the project for the user."""
    sizes = f"{kib(made.ram)} of RAM" + (f", {kib(made.flash)} of flash" if made.flash else "")
    unchecked_note = (
        f"; flash is not checked: {board.compiler} is not installed" if board.bare and not made.linked else ""
    )
    return f"{made.folder}: {scheme}: {sizes}{unchecked_note}"
