"""`python -m tests.fuzz --programs 20000 --seed 1`: compare that many random programs with eager.

Programs run in child processes, many in each: a crash costs one program. What was compared is in the results file, so
`--resume` goes on where an earlier run of the same seed stopped. Failing programs are shrunk and written to a folder.
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

from .grammar import make_program
from .worker import ENDLESS, FAILED, backend_of, compare, save, work

_BATCH = 1000
_STUCK_SECONDS = 300


def main() -> int:
    """Exit status 1 when a program differs, crashes or hangs."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--start", type=int, default=0, help="number of the first program")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument(
        "--out", type=Path, default=None, help="results and failing programs (default: a folder in /tmp)"
    )
    parser.add_argument("--show", type=int, default=None, help="print this program of the series and stop")
    parser.add_argument("--run", type=Path, default=None, help="compare one program of the corpus and stop")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.show is not None:
        print(make_program(f"{given.seed}:{given.show}"))
        return 0
    if given.run is not None:
        return _run_file(given.run)
    out = given.out or Path(tempfile.gettempdir()) / f"smelt-fuzz-{os.getuid()}"
    out.mkdir(parents=True, exist_ok=True)
    results = out / f"results-{given.seed}-{sys.version_info.major}.{sys.version_info.minor}.jsonl"
    if given.work is not None:
        work(given.seed, json.loads(given.work), results, out / "failures")
        return 0
    if not given.resume:
        results.unlink(missing_ok=True)
    return _series(given, out, results)


def _run_file(path: Path) -> int:
    source = path.read_text()
    found = compare(source, "aot_eager" if source.startswith("# backend: aot_eager") else "eager")
    print(found["status"], found["detail"] or "")
    return int(found["status"] in FAILED)


def _read(results: Path) -> tuple[dict[int, dict[str, object]], int | None]:
    """What is known of each program, and the one that was begun last without an end."""
    done: dict[int, dict[str, object]] = {}
    open_: int | None = None
    for line in results.read_text().splitlines() if results.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row["status"] == "begun":
            open_ = row["program"]
        else:
            done[row["program"]] = row
            open_ = None if open_ == row["program"] else open_
    return done, open_


def _series(given: argparse.Namespace, out: Path, results: Path) -> int:
    began = time.time()
    wanted = range(given.start, given.start + given.programs)
    while True:
        done, _ = _read(results)
        left = [n for n in wanted if n not in done][:_BATCH]
        if not left:
            break
        _batch(given, out, results, left)
        _report(_read(results)[0], wanted, began)
    done, _ = _read(results)
    failed = [row for n, row in sorted(done.items()) if n in wanted and row["status"] in FAILED]
    for row in failed:
        print(f"program {row['program']}: {row['status']}: {row['detail']}")
    print(f"failing programs are in {out / 'failures'}" if failed else "no difference, no crash")
    return int(bool(failed))


def _batch(given: argparse.Namespace, out: Path, results: Path, numbers: list[int]) -> None:
    """Run a batch in a child; when it dies, the program that it had begun is a crash."""
    command = [
        sys.executable,
        "-m",
        "tests.fuzz",
        "--seed",
        given.seed,
        "--out",
        str(out),
        "--work",
        json.dumps(numbers),
    ]
    environment = {**os.environ, "SMELT_STRICT": "1"}
    child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    size, changed = -1, time.monotonic()
    while True:
        try:
            _, text = child.communicate(timeout=5)
            break
        except subprocess.TimeoutExpired:
            now = results.stat().st_size if results.exists() else 0
            if now != size:
                size, changed = now, time.monotonic()
            elif time.monotonic() - changed > _STUCK_SECONDS:
                child.kill()
    _, begun = _read(results)
    if child.returncode != 0:
        if begun is None:
            raise SystemExit(f"the worker failed:\n{text}")
        row = {"program": begun, "status": "crash", "detail": f"exit {child.returncode}: {text[-400:]}"}
        if child.returncode == ENDLESS:
            row = {"program": begun, "status": "invalid", "detail": "does not end"}
        else:
            source = make_program(f"{given.seed}:{begun}")
            save(out / "failures", given.seed, begun, backend_of(begun), source, row)
        with results.open("a") as file:
            file.write(json.dumps(row) + "\n")


def _report(done: dict[int, dict[str, object]], wanted: range, began: float) -> None:
    rows = [row for n, row in done.items() if n in wanted]
    counts = collections.Counter(str(row["status"]) for row in rows)
    sums = {k: sum(int(str(row.get(k, 0))) for row in rows) for k in ("graphs", "breaks", "recompiles", "fallbacks")}
    text = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    more = ", ".join(f"{count} {name}" for name, count in sums.items())
    print(f"{len(rows)} of {len(wanted)} programs after {time.time() - began:.0f} s: {text}; {more}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
