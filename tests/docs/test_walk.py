"""docs/walk.md: the files to read from a call to its kernel are those that the call really enters, in that order."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "walk.md"
MOST = 25
"""Files that the walk may open."""

RECORDER = """
import json, runpy, sys, threading
import smelt

root = smelt.__file__.removesuffix("__init__.py")
seen = {}

def own(frame):
    while frame is not None and not frame.f_code.co_filename.startswith(root):
        frame = frame.f_back
    return frame

def entered(frame, event, argument):
    if event != "call" or not frame.f_code.co_filename.startswith(root):
        return
    key = (frame.f_code.co_filename, frame.f_code.co_qualname)
    if key in seen:
        return
    callers, caller = [], own(frame.f_back)
    while caller is not None:
        if caller.f_code.co_filename not in (key[0], *callers):
            callers.append(caller.f_code.co_filename)
        caller = own(caller.f_back)
    in_thread = threading.current_thread() is not threading.main_thread()
    seen[key] = [file.removeprefix(root) for file in callers], in_thread

program, out = sys.argv[1:]
threading.setprofile(entered)
sys.setprofile(entered)
runpy.run_path(program, run_name="__main__")
sys.setprofile(None)
with open(out, "w") as file:
    json.dump([[file.removeprefix(root), name, *how] for (file, name), how in seen.items()], file)
"""


class Row(NamedTuple):
    file: str
    function: str


class Entry(NamedTuple):
    """The first time that a function is entered: the files on the stack, nearest first; whether it is in a thread."""

    file: str
    function: str
    callers: list[str]
    in_thread: bool


def rows() -> list[Row]:
    found = re.findall(r"^\| (\d+) \| \[[^]]*\]\(\.\./smelt/([^)]*)\) \| `([^`]*)`", PAGE.read_text(), re.MULTILINE)
    assert [int(number) for number, _, _ in found] == list(range(1, len(found) + 1))
    return [Row(file, function) for _, file, function in found]


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> list[Entry]:
    """What the program of the page enters, in order."""
    folder = tmp_path_factory.mktemp("walk")
    source = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert source is not None
    (folder / "program.py").write_text(source[1])
    (folder / "recorder.py").write_text(RECORDER)
    settings = {"SMELT_CACHE_DIR": str(folder / "cache"), "SMELT_STRICT": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "recorder.py", "program.py", "entered.json"]
    run = subprocess.run(command, cwd=folder, env=os.environ | settings, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return [Entry(*each) for each in json.loads((folder / "entered.json").read_text())]


def problems(walk: list[Row], entries: list[Entry]) -> list[str]:
    """What is not true of the walk, for its rows in Python."""
    at = {(each.file, each.function): i for i, each in enumerate(entries)}
    found, last, above = [], -1, list[str]()
    for row in walk:
        if not row.file.endswith(".py"):
            continue
        index = at.get((row.file, row.function))
        if index is None:
            found.append(f"{row.file}: {row.function} is not entered")
            continue
        entry = entries[index]
        if index < last:
            found.append(f"{row.file}: {row.function} is entered before {entries[last].function}")
        if above and not set(entry.callers[:1]) & set(above) and not entry.in_thread:
            found.append(f"{row.file}: {row.function} is called from {entry.callers[:1]}, which is not above")
        last = index
        above.append(row.file)
    return found


def steps_beside() -> list[tuple[Row, int]]:
    """The functions that stand beside the path, each with the number of the row that calls it."""
    found = re.findall(r"^\| \[[^]]*\]\(\.\./smelt/([^)]*)\) \| `([^`]*)` \| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    return [(Row(file, function), int(number)) for file, function, number in found]


def not_named(walk: list[Row], entries: list[Entry]) -> set[str]:
    """Files on the stack when a row is entered that are not rows."""
    named = tuple(row.file for row in walk)
    of_walk = [each for each in entries if (each.file, each.function) in walk]
    return {file for each in of_walk for file in each.callers if not file.startswith(named)}


def test_the_walk_is_short() -> None:
    assert len(rows()) <= MOST and len({row.file for row in rows()}) == len(rows())


def test_each_function_is_entered_in_this_order_from_a_file_above(entries: list[Entry]) -> None:
    assert problems(rows(), entries) == []


def test_the_page_names_every_file_on_the_way(entries: list[Entry]) -> None:
    assert not_named(rows(), entries) == set()
    without_driver = [row for row in rows() if row.file != "driver.py"]
    assert not_named(without_driver, entries) == {"driver.py"}


def test_steps_beside_the_path_are_called_by_the_row_that_the_page_names(entries: list[Entry]) -> None:
    callers = {(each.file, each.function): each.callers[0] for each in entries if each.callers}
    assert steps_beside()
    for step, number in steps_beside():
        assert callers[step.file, step.function] == rows()[number - 1].file, step


def test_functions_of_c_stand_in_their_files() -> None:
    native = [row for row in rows() if row.file.endswith(".c")]
    assert native
    for row in native:
        text = (ROOT / "smelt" / row.file).read_text()
        assert re.search(rf"^static [^;]*\b{row.function}\([^;]*\{{", text, re.MULTILINE), row


def test_wrong_rows_are_found(entries: list[Entry]) -> None:
    first = Row("api.py", "compile")
    lower, joint = Row("loops/lower.py", "lower"), Row("autograd/trace/joint.py", "trace_joint")
    assert "not entered" in problems([Row("capture/torch/optimizers.py", "step")], entries)[0]
    assert "is not above" in problems([first, lower], entries)[0]
    assert "entered before" in problems([lower, joint], entries)[0]
