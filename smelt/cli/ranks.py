"""`smelt explain --ranks` and `smelt ranks`: a report of each process of a distributed run, and what they differ in."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from smelt.base.errors import OptionError
from smelt.base.stats import TABLES
from smelt.base.text import on_one_line

TIMES = ("compile_s", "collective_wait_s")
"""Counters in seconds, which always differ between processes."""


@dataclass(frozen=True)
class RankReport:
    """What one process has compiled.

    Attributes:
        rank, world: its rank, and the number of processes.
        title: the script with its arguments.
        status: the script's exit status.
        stats: `smelt.stats()` at the end.
        text: the text of `smelt explain`.
    """

    rank: int
    world: int
    title: str
    status: int
    stats: dict[str, Any]
    text: str


def write_report(folder: Path, title: str, status: int, stats: Mapping[str, Any], text: str) -> Path:
    """Write the report of this process, whose rank is in the environment as torchrun sets it; returns the file.

    Raises:
        OSError: the file cannot be written.
    """
    rank, world = (int(os.environ.get(name, other)) for name, other in (("RANK", "0"), ("WORLD_SIZE", "1")))
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"rank{rank}.json"
    new = folder / f".rank{rank}.{os.getpid()}"
    new.write_text(json.dumps(asdict(RankReport(rank, world, title, status, dict(stats), text))), "utf-8", "replace")
    os.replace(new, file)
    return file


def read_reports(folder: Path) -> list[RankReport]:
    """Returns the reports in a folder, by rank.

    Raises:
        OptionError: there are none, or a file is no report.
    """
    reports = []
    for file in sorted(folder.glob("rank*.json")):
        try:
            reports.append(RankReport(**json.loads(file.read_text("utf-8"))))
        except (OSError, ValueError, TypeError) as error:
            raise OptionError(
                f"{file} is no report of a rank", why=str(error), hint="write it with `smelt explain --ranks`"
            ) from error
    if not reports:
        raise OptionError(
            f"{folder} has no reports of ranks", hint=f"torchrun ... -m smelt explain --ranks {folder} SCRIPT"
        )
    return sorted(reports, key=lambda report: report.rank)


def merged(reports: Sequence[RankReport]) -> str:
    """Returns one text about all processes: their counters side by side, then what only some of them have."""
    ranks = [report.rank for report in reports]
    world = max(report.world for report in reports)
    lines = [on_one_line(reports[0].title), ""]
    lines += [
        f"no report of rank {rank}: it had not ended, or was killed" for rank in range(world) if rank not in ranks
    ]
    lines += [f"rank {each.rank} ended with exit status {each.status}" for each in reports if each.status]
    lines += _aligned(_rows(reports))
    for table in TABLES:
        lines += _differences(table, reports)
    return "\n".join(lines)


def _rows(reports: Sequence[RankReport]) -> list[list[str]]:
    """Returns a row for each counter, with a word where processes differ."""
    rows = [["", *(f"rank {each.rank}" for each in reports), ""]]
    for name in _counters(reports):
        found = [each.stats.get(name, 0) for each in reports]
        differ = name not in TIMES and len(set(found)) > 1
        rows.append([name, *(f"{n:.2f}" if name in TIMES else str(n) for n in found), "differ" if differ else ""])
    return rows


def _counters(reports: Sequence[RankReport]) -> list[str]:
    """Returns the names of the counters that any report has, in order."""
    return list(
        dict.fromkeys(n for each in reports for n, value in each.stats.items() if isinstance(value, int | float))
    )


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width) for at, (cell, width) in enumerate(cells)
        ).rstrip()
        for cells in (list(zip(row, widths, strict=True)) for row in rows)
    ]


def _differences(table: str, reports: Sequence[RankReport]) -> list[str]:
    """Returns the entries of a table that processes have a different number of times."""
    counts = {each.rank: each.stats.get(table, {}) for each in reports}
    lines = []
    for entry in dict.fromkeys(entry for found in counts.values() for entry in found):
        times = {rank: found.get(entry, 0) for rank, found in counts.items()}
        if len({*times.values()}) > 1:
            where = ", ".join(f"{n} on rank {rank}" for rank, n in times.items() if n)
            lines.append(f"  {on_one_line(entry)}: {where}")
    return ["", f"{table} that differ:", *lines] if lines else []
