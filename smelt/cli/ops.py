"""`smelt ops`: the two operator sets that a graph is made of, printed with their status or written as a page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from rich.console import Console

from smelt.cli.operators import Row, aten_rows, counted, page, prim_rows


def show_ops(console: Console, aten: bool = False, status: str | None = None) -> None:
    """Print every primitive by kind with its typed signature; or canonical ATen by family.

    Args:
        status: only operators with this status are printed; None: all.
    """
    rows = sorted(aten_rows(), key=lambda row: row.kind) if aten else prim_rows()
    kept = [row for row in rows if status in (None, row.status)]
    for kind, group in groupby(kept, key=lambda row: row.kind):
        _show_group(console, kind or "without a decomposition", list(group), aten)
    what = "canonical ATen operators" if aten else "primitives"
    console.print(f"\n{len(rows)} {what}: {counted(rows)}", highlight=False)


def _show_group(console: Console, kind: str, rows: Sequence[Row], aten: bool) -> None:
    console.print(f"[bold]{kind}[/] ({len(rows)})", highlight=False)
    for row in rows:
        text = row.name if aten else row.schema
        console.print(f"  {row.status:<14}  {text}", markup=False, highlight=False, soft_wrap=True)


def write_ops(path: Path) -> None:
    """Write both sets as a page of the documentation."""
    path.write_text(page())
