"""The parent side of a measurement: runs one task of `smelt.bench.worker` in a fresh process, with a time limit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent.parent

BOOT = """
import sys, types
package = types.ModuleType("smelt")
package.__path__ = [sys.argv[1]]
sys.modules["smelt"] = package
from smelt.bench.worker import main
main(*sys.argv[2:])
"""
"""Starts a worker under a bare `smelt` package, so that the compiler is imported only by who measures it."""


@dataclass(frozen=True)
class Failure:
    """A task that gave no value: the row's status and why."""

    status: str
    error: str


def run_task(task: Mapping[str, Any], environment: Mapping[str, str], timeout_s: float) -> dict[str, Any] | Failure:
    """Run one task in a fresh process; its value, or the Failure that an error, a crash or the time limit is."""
    with tempfile.TemporaryDirectory(prefix="smelt-bench-") as name:
        task_file, result_file, log_file = (Path(name) / part for part in ("task.json", "result.json", "log.txt"))
        task_file.write_text(json.dumps(task))
        command = [sys.executable, "-c", BOOT, str(PACKAGE), str(task_file), str(result_file)]
        with log_file.open("w") as log:
            # A session of its own: the time limit and Ctrl-C also end what the task has started.
            child = subprocess.Popen(
                command, stdout=log, stderr=log, env=os.environ | dict(environment), start_new_session=True
            )
            try:
                code = child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return Failure("timeout", f"no end after {timeout_s:.0f} s")
            finally:
                _end(child)
        if not result_file.exists():
            return Failure("fail_run", f"{_exit_reason(code)}; {_last_line(log_file)}")
        outcome = json.loads(result_file.read_text())
    return outcome["value"] if "value" in outcome else Failure(outcome["status"], outcome["error"])


def _end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _exit_reason(code: int) -> str:
    if code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process ended with code {code}"


def _last_line(log_file: Path) -> str:
    lines = [line.strip() for line in log_file.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:400] if lines else "it said nothing"


def cache_environment(folder: Path, contenders: Iterable[str]) -> dict[str, str]:
    """Variables that keep the contenders' caches in `folder`, one part for each, and smelt from hiding failures."""
    found = {"SMELT_STRICT": os.environ.get("SMELT_STRICT", "1"), "HF_HUB_OFFLINE": "1"}
    for name in contenders:
        part = folder / "".join(letter if letter.isalnum() else "_" for letter in name)
        part.mkdir(parents=True, exist_ok=True)
        if name.partition(":")[0] == "smelt":
            found.setdefault("SMELT_CACHE_DIR", str(part / "smelt"))
        elif name == "torch.compile":
            found |= {"TORCHINDUCTOR_CACHE_DIR": str(part / "inductor"), "TRITON_CACHE_DIR": str(part / "triton")}
    return found
