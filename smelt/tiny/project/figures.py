"""`smelt tiny figures`: what training steps of a network take, by the planner, and on an emulated board."""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path

import numpy as np
from rich import box
from rich.table import Table

from smelt.base.errors import SmeltError
from smelt.tiny.boards.board import Board
from smelt.tiny.boards.build import BudgetError, build
from smelt.tiny.graph import Int8Graph
from smelt.tiny.plan import lay_out
from smelt.tiny.program import Program, StepOptions
from smelt.tiny.project.commands import Answers, Commands, send
from smelt.tiny.project.export import Budget, export
from smelt.tiny.render_c import trained_bytes
from smelt.tiny.scheme import PRESETS, Scheme, named
from smelt.tiny.simulate import Training
from smelt.tiny.step import step_program

RATE = 0.01
SECONDS_A_STEP = 4.0
"""The time limit of an emulated step, beside a minute for the start."""


@dataclass(frozen=True)
class Planned:
    """Bytes by the planner.

    Attributes:
        arena: the arena; `bound` is the least that any layout of its lifetimes takes.
        trained: parameters that train, with the classifier's.
        held: arena and trained parameters of the same step without reordering: all gradients are held until its end.
    """

    arena: int
    bound: int
    trained: int
    held: int


@dataclass(frozen=True)
class Runs:
    """How steps are measured on a board.

    Attributes:
        steps: the number of training steps.
        check: whether all of them are compared with the simulation, which takes seconds a step for a large network.
    """

    board: Board
    budget: Budget = field(default_factory=lambda: Budget(stack=8192))
    steps: int = 1
    check: bool = False


@dataclass(frozen=True)
class Measured:
    """A project on an emulated board.

    Attributes:
        ram, flash: bytes, by the linker; RAM with the whole stack.
        stack: bytes of the stack in use.
        infer, train: instructions of an inference and of the first training step, exact to 40 on Arm.
        export_s, steps_s: seconds of processor time of the export, and of the inference and the steps in the emulator.
    """

    ram: int
    flash: int
    stack: int
    infer: int
    train: int
    export_s: float
    steps_s: float


def usual_schemes(graph: Int8Graph) -> list[Scheme]:
    """The classifier alone, the network's presets or else a scheme by rule (`within-49KB`), and the full update."""
    own = [name for name in PRESETS if name.partition("-")[0] == graph.name.partition("-")[0]]
    return [named(name, graph) for name in ("classifier", *(own or ["within-49KB"]), "full")]


def planned(graph: Int8Graph, scheme: Scheme, options: StepOptions | None = None) -> Planned:
    """What the planner lays out for a training step."""
    options = options or StepOptions()
    program = step_program(graph, scheme, options)
    held = step_program(graph, scheme, replace(options, held=True))
    layout = lay_out(program)
    return Planned(layout.size, layout.least, trained_bytes(program), lay_out(held).size + trained_bytes(held))


def measured(graph: Int8Graph, scheme: Scheme, runs: Runs, options: StepOptions | None = None) -> Measured:
    """Export, build, infer once and train under the emulator.

    Raises:
        BuildError: the board's compiler or emulator is not installed, or it has none.
        BudgetError: the scheme takes more than the budget.
        SmeltError: with `check`, a loss, a logit or a parameter differs from the simulation's.
    """
    runs.board.find_compiler()
    runs.board.find_emulator()
    with tempfile.TemporaryDirectory() as folder:
        began = _processor_seconds()
        made = export(graph, scheme, Path(folder) / "project", runs.board, runs.budget, options)
        exported = _processor_seconds() - began
        built = build(runs.board, sorted(path.name for path in made.folder.glob("*.c")), made.folder)
        commands = Commands(made.program)
        commands.infer(image(graph, 0))
        for step in range(runs.steps):
            commands.train(image(graph, step), step % graph.classes, RATE)
        commands.dump()
        began = _processor_seconds()
        answers = send(built, commands, limit_s=60 + SECONDS_A_STEP * runs.steps)
        ran = _processor_seconds() - began
    if runs.check:
        compare(made.program, answers, runs)
    counts = answers.infer_instructions[0], answers.train_instructions[0]
    return Measured(made.ram, made.flash, answers.stack, *counts, exported, ran)


