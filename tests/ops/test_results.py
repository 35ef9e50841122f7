"""The page of OpInfo's results keeps what it says of dtypes that a later run leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.ops.results import write_table


def row(name: str, status: str = "right", detail: str = "", ended: float = 0.0, **fallbacks: int) -> dict[str, Any]:
    return {"row": name, "status": status, "detail": detail, "fallbacks": fallbacks, "ended": ended}


def test_a_run_of_one_dtype(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    why = "sample 0: Unsupported at a.py:1: no sizes | why: none"
    first = [row("add float32"), row("sub float32", "error", why), row("add int64"), row("sub int64", "error", why)]
    write_table({each["row"]: each for each in first}, page)
    assert "- error: no sizes why: none: sub float32, sub int64" in page.read_text()
    later = [row("add float32", ended=86400.0, aten_add=1), row("sub float32", ended=86400.0)]
    write_table({each["row"]: each for each in later}, page)
    text = page.read_text()
    assert "| float32 | 2 | 2 (100.0 %) | 0 | 0 | 1 (50.0 %) | 1970-01-02 |" in text
    assert "| int64 | 2 | 1 (50.0 %) | 0 | 1 | 1 (50.0 %) | 1970-01-01 |" in text
    assert "- error: no sizes why: none: sub int64\n" in text
    assert (
        "| operator | float32 | int64 |" in text and "| add | eager | ok |" in text and "| sub | ok | error |" in text
    )
