"""The examples of the pages run and print what the pages say."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["backends.md", "tiny.md"]


@pytest.mark.parametrize("page", PAGES)
def test_examples(page: str) -> None:
    blocks = re.findall(r"```(python|text)\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    space = {"__name__": "__main__"}
    for (kind, source), (other, expected) in zip(blocks[::2], blocks[1::2], strict=True):
        assert (kind, other) == ("python", "text")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, page, "exec"), space)
        assert printed.getvalue() == expected


def test_the_page_of_artefacts_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "artefacts.md").read_text(), re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for source in blocks:
            exec(compile(source, "artefacts.md", "exec"), {"__name__": "__main__"})
    assert printed.getvalue() == "torch.Size([])\n0 new entries\n" and len(blocks) == 2
