"""A task that ends its process costs that task alone; what came before and after it is in the results."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.crew import Crew, add_arguments

WORKER = """
import os, sys, time
from tests.crew import LOST, serve

def work(task):
    print("noise")
    if task == "die":
        os._exit(9)
    if task == "lose":
        return {"row": task, "status": "crash", LOST: True}
    if task == "sleep":
        time.sleep(60)
    return {"row": task, "status": "right", "process": os.getpid()}

serve(work)
"""


def run(tmp_path: Path, tasks: list[str], **options: Any) -> tuple[bool, dict[str, dict[str, Any]]]:
    results = tmp_path / "results.jsonl"
    ended = Crew([sys.executable, "-c", WORKER], results, **options).run(tasks)
    rows = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    return ended, {row["row"]: row for row in rows}


def test_workers_continue_after_a_crash(tmp_path: Path) -> None:
    ended, rows = run(tmp_path, ["a", "die", "b", "lose", "c", "sleep", "d"], stuck=3.0)
    assert ended and set(rows) == {"a", "die", "b", "lose", "c", "sleep", "d"}
    assert rows["die"]["status"] == "crash" and "exit 9" in rows["die"]["detail"] and rows["sleep"]["status"] == "hang"
    assert len({rows[name]["process"] for name in "abcd"}) == 4  # a new process each time


def test_a_crew_shares_and_stops_in_time(tmp_path: Path) -> None:
    ended, rows = run(tmp_path, [*"abcdef"], jobs=2)
    assert ended and set(rows) == set("abcdef")
    ended, rows = run(tmp_path, ["g", "sleep", "h"], seconds=3.0)
    assert not ended and "h" not in rows


def test_a_worker_that_cannot_start_is_reported(tmp_path: Path) -> None:
    try:
        Crew([sys.executable, "-c", "raise SystemExit('no such thing')"], tmp_path / "results.jsonl").run(["a"])
    except SystemExit as error:
        assert "no such thing" in str(error)
    else:
        raise AssertionError("nothing was said")


@pytest.mark.parametrize("jobs", ["0", "-1"])
def test_zero_workers_are_refused(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It would do nothing, and find no difference."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--jobs", jobs])
    assert "at least 1 process" in capsys.readouterr().err
