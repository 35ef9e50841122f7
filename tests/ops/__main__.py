"""`python -m tests.ops --dtypes float32,bfloat16`: OpInfo's samples of every operator, eager against `smelt.compile`.

`--layouts all` takes each sample in five layouts, `--device cuda` on a GPU, `--samples 2` only so many of each row.
Rows run in child processes, many in each: a crash costs one row. A line for each row goes to the results file as it
ends, and a later run goes on after it; `--again wrong,error` does these rows once more. `--table` writes the committed
table.
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.crew import LOST, Crew, serve

from .layouts import LAYOUTS
from .results import failures, read, write_table

_STUCK_SECONDS = 240
FAILED = ("wrong", "error", "crash", "hang")


def main() -> int:
    """Exit status 1 when a row is not right, 2 when time was up before the last."""
    given = _arguments()
    if given.serve:
        return _serve(given)
    out = given.out or Path(tempfile.gettempdir()) / f"smelt-ops-{os.getuid()}"
    out.mkdir(parents=True, exist_ok=True)
    results = out / "results.jsonl"
    rows = _wanted(given)
    ended = _run_all(given, rows, results, out)
    done = {name: row for name, row in read(results).items() if name in set(rows)}
    if given.table:
        write_table(read(results), given.table)
    failed = [row for row in done.values() if row["status"] in FAILED]
    for row in failed:
        print(f"{row['row']}: {row['status']}: {row['detail']}")
    print(failures(failed))
    return 2 if not ended else int(bool(failed))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.ops", description=__doc__)
    parser.add_argument("--dtypes", default="float32", help="of " + ", ".join(_dtypes()) + ", or all")
    parser.add_argument("--layouts", default="own", help="of " + ", ".join(LAYOUTS) + ", or all")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--target", default="auto", help="auto, cpp or triton (on a CPU through Triton's interpreter)")
    parser.add_argument("--samples", type=int, default=0, help="at most so many of each row (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=0.0, help="when to stop; the next run goes on")
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
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _dtypes() -> list[str]:
    from .cases import DTYPES

    return list(DTYPES)


def _cases(given: argparse.Namespace) -> list[Any]:
    from .cases import all_cases

    dtypes = _dtypes() if given.dtypes == "all" else given.dtypes.split(",")
    layouts = LAYOUTS if given.layouts == "all" else tuple(given.layouts.split(","))
    return all_cases(dtypes, layouts, given.device, given.samples, given.target)


def _wanted(given: argparse.Namespace) -> list[str]:
    index, count = map(int, given.shard.split("/"))
    named = set(filter(None, given.ops.split(",")))
    names = [c.name for c in _cases(given) if not named or named & {c.info.name, c.info.full_name}]
    return names[index::count]


def _run_all(given: argparse.Namespace, rows: list[str], results: Path, out: Path) -> bool:
    """Run what is not known yet; False when time was up first."""
    began, again = time.time(), set(filter(None, given.again.split(",")))
    known = read(results)
    left = [name for name in rows if name not in known or known[name]["status"] in again]
    counts: collections.Counter[str] = collections.Counter()

    def told(row: dict[str, Any]) -> None:
        counts[row["status"]] += 1
        done = sum(counts.values())
        if done % 40 == 0 or done == len(left):
            text = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
            print(f"{done} of {len(left)} rows after {time.time() - began:.0f} s: {text}", flush=True)

    command = [sys.executable, "-W", "ignore", "-m", "tests.ops", "--serve", "--dtypes", given.dtypes]
    command += ["--layouts", given.layouts, "--device", given.device]
    command += ["--samples", str(given.samples), "--target", given.target]
    crew = Crew(
        command,
        results,
        jobs=given.jobs,
        seconds=given.seconds,
        stuck=_STUCK_SECONDS,
        environment={"SMELT_CACHE_DIR": str(out / "kernels")},
        told=told,
    )
    return crew.run(left)


def _serve(given: argparse.Namespace) -> int:
    """A worker: judge the rows that it is told."""
    from .compare import judge

    cases = {c.name: c for c in _cases(given)}

    def work(name: str) -> dict[str, Any]:
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
            "detail": row.lost or (details[0] if details else ""),
            "details": details[1:4],
            "seconds": round(time.time() - began, 2),
        }
        return found | ({LOST: True} if row.lost else {})

    serve(work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
