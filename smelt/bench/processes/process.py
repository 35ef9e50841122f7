"""The parent side of a measurement: runs tasks of `worker`, each in a fresh process with limits."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from smelt.bench.processes import turns

PACKAGE = Path(__file__).parents[2]

BOOT = """
import sys, types
package = types.ModuleType("smelt")
package.__path__ = [sys.argv[1]]
sys.modules["smelt"] = package
from smelt.bench.processes.server import serve
serve(sys.argv[2:])
"""
"""Program that starts a server with an empty `smelt` package: only the processes that measure the compiler load all of
it.
"""

SERVER_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Environment of a server: a library that looks for a GPU during import must not start CUDA, which cannot be used after
a fork then.
"""

POLL_S = 0.2
"""Seconds between two checks of a process's memory."""


@dataclass(frozen=True)
class Failure:
    """The failure of a task: the row's status and the reason; `phase` is the last phase that the task reported, or
    empty.
    """

    status: str
    error: str
    phase: str = ""


@dataclass(frozen=True)
class Limits:
    """The limits of one process: seconds, and MiB of memory of it and its children (None: no limit)."""

    seconds: float = 1800.0
    memory_mb: float | None = None


class Answers:
    """Reads lines of JSON from a pipe, with a timeout."""

    def __init__(self, pipe: int) -> None:
        self.pipe, self._rest = pipe, b""

    def next(self, wait_s: float | None) -> Any:
        """Returns the value of the next line; None after the timeout.

        Raises:
            EOFError: the pipe is closed.
        """
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self.pipe], [], [], wait_s)
            if not ready:
                return None
            more = os.read(self.pipe, 65536)
            if not more:
                raise EOFError
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)


