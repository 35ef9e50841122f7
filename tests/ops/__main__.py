"""`python -m tests.ops --dtypes float32,bfloat16`: OpInfo's samples of every operator, eager against `smelt.compile`.

`--layouts all` takes each sample in all layouts and with 0 and 1 in place of its sizes, `--sizes symbols` compiles for
any size, `--device cuda` runs on a GPU, `--samples 2` takes only so many of each row.
Rows run in child processes, many in each: a crash costs one row. A line for each row goes to the results file as it
ends, and a later run goes on after it; `--again wrong,error` does these rows once more. `--table` writes the committed
table.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.crew import LOST, add_arguments, serve, sweep

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
    ended = _run_all(given, rows, results)
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
    parser.add_argument("--samples", type=int, default=0, help="at most so many of each row (default: all)")
    parser.add_argument("--sizes", default="numbers", choices=("numbers", "symbols"), help="what graphs hold of sizes")
    parser.add_argument("--ops", default="", help="only operators with one of these names, separated by commas")
    parser.add_argument("--shard", default="0/1", help="i/n: each n-th row from the i-th on")
    parser.add_argument("--again", default="", help="statuses of rows that run once more")
    parser.add_argument(
        "--table",
        type=Path,
        default=None,
        help="write the table of all results to this file, which keeps what it says of other dtypes",
    )
    add_arguments(parser)
    return parser.parse_args()


def _dtypes() -> list[str]:
    from .cases import DTYPES

    return list(DTYPES)


def _cases(given: argparse.Namespace) -> list[Any]:
    from .cases import all_cases

    dtypes = _dtypes() if given.dtypes == "all" else given.dtypes.split(",")
    layouts = LAYOUTS if given.layouts == "all" else tuple(given.layouts.split(","))
    return all_cases(dtypes, layouts, given.device, given.samples, given.target, given.sizes == "symbols")


def _wanted(given: argparse.Namespace) -> list[str]:
    index, count = map(int, given.shard.split("/"))
    named = set(filter(None, given.ops.split(",")))
    names = [c.name for c in _cases(given) if not named or named & {c.info.name, c.info.full_name}]
    return names[index::count]


def _run_all(given: argparse.Namespace, rows: list[str], results: Path) -> bool:
    """Run what is not known yet; False when time was up first."""
    again = set(filter(None, given.again.split(",")))
    known = read(results)
    left = [name for name in rows if name not in known or known[name]["status"] in again]
    flags = {"dtypes": given.dtypes, "layouts": given.layouts, "samples": given.samples, "sizes": given.sizes}
    return sweep("tests.ops", given, left, results, flags=flags, stuck=_STUCK_SECONDS, noun="rows", every=40)


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
