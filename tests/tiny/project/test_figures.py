"""Figures of a network: the planner's, and those of an emulated board, whose steps are compared with the simulation."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from smelt.base.errors import BuildError, SmeltError
from smelt.tiny.boards.board import find_board
from smelt.tiny.graph import Int8Graph
from smelt.tiny.models import load, with_head
from smelt.tiny.program import StepOptions
from smelt.tiny.project.commands import Answers
from smelt.tiny.project.export import Budget
from smelt.tiny.project.figures import RATE, Runs, compare, image, measured, planned, tables, usual_schemes
from smelt.tiny.scheme import PRESETS, named
from smelt.tiny.simulate import Training
from smelt.tiny.step import step_program
from tests.tiny import model_files as files
from tests.tiny.emulated import board_or_skip


def network(folder: Path, size: int = 9) -> Int8Graph:
    return with_head(load(files.write(folder, size=size)), 4)


def test_the_planner_orders_full_sparse_and_reordered_updates(tmp_path: Path) -> None:
    graph = network(tmp_path)
    classifier, sparse, full = (planned(graph, scheme) for scheme in usual_schemes(graph))
    assert classifier.arena <= sparse.arena < full.arena
    for one in (classifier, sparse, full):
        assert one.bound <= one.arena <= 1.05 * one.bound
        assert one.arena + one.trained <= one.held
    assert full.held > full.arena + full.trained


def test_presets_are_shown_for_their_own_network_alone(tmp_path: Path) -> None:
    assert [scheme.name for scheme in usual_schemes(network(tmp_path))] == ["classifier", "within-49KB", "full"]
    path = files.pretrained("mcunet-5fps")
    assert [scheme.name for scheme in usual_schemes(with_head(load(path), 10))][1:-1] == list(PRESETS)


def test_steps_on_a_board_are_those_of_the_simulation(tmp_path: Path) -> None:
    board, graph = board_or_skip("mps2-an500"), network(tmp_path, size=5)
    runs = Runs(board, Budget(ram=64 << 10, stack=8192), steps=3, check=True)
    found = measured(graph, named("last-2", graph), runs, StepOptions(backward="int8"))
    assert 0 < found.infer < found.train
    assert 8192 < found.ram < 64 << 10 and found.flash > 0 and 0 < found.stack < 8192


def test_a_difference_from_the_simulation_is_an_error(tmp_path: Path) -> None:
    """Answers of a board are written by hand: the simulation's own, of which one value is changed."""
    graph = network(tmp_path)
    program, runs = step_program(graph, named("bias-2", graph)), Runs(find_board("mps2-an500"), steps=2)
    simulated, steps = Training(program), []
    for step in range(2):
        loss = simulated.step(image(graph, step), step % graph.classes, RATE)
        assert simulated.logits is not None
        steps.append((float(loss), simulated.logits.numpy().copy()))
    state = {name: value.numpy().copy() for name, value in simulated.state.items()}

    def answers() -> Answers:
        copied = [(loss, logits.copy()) for loss, logits in steps]
        return Answers([0, *copied, {name: value.copy() for name, value in state.items()}], 0, [], [])

    compare(program, answers(), runs)
    other = answers()
    other.values[2][1][0] += 1  # type: ignore[index]
    with pytest.raises(SmeltError, match="step 1 on mps2-an500 has another loss or logits"):
        compare(program, other, runs)
    for name in state:
        other = answers()
        other.values[-1][name].flat[0] += 1  # type: ignore[index, union-attr]
        with pytest.raises(SmeltError, match=f"{name} differs"):
            compare(program, other, runs)


def test_a_scheme_over_the_budget_has_an_empty_row(tmp_path: Path) -> None:
    board, graph = board_or_skip("mps2-an500"), network(tmp_path)
    runs = Runs(board, Budget(ram=2048, stack=512))
    plan, shown = tables(graph, [named("full", graph)], runs)
    assert plan.row_count == shown.row_count == 1
    assert list(shown.columns[1].cells) == ["over the budget"]


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("mps2-an500", {"compiler": "no-such-gcc"}, "no-such-gcc is not installed"),
        ("rv32-virt", {"emulator": ("no-such-qemu",), "compiler": "true"}, "no-such-qemu is not installed"),
        ("host", {}, "there is no emulator of host"),
    ],
)
def test_a_missing_tool_is_told_before_any_table(name: str, change: dict[str, str], told: str, tmp_path: Path) -> None:
    board, graph = dataclasses.replace(find_board(name), **change), network(tmp_path)  # type: ignore[arg-type]
    with pytest.raises(BuildError, match=told):
        next(tables(graph, usual_schemes(graph), Runs(board)))
