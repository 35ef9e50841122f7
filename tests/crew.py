"""Processes that work through a list of tasks and go on behind a task that killed one: for the sweeps.

A worker reads the name of a task from its standard input and writes a line of JSON when it has done it. Results are
appended to a file as they come, so that a run that is stopped loses only what was in work.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROUNDS = 300
"""Tasks after which a worker makes place for a fresh one: what libraries keep grows."""
LOST = "lost"
"""Key of a result that ends its process: nothing after it would be right (a CUDA context that is gone)."""


class Crew:
    """Runs tasks in `jobs` processes.

    Args:
        command: starts a worker.
        results: where each result is appended.
        seconds: when to stop, measured from the start; 0 for never.
        stuck: seconds that one task may take.
        told: is called with each result.
    """

    def __init__(
        self,
        command: list[str],
        results: Path,
        *,
        jobs: int = 1,
        seconds: float = 0.0,
        stuck: float = 240.0,
        environment: Mapping[str, str] | None = None,
        told: Callable[[dict[str, Any]], None] = lambda row: None,
    ) -> None:
        self.command, self.results, self.jobs, self.stuck, self.told = command, results, jobs, stuck, told
        self.environment = {**os.environ, "SMELT_STRICT": "1", **(environment or {})}
        self.environment.setdefault("OMP_NUM_THREADS", "1")
        self.environment.setdefault("PYTHONFAULTHANDLER", "1")  # a worker that crashes says where
        self.end = time.monotonic() + seconds if seconds else float("inf")
        self.lock = threading.Lock()
        self.failed = ""  # how workers fail that have not begun a task

    def run(self, tasks: Iterable[str]) -> bool:
        """Do all tasks; False when time was up before the last."""
        left = collections.deque(tasks)
        threads = [threading.Thread(target=self._supervise, args=(left, i)) for i in range(min(self.jobs, len(left)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failed:
            raise SystemExit(f"a worker failed:\n{self.failed}")
        return not left and time.monotonic() < self.end

    def _supervise(self, left: collections.deque[str], number: int) -> None:
        errors = self.results.with_name(f"{self.results.stem}.{number}.stderr")
        while left and time.monotonic() < self.end and not self.failed:
            with errors.open("w+b") as told:
                worker = subprocess.Popen(
                    self.command,
                    env=self.environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=told,
                    start_new_session=True,
                )
                try:
                    self._feed(worker, left, errors)
                finally:
                    _end(worker)
        errors.unlink(missing_ok=True)

    def _feed(self, worker: subprocess.Popen[bytes], left: collections.deque[str], errors: Path) -> None:
        assert worker.stdin is not None and worker.stdout is not None
        if not self._line(worker, self.stuck):  # the worker is ready
            self.failed = _tail(errors)
            return
        for _ in range(ROUNDS):
            try:
                task = left.popleft()
            except IndexError:
                return
            try:
                worker.stdin.write(task.encode() + b"\n")
                worker.stdin.flush()
            except BrokenPipeError:  # it ended after the last task
                left.appendleft(task)
                return
            line = self._line(worker, self.stuck)
            if line:
                row = json.loads(line)
            elif time.monotonic() >= self.end:
                return
            else:
                stuck = worker.poll() is None and not _gone(worker)
                how = f"took over {self.stuck:.0f} s" if stuck else f"exit {worker.returncode}: {_tail(errors)}"
                row = {"row": task, "status": "hang" if stuck else "crash", "detail": how, LOST: True}
            row["ended"] = time.time()
            with self.lock:
                with self.results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                self.told(row)
            if row.get(LOST):
                return

    def _line(self, worker: subprocess.Popen[bytes], seconds: float) -> bytes:
        """The next line that the worker writes; empty when it is gone or took too long."""
        assert worker.stdout is not None
        until = min(time.monotonic() + seconds, self.end)
        text = b""
        while not text.endswith(b"\n"):
            ready, _, _ = select.select([worker.stdout], [], [], max(until - time.monotonic(), 0.0))
            part = os.read(worker.stdout.fileno(), 1 << 16) if ready else b""
            if not part:
                return b""
            text += part
        return text


def _gone(worker: subprocess.Popen[bytes]) -> bool:
    try:
        worker.wait(2.0)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(worker: subprocess.Popen[bytes]) -> None:
    """End it with the processes that it started."""
    try:
        os.killpg(worker.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    worker.wait()
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            pipe.close()


def _tail(path: Path) -> str:
    before, crash, stack = path.read_text(errors="replace").rpartition("Fatal Python error")
    return crash + stack[:3000] if crash else stack[-600:]


def serve(work: Callable[[str], dict[str, Any]]) -> None:
    """The worker's side: do each task that standard input names. Nothing else is written to standard output."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    out.write("ready\n")
    for line in sys.stdin:
        row = work(line.rstrip("\n"))
        out.write(json.dumps(row) + "\n")
        if row.get(LOST):
            break


# -- a sweep: a command of its own (`python -m MODULE`), whose workers are the same command with `--serve`


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What every sweep can be told."""
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--target", default="auto", help="auto, cpp or triton (on a CPU through Triton's interpreter)")
    parser.add_argument("--jobs", type=_at_least_one, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=0.0, help="when to stop; the next run goes on")
    parser.add_argument("--out", type=Path, default=None, help="results and built kernels (default: a folder in /tmp)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"at least 1 process, not {number}")
    return number


def sweep(
    module: str,
    given: argparse.Namespace,
    left: Sequence[str],
    results: Path,
    *,
    flags: Mapping[str, Any],
    stuck: float,
    noun: str,
    every: int,
) -> bool:
    """Do what is left of a sweep; False when time was up first.

    Args:
        given: what `add_arguments` has read.
        flags: of the module's own arguments those that its workers need.
        noun, every: after so many results of that name a line says how far it is.
    """
    began = time.time()
    counts: collections.Counter[str] = collections.Counter()

    def told(row: dict[str, Any]) -> None:
        counts[row["status"]] += 1
        done = sum(counts.values())
        if done % every == 0 or done == len(left):
            text = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
            print(f"{done} of {len(left)} {noun} after {time.time() - began:.0f} s: {text}", flush=True)

    command = [sys.executable, "-W", "ignore", "-m", module, "--serve"]
    for name, value in {"device": given.device, "target": given.target, **flags}.items():
        command += [f"--{name}", str(value)]
    crew = Crew(
        command,
        results,
        jobs=given.jobs,
        seconds=given.seconds,
        stuck=stuck,
        environment={"SMELT_CACHE_DIR": str(results.parent / "kernels")},
        told=told,
    )
    return crew.run(left)
