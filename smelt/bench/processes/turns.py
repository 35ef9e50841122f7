"""Lets tasks run at the same time but be timed one at a time: while one is timed, all others are stopped.

The tasks of a run share a folder with a file for each; the task that is timed holds the lock on the file `turn` and
stops the others by signal. So the tasks share the machine for most of a run (starting, compiling, judging), while times
are measured on an idle one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

FOLDER = "SMELT_BENCH_TURNS"
"""Environment variable with the path of the shared folder; without it a task is not stopped by others."""

DRAIN_S = 0.2
"""Seconds to wait after the other tasks are stopped, in which a GPU finishes the work that they have queued."""


def join_turns() -> None:
    """Register this task, the leader of its session, with the others; waits while one of them is timed."""
    folder = _folder()
    if folder is not None:
        with _turn(folder, fcntl.LOCK_SH):
            (folder / str(os.getsid(0))).touch()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """A context in which all other tasks of the run are stopped. Entering it waits until no other task is timed."""
    folder = _folder()
    if folder is None:
        yield
        return
    with _turn(folder, fcntl.LOCK_EX):
        others = [task for task in _tasks(folder) if task != os.getsid(0)]
        _send(others, signal.SIGSTOP)
        try:
            if others:
                time.sleep(DRAIN_S)
            yield
        finally:
            _send(others, signal.SIGCONT)


def leave(folder: Path, task: int) -> None:
    """Continue the stopped tasks: the parent calls this when a task has ended, possibly while it was timed."""
    (folder / str(task)).unlink(missing_ok=True)
    with _turn(folder, fcntl.LOCK_EX):  # waits until no task is timed
        _send(_tasks(folder), signal.SIGCONT)


def _folder() -> Path | None:
    name = os.environ.get(FOLDER)
    return Path(name) if name else None


def _tasks(folder: Path) -> list[int]:
    return [int(file.name) for file in folder.iterdir() if file.name.isdigit()]


@contextlib.contextmanager
def _turn(folder: Path, kind: int) -> Iterator[None]:
    with (folder / "turn").open("a") as turn:
        fcntl.flock(turn, kind)
        yield


def _send(tasks: list[int], number: signal.Signals) -> None:
    for task in tasks:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(task, number)
