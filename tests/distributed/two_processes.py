"""Runs a script in two processes that find each other, and gathers what they tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]


def told_by(script: Path, folder: Path) -> list[dict[str, Any]]:
    """What each process has found, from the line `told JSON` that rank 0 prints.

    Args:
        folder: an empty one, for their output and what they compile.
    """
    common = {**os.environ, "PYTHONPATH": str(ROOT), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1", "SMELT_STRICT": "1"}
    common |= {"MASTER_ADDR": "127.0.0.1", "SMELT_CACHE_DIR": str(folder / "cache")}
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common |= {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    processes = []
    for rank in range(2):
        with open(folder / f"out{rank}", "w") as out:
            own = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(subprocess.Popen([sys.executable, str(script)], env=own, stdout=out, stderr=out))
    try:
        ended = [process.wait(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    printed = [(folder / f"out{rank}").read_text() for rank in range(2)]
    assert ended == [0, 0], "\n".join(printed)
    found: list[dict[str, Any]] = results_in(printed[0])
    assert len(found) == 2
    return found


def results_in(output: str) -> Any:
    """The value of the line `told JSON` that rank 0 prints."""
    (line,) = [line for line in output.splitlines() if line.startswith("told ")]
    return json.loads(line.removeprefix("told "))
