"""docs/make_story.py, and that the committed page is what the compiler makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

from make_story import MARK, NARRATIVE, PAGE, block, comparable, make_page, matching, stable  # noqa: E402


def test_marks_are_replaced() -> None:
    page = make_page("# Title\n<!-- program -->\n<!-- artefact: 1_torch*.py -->", {"1_torch.py": "x = 1\n"})
    assert "# Title" in page
    assert "smelt.compile" in page
    assert "`1_torch.py`\n```python\nx = 1\n```" in page


def test_an_artefact_that_is_missing_is_an_error() -> None:
    with pytest.raises(KeyError, match="3_prims"):
        make_page("<!-- artefact: 3_prims*.py -->", {"1_torch.py": ""})


def test_backward_follows_forward() -> None:
    names = {"4_backward_loops.txt": "", "4_forward_loops.txt": ""}
    assert matching("4_*loops.txt", names) == ["4_forward_loops.txt", "4_backward_loops.txt"]


def test_run_dependent_text_is_left_out() -> None:
    key = "0123456789abcdef" * 4
    text = stable(f"at 0x7f0011223344 key {key}\n{ROOT}/smelt/api.py  \n<module 'torch' from '/x/y'>\n")
    assert text == "at 0x... key 01234567...\nsmelt/api.py\n<module 'torch'>\n"


def test_generated_cpp_is_not_compared() -> None:
    assert comparable(block("6.cpp", "int a;")) == comparable(block("6.cpp", "int b;"))
    assert comparable("modes are (1, 2)\nx") == comparable("modes are (3,)\nx")
    assert comparable(block("7.py", "a")) != comparable(block("7.py", "b"))


def test_every_stage_is_logged() -> None:
    marks = [match["pattern"] for line in NARRATIVE.read_text().splitlines() if (match := MARK.match(line))]
    stages = "1_torch*.py 2_joint*.py 3_prims*.py 4_*loops.txt 5_*schedule.txt 6_*kernels.cpp 7_*host.py guards.py"
    assert set(stages.split()) == {mark for mark in marks if mark}


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the page shows the operators of torch 2.13")
@pytest.mark.skipif(not PAGE.exists(), reason="the page is not made yet: make docs")
def test_the_committed_page_is_current() -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "make_story.py"), "--check"], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr
