"""`python -m tests.ops --dtypes float32,bfloat16`: OpInfo's samples of every operator, eager against `smelt.compile`.

Rows run in child processes, many in each: a crash costs one row. A line for each row goes to the results file, and a
later run goes on after it; `--again wrong,error` does these rows once more. `--table` writes the committed table.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .results import read, write_table

_BATCH = 40
_STUCK_SECONDS = 240
FAILED = ("wrong", "error", "crash", "hang")


def main() -> int:
    """Exit status 1 when a row is not right."""
    parser = argparse.ArgumentParser(prog="python -m tests.ops", description=__doc__)
    parser.add_argument("--dtypes", default="float32", help="of " + ", ".join(_dtypes()) + ", or all")
    parser.add_argument("--ops", default="", help="only operators with one of these names, separated by commas")
    parser.add_argument("--shard", default="0/1", help="i/n: each n-th row from the i-th on")
    parser.add_argument("--again", default="", help="statuses of rows that run once more")
    parser.add_argument("--out", type=Path, default=None, help="results and built kernels (default: a folder in /tmp)")
    parser.add_argument(
        "--table",
        type=Path,
        default=None,
        help="write the table of all results to this file, which keeps what it says of other dtypes",
    )
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    out = given.out or Path(tempfile.gettempdir()) / f"smelt-ops-{os.getuid()}"
    out.mkdir(parents=True, exist_ok=True)
    results = out / "results.jsonl"
    if given.work is not None:
        _work(json.loads(given.work), results)
        return 0
    rows = _wanted(given)
    _run_all(given, rows, results, out)
    done = read(results)
    if given.table:
        write_table(done, given.table)
    failed = [done[name] for name in rows if done[name]["status"] in FAILED]
    for row in failed:
        print(f"{row['row']}: {row['status']}: {row['detail']}")
    return int(bool(failed))


def _dtypes() -> list[str]:
    from .cases import DTYPES

    return list(DTYPES)


def _wanted(given: argparse.Namespace) -> list[str]:
    from .cases import all_cases

    index, count = map(int, given.shard.split("/"))
    cases = all_cases(_dtypes() if given.dtypes == "all" else given.dtypes.split(","))
    named = set(filter(None, given.ops.split(",")))
    names = [c.name for c in cases if not named or named & {c.info.name, c.info.full_name}]
    return names[index::count]


def _run_all(given: argparse.Namespace, rows: list[str], results: Path, out: Path) -> None:
    began, again = time.time(), set(filter(None, given.again.split(",")))
    known = read(results)
    left = [name for name in rows if name not in known or known[name]["status"] in again]
    while left:
        _batch(left[:_BATCH], results, out)
        done = read(results, ended_after=began)
        left = [name for name in left if name not in done]
        counts = collections.Counter(done[name]["status"] for name in rows if name in done)
        text = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        print(f"{sum(counts.values())} rows after {time.time() - began:.0f} s: {text}; {len(left)} left", flush=True)


def _batch(names: list[str], results: Path, out: Path) -> None:
    """Run rows in a child; when it dies, the row that it had begun is a crash."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.ops", "--out", str(out), "--work", json.dumps(names)]
    environment = {**os.environ, "SMELT_STRICT": "1", "SMELT_CACHE_DIR": str(out / "kernels")}
    environment.setdefault("OMP_NUM_THREADS", "1")
    began = time.time()
    with tempfile.TemporaryFile("w+") as told:
        child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=told)
        size, changed, stuck = -1, time.monotonic(), False
        while child.poll() is None:
            time.sleep(0.2)
            now = results.stat().st_size if results.exists() else 0
            if now != size:
                size, changed = now, time.monotonic()
            elif time.monotonic() - changed > _STUCK_SECONDS:
                stuck = True
                child.kill()
        if child.returncode == 0:
            return
        told.seek(0)
        text = told.read()[-600:]
    done = read(results, ended_after=began)
    begun = next((name for name in names if name not in done), None)
    if begun is None or (child.returncode > 0 and not _was_begun(results, begun)):
        raise SystemExit(f"the worker failed:\n{text}")
    how = {"row": begun, "status": "hang" if stuck else "crash", "detail": f"exit {child.returncode}: {text}"}
    _append(results, {**how, "ended": time.time()})


def _was_begun(results: Path, name: str) -> bool:
    lines = results.read_text().splitlines() if results.exists() else []
    return any(json.loads(line)["row"] == name for line in lines[-2:])


def _append(results: Path, row: dict[str, Any]) -> None:
    with results.open("a") as file:
        file.write(json.dumps(row) + "\n")


def _work(names: list[str], results: Path) -> None:
    """The child: judge rows, a line before and after each."""
    from .cases import all_cases
    from .compare import judge

    cases = {c.name: c for c in all_cases(sorted({name.split()[1] for name in names}))}
    for name in names:
        _append(results, {"row": name, "status": "begun"})
        began = time.time()
        row = judge(cases[name])
        details = [f"sample {n}: {text}" for n, text in (row.wrong or row.errors).items()]
        found = {
            "row": name,
            "status": row.status,
            "samples": row.samples,
            "gradients": cases[name].gradients,
            "wrong": len(row.wrong),
            "errors": len(row.errors),
            "skipped": row.skipped,
            "left": row.left,
            "fallbacks": dict(row.fallbacks),
            "detail": details[0] if details else "",
            "details": details[1:4],
            "seconds": round(time.time() - began, 2),
            "ended": time.time(),
        }
        _append(results, found)


if __name__ == "__main__":
    sys.exit(main())