def tables(
    graph: Int8Graph, schemes: Sequence[Scheme], runs: Runs | None, options: StepOptions | None = None
) -> Iterator[Table]:
    """The table of the planner, then that of a board if there are `runs`; a scheme over the budget has an empty row.

    Raises:
        BuildError, SmeltError: as `measured`, but before the first table if a tool is missing.
    """
    if runs is not None:
        runs.board.find_compiler()
        runs.board.find_emulator()
    yield plan_table(graph, {scheme: planned(graph, scheme, options) for scheme in schemes})
    if runs is None:
        return
    rows: dict[Scheme, Measured | BudgetError] = {}
    for scheme in schemes:
        try:
            rows[scheme] = measured(graph, scheme, runs, options)
        except BudgetError as error:
            rows[scheme] = error
    yield board_table(graph, rows, runs)


def image(graph: Int8Graph, step: int) -> np.ndarray:
    """The image of a step: int8 numbers over the whole range, the same on every machine."""
    shape = graph.tensors[graph.input].shape
    return ((np.arange(prod(shape)) * 37 + step * 101) % 255 - 127).astype(np.int8).reshape(shape)


def compare(program: Program, answers: Answers, runs: Runs) -> None:
    """Compare the answers to an inference, to steps and to a dump with the simulation, to the bit.

    Raises:
        SmeltError: a loss, a logit or a parameter differs.
    """
    simulated = Training(program)
    for step, answer in enumerate(answers.values[1 : 1 + runs.steps]):
        loss = simulated.step(image(program.graph, step), step % program.graph.classes, RATE)
        assert simulated.logits is not None and isinstance(answer, tuple)
        if np.float32(answer[0]) != loss or not np.array_equal(answer[1], simulated.logits.numpy()):
            raise SmeltError(f"step {step} on {runs.board.name} has another loss or logits than the simulation")
    dumped = answers.values[-1]
    assert isinstance(dumped, dict)
    for name, value in simulated.state.items():
        if not np.array_equal(dumped[name], value.numpy()):
            raise SmeltError(f"after {runs.steps} steps on {runs.board.name}, {name} differs from the simulation's")


def _processor_seconds() -> float:
    """Seconds of processor time of this process and of those that it ran to their end."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def plan_table(graph: Int8Graph, rows: Mapping[Scheme, Planned]) -> Table:
    """Bytes by the planner, a row for each scheme."""
    title = f"{graph.name}: bytes by the planner, without the stack"
    names = ("arena", "lower bound", "over it", "trained", "together", "held")
    table = _table(title, names)
    for scheme, one in rows.items():
        over = f"{100 * (one.arena / one.bound - 1):.1f} %"
        together = one.arena + one.trained
        cells = (f"{one.arena:,}", f"{one.bound:,}", over, f"{one.trained:,}", f"{together:,}", f"{one.held:,}")
        table.add_row(scheme.name, *cells)
    return table


def board_table(graph: Int8Graph, rows: Mapping[Scheme, Measured | BudgetError], runs: Runs) -> Table:
    """Bytes, millions of instructions and seconds of processor time on a board, a row for each scheme."""
    checked = "; equal to the simulation" if runs.check else ""
    title = f"{graph.name} on {runs.board.name}: bytes, million instructions, seconds of processor time{checked}"
    steps = f"{runs.steps} step{'s' if runs.steps > 1 else ''}"
    table = _table(title, ("RAM", "flash", "stack in use", "inference", "step", "export", steps))
    for scheme, one in rows.items():
        if isinstance(one, BudgetError):
            table.add_row(scheme.name, "over the budget")
            continue
        sizes = [f"{size:,}" for size in (one.ram, one.flash, one.stack)]
        counts = [f"{count / 1e6:.1f}" if count >= 1e7 else f"{count / 1e6:.2f}" for count in (one.infer, one.train)]
        table.add_row(scheme.name, *sizes, *counts, f"{one.export_s:.1f} s", f"{one.steps_s:.1f} s")
    return table


def _table(title: str, names: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("scheme", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    return table