class Server:
    """A process that forks a process for each task (see `server`), one at a time.

    Args:
        packages: names of the libraries to import once, before the first task.
        threads: number of torch's threads in every task, or None for torch's own choice.
        turns: the folder that this server's tasks share with those of other servers, so that only one is timed at a
            time; see `turns`.
    """

    def __init__(self, packages: Sequence[str] = (), threads: int | None = None, turns: Path | None = None) -> None:
        self.packages, self.threads, self.turns = list(dict.fromkeys(packages)), threads, turns
        self._child: tuple[subprocess.Popen[bytes], Answers] | None = None
        self._running: int | None = None
        self.closed = False

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def run(self, task: Mapping[str, Any], environment: Mapping[str, str], limits: Limits) -> dict[str, Any] | Failure:
        """Run one task in a fresh process; returns its value, or a Failure after an error, a crash or at a limit."""
        with tempfile.TemporaryDirectory(prefix="smelt-bench-") as name:
            task_file, result_file, log_file = (Path(name) / file for file in ("task.json", "result.json", "log.txt"))
            task_file.write_text(json.dumps(task))
            log_file.touch()
            request = {
                "task": str(task_file),
                "result": str(result_file),
                "log": str(log_file),
                "environment": dict(environment) | ({turns.FOLDER: str(self.turns)} if self.turns else {}),
                "threads": self.threads,
            }
            code = self._run(request, limits)
            phase_file = phase_file_of(result_file)
            phase = phase_file.read_text() if phase_file.exists() else ""
            if isinstance(code, Failure):
                return dataclasses.replace(code, phase=phase)
            if not result_file.exists():
                return Failure("fail_run", f"{_exit_reason(code)}; {last_line(log_file)}", phase)
            outcome = json.loads(result_file.read_text())
        return outcome["value"] if "value" in outcome else Failure(outcome["status"], outcome["error"])

    def _run(self, request: dict[str, Any], limits: Limits) -> int | Failure:
        try:
            child, answers = self._start()
            assert child.stdin is not None
            child.stdin.write((json.dumps(request) + "\n").encode())
            child.stdin.flush()
            pid = self._running = answers.next(None)["pid"]
            try:
                return self._wait(answers, pid, limits)
            finally:
                # Processes that the task started (compilers, workers) are ended with it.
                end_session(pid)
                self._running = None
                if self.turns:
                    turns.leave(self.turns, pid)
        except (OSError, EOFError, ValueError):
            self._stop()
            return Failure("fail_run", "the measuring server ended")

    def _wait(self, answers: Answers, pid: int, limits: Limits) -> int | Failure:
        deadline = time.monotonic() + limits.seconds
        failure = None
        while True:
            answer = answers.next(POLL_S)
            if answer is not None:
                return failure or answer["code"]
            if failure is None:
                failure = _exceeded(pid, deadline, limits)
                if failure is not None:
                    end_session(pid)

    def _start(self) -> tuple[subprocess.Popen[bytes], Answers]:
        if self.closed:
            raise EOFError
        if self._child is None or self._child[0].poll() is not None:
            command = [sys.executable, "-c", BOOT, str(PACKAGE), *self.packages]
            # The server leads a separate session: Ctrl-C reaches only the parent, which then ends the server and its
            # tasks.
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | SERVER_ENVIRONMENT,
                start_new_session=True,
            )
            assert child.stdout is not None
            self._child = child, Answers(child.stdout.fileno())
        return self._child

    def close(self) -> None:
        """End the server and its task; may be called from another thread."""
        self.closed = True
        self._stop()

    def _stop(self) -> None:
        started, self._child = self._child, None
        if self._running is not None:
            end_session(self._running)
        if started is not None:
            child = started[0]
            child.kill()
            child.wait()
            for stream in (child.stdin, child.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()


def phase_file_of(result_file: Path) -> Path:
    """Returns the path of the file into which a task writes its phase, to be read if the task hangs or crashes."""
    return result_file.with_name("phase.txt")


def run_task(task: Mapping[str, Any], environment: Mapping[str, str], timeout_s: float) -> dict[str, Any] | Failure:
    """Run one task in a fresh process of a new server."""
    with Server() as server:
        return server.run(task, environment, Limits(timeout_s))


def _exceeded(pid: int, deadline: float, limits: Limits) -> Failure | None:
    if time.monotonic() > deadline:
        return Failure("timeout", f"no end after {limits.seconds:.0f} s")
    if limits.memory_mb is not None and (used := _memory_mb(pid)) > limits.memory_mb:
        return Failure("fail_run", f"used {used:.0f} MiB of memory where {limits.memory_mb:.0f} are allowed")
    return None


def _memory_mb(pid: int) -> float:
    """Returns the resident memory of a process and its children in MiB."""
    total = 0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                total += each.memory_info().rss
    return total / 2**20


def end_session(pid: int) -> None:
    """End a process that leads a session, and all processes that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _exit_reason(code: int) -> str:
    if code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process ended with code {code}"


def last_line(log_file: Path) -> str:
    """Returns the last line of a log that is not empty, at most 400 characters of it."""
    lines = [line.strip() for line in log_file.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:400] if lines else "it printed nothing"


CACHES = {"SMELT_CACHE_DIR": "smelt", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
"""Environment variables of the compilers' caches, each with the name of its folder."""


def cache_environment(folder: Path, contenders: Iterable[str]) -> dict[str, str]:
    """Make the cache folders of the contenders in `folder`; returns environment variables that select them and make
    smelt raise its failures.

    Every contender has a separate folder, so that it starts with empty caches. A process with several contenders gets a
    folder with the caches of all of them.
    """
    folders = [folder / "".join(letter if letter.isalnum() else "_" for letter in name) for name in contenders]
    used = folders[0] if len(folders) == 1 else folder / "together"
    for each in [*folders, used]:
        each.mkdir(parents=True, exist_ok=True)
        if each != used:
            _link_tree(each, used)
    found = {"SMELT_STRICT": os.environ.get("SMELT_STRICT", "1"), "HF_HUB_OFFLINE": "1"}
    found["SMELT_VERIFY"] = os.environ.get("SMELT_VERIFY", "0")  # checks at each call would add to the time of the step
    return found | {variable: str(used / name) for variable, name in CACHES.items()}


def _link_tree(source: Path, target: Path) -> None:
    """Link the files of `source` into `target` without copying them; files that `target` already has are kept."""
    for folder, _, files in os.walk(source):
        to = target / Path(folder).relative_to(source)
        to.mkdir(parents=True, exist_ok=True)
        for name in files:
            with contextlib.suppress(FileExistsError):
                os.link(Path(folder) / name, to / name)
