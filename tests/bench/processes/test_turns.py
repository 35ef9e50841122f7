"""Tasks beside each other: while one is timed, the others stand still."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from smelt.bench.processes import turns

COUNTING = """
import os, sys, time
from smelt.bench.processes import turns
turns.join_turns()
while True:
    with open(sys.argv[1], "a") as file:
        file.write(".")
    time.sleep(0.002)
"""

TIMED = """
import sys, time
from smelt.bench.processes import turns
turns.join_turns()
with turns.alone():
    open(sys.argv[1], "w").write("mine")
    time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "turns"
    found.mkdir()
    monkeypatch.setenv(turns.FOLDER, str(found))
    return found


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> Iterator[object]:
    started = []

    def start(source: str, name: str) -> tuple[subprocess.Popen[bytes], Path]:
        said = tmp_path / name
        task = subprocess.Popen([sys.executable, "-c", source, str(said)], start_new_session=True)
        started.append(task)
        wait_until(lambda: said.exists())
        return task, said

    yield start
    for task in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(task.pid, signal.SIGKILL)
        task.wait()


def wait_until(holds):
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def moves(said: Path) -> bool:
    before = said.stat().st_size
    time.sleep(0.2)
    return said.stat().st_size > before


def test_others_are_paused_while_one_is_timed(run) -> None:
    _, said = run(COUNTING, "counts")
    assert moves(said)
    with turns.alone():
        time.sleep(0.05)  # a signal takes effect soon
        assert not moves(said)
    wait_until(lambda: moves(said))


def test_others_go_on_when_the_timed_one_dies(run, folder: Path) -> None:
    counting, said = run(COUNTING, "counts")
    timed, _ = run(TIMED, "timed")
    time.sleep(0.05)
    assert not moves(said)
    os.killpg(timed.pid, signal.SIGKILL)
    timed.wait()
    turns.leave(folder, timed.pid)
    wait_until(lambda: moves(said))
    assert sorted(file.name for file in folder.iterdir()) == sorted([str(counting.pid), "turn"])


def test_without_others_there_is_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(turns.FOLDER, raising=False)
    turns.join_turns()
    with turns.alone():
        pass
