"""`python -m tests.faults --interrupts 2000 --failures 2000`: faults anywhere in compilations and compiled calls.

After each fault the state of torch and Python is what it was, and the same compiled function gives eager's results.
Tasks run in child processes; a run that was interrupted goes on. `--task NAME` runs one task here.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.crew import LOST, Crew, serve

from .campaign import FAILURES, INTERRUPTS, campaign
from .programs import PROGRAMS

BACKENDS = ("aot_eager", "smelt")
COUNT = 10
"""Faults of one task."""


def main() -> int:
    """Exit status 1 when a fault has left something, 2 when time was up before the last."""
    given = _arguments()
    if given.serve:
        serve(_told)
        return 0
    if given.task:
        row = campaign(given.task)
        print("\n".join([*row["detail"], json.dumps(row["fates"])]))
        return int(row["status"] != "ok")
    out = given.out or Path(tempfile.gettempdir()) / f"smelt-faults-{os.getuid()}"
    out.mkdir(parents=True, exist_ok=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    results = out / f"faults-{given.seed}-{version}.jsonl"
    wanted = [*tasks(INTERRUPTS, given.interrupts, given.seed), *tasks(FAILURES, given.failures, given.seed)]
    wanted = [task for task in wanted if given.only in task]
    known = _read(results)
    command = [sys.executable, "-m", "tests.faults", "--serve"]
    environment = {"SMELT_CACHE_DIR": os.environ.get("SMELT_CACHE_DIR", str(out / "cache"))}
    crew = Crew(
        command, results, jobs=given.jobs, seconds=given.seconds, stuck=900.0, environment=environment, told=_tell
    )
    ended = crew.run([task for task in wanted if task not in known])
    rows = [row for task, row in _read(results).items() if task in set(wanted)]
    print(report(rows))
    failed = any(row["status"] != "ok" for row in rows)
    return 1 if failed else 0 if ended else 2


def _told(task: str) -> dict[str, Any]:
    try:
        return campaign(task)
    except BaseException:  # of the task before it, whose fault came late; the process has to begin anew
        return {"row": task, "status": "error", "detail": traceback.format_exc()[-3000:], LOST: True}


def tasks(kinds: tuple[str, ...], faults: int, seed: str) -> list[str]:
    """The names of tasks with so many faults together: kinds, programs and backends in turn."""
    return [task for _, task in zip(range(-(-faults // COUNT)), _endless(kinds, seed), strict=False)]


def _endless(kinds: tuple[str, ...], seed: str) -> Iterator[str]:
    number = 0
    while True:
        for at, program in enumerate(PROGRAMS):
            for kind in kinds:
                backend = BACKENDS[(number + at + kinds.index(kind)) % len(BACKENDS)]
                if kind == "thread":  # CPython throws it into a thread of ours that is just beginning
                    backend = "aot_eager"
                yield f"{program}/{backend}/{kind}/{seed}.{number}/{COUNT}"
        number += 1


def report(rows: list[dict[str, Any]]) -> str:
    """The faults by kind, and what is wrong."""
    kinds: dict[str, collections.Counter[str]] = {}
    lines = []
    for row in rows:
        kind = row["row"].split("/")[2]
        kinds.setdefault(kind, collections.Counter()).update(row.get("fates", {}))
        if row["status"] != "ok":
            detail = row["detail"] if isinstance(row["detail"], list) else [f"{row['status']}: {row['detail']}"]
            lines += [f"{row['row']}: {text}" for text in detail]
    lines += [f"{kind}: {', '.join(f'{n} {fate}' for fate, n in sorted(c.items()))}" for kind, c in kinds.items()]
    counts = [sum(sum(kinds[k].values()) for k in kinds if k in group) for group in (INTERRUPTS, FAILURES)]
    wrong = sum(row["status"] != "ok" for row in rows)
    return "\n".join(
        [*lines, f"{counts[0]} interrupts, {counts[1]} failed calls; {wrong} of {len(rows)} tasks are wrong"]
    )


def _tell(row: dict[str, Any]) -> None:
    if row["status"] != "ok":
        print(row["row"], row["status"], str(row["detail"])[:600], flush=True)


def _read(results: Path) -> dict[str, dict[str, Any]]:
    lines = results.read_text().splitlines() if results.exists() else []
    return {row["row"]: row for row in map(json.loads, lines)}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--interrupts", type=int, default=2000)
    parser.add_argument("--failures", type=int, default=2000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--only", default="", help="tasks with this in their names: perceptron/smelt/opcode")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after so many seconds; 0: at the end")
    parser.add_argument("--out", type=Path, default=None, help="folder of the results (default: one in /tmp)")
    parser.add_argument("--task", help="run one task here, and print what it finds")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
