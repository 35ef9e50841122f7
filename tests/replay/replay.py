"""Runs the programs with two source trees at once and compares what they wrote."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .compare import Comparison, compare, texts

ROOT = Path(__file__).resolve().parents[2]

SETTINGS = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "2",  # torch chooses other operators for one thread
    "PYTHONHASHSEED": "0",
    "SMELT_STRICT": "1",
    "SMELT_TRACE": "1",
    "TRITON_INTERPRET": "1",
}
"""The environment of both sides."""


@dataclass(frozen=True)
class Side:
    """A source tree, what else its recorder is told and what else stands in its environment."""

    tree: Path
    arguments: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)


class ReplayFailed(Exception):
    """A side ended before its last program."""


def replay(old: Side, new: Side, out: Path, names: Sequence[str]) -> list[Comparison]:
    """How each program fared; its artefacts stay in `out`/old and `out`/new where they differ.

    Raises:
        ReplayFailed: a side could not run the programs at all.
    """
    out.mkdir(parents=True, exist_ok=True)
    sides = {out / "old": old, out / "new": new}
    jobs = max(1, (os.cpu_count() or 1) // len(sides))
    started = [_start(side, folder, names[i::jobs], i) for folder, side in sides.items() for i in range(jobs)]
    try:
        for process, log in started:
            if process.wait():
                raise ReplayFailed(log.read_text(errors="replace")[-2000:])
    finally:
        for process, _ in started:
            process.kill()
            process.wait()
    found = []
    for name in names:
        found.append(compare(name, *(texts(folder / name, side.tree) for folder, side in sides.items())))
        if not found[-1].files:
            for folder in sides:
                shutil.rmtree(folder / name)
    for folder in sides:
        shutil.rmtree(_cache(folder), ignore_errors=True)
    return found


def _start(side: Side, folder: Path, names: Sequence[str], number: int) -> tuple[subprocess.Popen[bytes], Path]:
    """A recorder of one side, and its log."""
    settings = SETTINGS | {"SMELT_CACHE_DIR": str(_cache(folder)), "PYTHONPATH": str(side.tree)} | side.settings
    command = [sys.executable, "-m", "tests.replay.record", *side.arguments, str(folder), *names]
    log = folder.with_name(f"{folder.name}-{number}.log")
    with log.open("wb") as file:
        return subprocess.Popen(command, cwd=side.tree, env=os.environ | settings, stdout=file, stderr=file), log


def _cache(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-cache")
