"""The examples of the pages run and print what the pages say."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["backends.md"]


@pytest.mark.parametrize("page", PAGES)
def test_examples(page: str) -> None:
    blocks = re.findall(r"```(python|text)\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    for (kind, source), (other, expected) in zip(blocks[::2], blocks[1::2], strict=True):
        assert (kind, other) == ("python", "text")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, page, "exec"), {"__name__": "__main__"})
        assert printed.getvalue() == expected
