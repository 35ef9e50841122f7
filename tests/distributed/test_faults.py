"""Processes that differ: no deadlock of ours, results as in eager, the program's own error, or one that names ranks.

Two processes are begun once and run every case (`fault_ranks.py`); the tests look at what they have found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.two_processes import told_by

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="wants gloo"
)
RANKS = Path(__file__).with_name("fault_ranks.py")
LINES = {text.strip(): number for number, text in enumerate(RANKS.read_text().splitlines(), 1)}


def line(text: str) -> str:
    """`file:line` of a line of the program."""
    return f"{RANKS}:{LINES[text]}"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each process has found."""
    return told_by(RANKS, tmp_path_factory.mktemp("faults"))


def test_other_sizes_on_one_process(told: list[dict[str, Any]]) -> None:
    """It compiles again there, also for no rows, and the other waits."""
    assert [each["shapes"] for each in told] == [[True] * 4] * 2
    assert told[0]["stats shapes"] == [1, 0, 0]
    graphs, *others = told[1]["stats shapes"]
    assert graphs > 1 and others == [0, 0]


def test_a_graph_break_on_one_process(told: list[dict[str, Any]]) -> None:
    assert [each["breaks"] for each in told] == [True, True]
    assert told[0]["stats breaks"][1] == 0 and told[1]["stats breaks"][1] > 0


def test_a_late_process_is_waited_for(told: list[dict[str, Any]]) -> None:
    assert [each["late"] for each in told] == [True, True]


def test_a_compiler_that_fails_on_one_process(told: list[dict[str, Any]]) -> None:
    """Eager runs there and takes part in the same collectives."""
    assert [each["fails to compile"] for each in told] == [True, True]
    assert told[0]["stats fails to compile"][2] == 0 and told[1]["stats fails to compile"][2] > 0


def test_a_collective_that_the_backend_refuses(told: list[dict[str, Any]]) -> None:
    for each in told:
        (kind, text, _, _), (own_kind, own_text, notes, seconds) = each["refuses"]
        assert (own_kind, own_text) == (kind, text) and kind and seconds < 20
        assert any(line("dist.all_reduce(y)") in note for note in notes) or kind == ""


def test_different_collectives_are_named(told: list[dict[str, Any]]) -> None:
    """Instead of the group's time limit."""
    reduced, sent = line("dist.all_reduce(y, group=group)"), line("dist.broadcast(y, 0, group=group)")
    for rank, (here, there) in enumerate([(reduced, sent), (sent, reduced)]):
        kind, text, _, seconds = told[rank]["differs"]
        assert kind == "CollectivesDiffer" and seconds < 20
        assert f"rank {rank} waits" in text and f"rank {1 - rank} for" in text
        assert f"at:  {here}" in text and f"at {there}" in text


@pytest.mark.parametrize("case", ["stops early", "killed"])
def test_the_backends_error_names_rank_and_line(told: list[dict[str, Any]], case: str) -> None:
    kind, text, notes, seconds = told[0][case]
    assert kind in ("RuntimeError", "DistBackendError") and text and seconds < 20
    assert any("rank 0" in note and line("dist.all_reduce(total, group=group)") in note for note in notes)
