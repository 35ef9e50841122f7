"""`python -m tests.fuzz.tensors --device cuda --programs 20000 --jobs 14`: random programs of tensors against eager.

Programs run in child processes, many in each: a crash costs one program. Results are appended as they come, so that a
later run goes on. Programs that differ are shrunk by leaving out statements and inputs; the smallest of each kind is
printed, and all are in the folder of the results. `--show 17` prints a program, `--run 17` compares it here.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.crew import add_arguments, serve, sweep

from .tensor_grammar import Program
from .tensor_programs import make_program
from .tensor_runs import compare

FAILED = ("different", "error", "hang", "crash")
SHRINK_SECONDS = 20.0
SHRUNK_OF_A_KIND = 2  # by each process
STUCK_SECONDS = 120


def main() -> int:
    """Exit status 1 when a program differs, 2 when time was up before the last."""
    given = _arguments()
    if given.serve:
        serve(_worker(given))
        return 0
    if given.show is not None:
        print(make_program(f"{given.seed}:{given.show}"))
        return 0
    if given.run is not None:
        found = compare(make_program(f"{given.seed}:{given.run}"), given.device, given.target)
        print(found["status"], found["detail"] or "")
        return int(found["status"] in FAILED)
    if given.series:
        return _in_this_process(given)
    out = given.out or Path(tempfile.gettempdir()) / f"smelt-tensors-{os.getuid()}"
    out.mkdir(parents=True, exist_ok=True)
    results = out / f"tensors-{given.seed}-{given.device}-{given.target}.jsonl"
    wanted = [str(n) for n in range(given.start, given.start + given.programs)]
    known = _read(results)
    left = [n for n in wanted if n not in known]
    ended = sweep(
        "tests.fuzz.tensors",
        given,
        left,
        results,
        flags={"seed": given.seed},
        stuck=STUCK_SECONDS,
        noun="programs",
        every=100,
    )
    rows = [row for n, row in _read(results).items() if n in set(wanted)]
    failed = [row for row in rows if row["status"] in FAILED]
    print(report(failed, given.seed))
    counts = collections.Counter(row["status"] for row in rows)
    print(f"{len(rows)} programs: " + ", ".join(f"{count} {status}" for status, count in sorted(counts.items())))
    return int(bool(failed)) if ended else 2


def _in_this_process(given: argparse.Namespace) -> int:
    """For tools that look at one process: whatever differs is printed."""
    failed = 0
    for number in range(given.start, given.start + given.series):
        found = compare(make_program(f"{given.seed}:{number}"), given.device, given.target)
        if found["status"] in FAILED:
            failed += 1
            print(f"{number}: {found['status']}: {found['detail']}", flush=True)
    print(f"{given.series} programs, {failed} differ")
    return int(bool(failed))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.tensors", description=__doc__)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0, help="number of the first program")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--show", type=int, default=None, help="print this program and stop")
    parser.add_argument("--run", type=int, default=None, help="compare this program in this process and stop")
    parser.add_argument("--series", type=int, default=0, help="compare so many programs in this process and stop")
    add_arguments(parser)
    return parser.parse_args()


def _read(results: Path) -> dict[str, dict[str, Any]]:
    rows = {}
    for line in results.read_text().splitlines() if results.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:  # of a run that was killed
            continue
        rows[row["row"]] = row
    return rows


def _worker(given: argparse.Namespace) -> Any:
    seen: collections.Counter[str] = collections.Counter()

    def work(number: str) -> dict[str, Any]:
        program = make_program(f"{given.seed}:{number}")
        began = time.time()
        found = compare(program, given.device, given.target)
        kind = kind_of(found)
        if found["status"] in ("different", "error"):
            seen[kind] += 1
            if seen[kind] <= SHRUNK_OF_A_KIND:
                program = shrink(program, kind, given.device, given.target)
            found["program"] = str(program)
        return {"row": number, **found, "seconds": round(time.time() - began, 2)}

    return work


def kind_of(found: dict[str, Any]) -> str:
    """What must stay the same while a program is shrunk."""
    detail = str(found["detail"] or "")
    if found["status"] == "different":
        told = re.sub(r"^call \d+: ", "", detail)
        what = re.search(r"strides|dtype|shape|requires_grad|memory|held|nan|inf|gradient|bits", told)
        dtype = re.search(r"torch\.\w+$", told)
        return f"different {what.group() if what else 'values'} {dtype.group() if dtype else ''}"
    return f"{found['status']} {re.sub(r'[0-9]+', 'N', detail)[:120]}"


def shrink(program: Program, kind: str, device: str, target: str) -> Program:
    """A smaller program that fails in the same way."""
    end = time.monotonic() + SHRINK_SECONDS
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(program):
            if time.monotonic() > end:
                return program
            found = compare(candidate, device, target)
            if found.get("lost"):
                return program
            if kind_of(found) == kind:
                program, smaller = candidate, True
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    """The program with one thing less."""
    lines = program.lines
    for i in reversed(range(len(lines))):
        yield replace(program, lines=lines[:i] + lines[i + 1 :])
    for name in program.results if len(program.results) > 1 else ():
        yield replace(program, results=tuple(r for r in program.results if r != name))
    if program.others:
        yield replace(program, others={})
    if program.dynamic:
        yield replace(program, dynamic=False)
    for i in range(len(program.inputs)):
        yield replace(program, inputs=program.inputs[:i] + program.inputs[i + 1 :])
    for i, given in enumerate(program.inputs):
        simpler = [replace(given, leaf=False)] * given.leaf + [replace(given, layout="own")] * (given.layout != "own")
        for one in simpler:
            yield replace(program, inputs=(*program.inputs[:i], one, *program.inputs[i + 1 :]))


def report(failed: list[dict[str, Any]], seed: str) -> str:
    """Each kind of failure with its smallest program."""
    kinds: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for row in failed:
        kinds[kind_of(row)].append(row)
    told = []
    for kind, rows in sorted(kinds.items(), key=lambda item: -len(item[1])):
        least = min(rows, key=lambda row: len(row.get("program") or " " * 5000))
        text = least.get("program") or str(make_program(f"{seed}:{least['row']}"))
        numbers = ", ".join(row["row"] for row in rows[:8])
        told.append(f"=== {len(rows)} of kind: {kind}: {numbers}\n{least['row']}: {least['detail']}\n{text}")
    return "\n".join(told) if told else "no difference, no crash"


if __name__ == "__main__":
    sys.exit(main())
