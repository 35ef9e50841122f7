"""Files that the pages for contributors name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("CONTRIBUTING.md", "docs/architecture.md", "docs/walk.md", "docs/index.md", "docs/how-it-works.in.md")


def missing(text: str, folder: Path) -> list[str]:
    """Paths in backticks (from the root, or from smelt/) and targets of links (from the page) that are not there."""
    named = re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|c|md|json)|(?:smelt|tests|docs)/(?:[\w-]+/)*)`", text)
    linked = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    roots = (ROOT, ROOT / "smelt", ROOT / "smelt" / "capture", ROOT / "smelt" / "graph")
    gone = [path for path in named if not any((root / path).exists() for root in roots)]
    return gone + [path for path in linked if not (folder / path).exists()]


@pytest.mark.parametrize("page", PAGES)
def test_they_are_there(page: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    assert missing(text, (ROOT / page).parent) == []


def test_missing_paths_are_found() -> None:
    assert missing("`smelt/gone.py`, `base/gone/` or [a page](gone.md), `runtime/build.py`", ROOT) == [
        "smelt/gone.py",
        "gone.md",
    ]
