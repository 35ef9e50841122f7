"""Writes the report as Markdown and as HTML into a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from smelt.base.errors import SmeltError
from smelt.bench.report.compare import Comparison
from smelt.bench.report.html import report_html
from smelt.bench.report.markdown import report_markdown
from smelt.bench.results import Benchmark


def write_report(folder: Path, benchmarks: Sequence[Benchmark], comparison: Comparison | None = None) -> list[Path]:
    """Write report.md and index.html into `folder`, which is created if missing; returns their paths.

    Raises:
        SmeltError: the folder cannot be written.
    """
    texts = {
        "report.md": report_markdown(benchmarks, comparison),
        "index.html": report_html(benchmarks, comparison),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SmeltError(f"cannot write to {folder}", why=error.strerror, hint="another --out FOLDER") from None
    return [folder / name for name in texts]
