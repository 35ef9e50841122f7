"""The lines of a run, and the table that is committed."""

from __future__ import annotations

import collections
import json
import re
import time
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]
Rows = dict[str, Row]


def read(path: Path, ended_after: float = 0.0) -> Rows:
    """The last line of each row that ended."""
    rows: Rows = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:  # a line that a killed child did not finish
            continue
        if row["status"] != "begun" and row["ended"] >= ended_after:
            rows[row["row"]] = row
    return rows


def failures(rows: list[Row]) -> str:
    """What failed, by kind: how often, and where."""
    kinds: dict[str, list[str]] = collections.defaultdict(list)
    for row in rows:
        kinds[f"{row['status']}: {_kind(row['detail'])}"].append(row["row"])
    lines = [f"{len(rows)} rows failed, of {len(kinds)} kinds" if rows else "no row failed"]
    for kind, names in sorted(kinds.items(), key=lambda item: -len(item[1])):
        more = f" and {len(names) - 6} more" if len(names) > 6 else ""
        lines.append(f"{len(names):5} {kind}: {', '.join(names[:6])}{more}")
    return "\n".join(lines)


def _kind(detail: str) -> str:
    """The text of a failure without the numbers that differ from sample to sample."""
    text = re.sub(r"^sample \d+: ", "", detail)
    if text.startswith(("result", "gradient", "second call", "memory", "held")):
        what = re.sub(r"\[\d+\]", "", text)
        fact = re.search(r"strides|dtype|shape|layout|requires_grad|nan|inf", what)
        return what.partition(":")[0] + (f" {fact.group()}" if fact else "")
    return re.sub(r"\d+", "N", text)[:160]


def write_table(rows: Rows, path: Path) -> None:
    """The results as a page: counts, a line for each operator, and what is not right with its reason.

    Of dtypes that these results lack the page keeps what it said.
    """
    rows = {name: row for name, row in rows.items() if len(name.split()) == 2}  # without those of other layouts
    ran = list(dict.fromkeys(name.split()[1] for name in rows))
    counts, cells, reasons = _kept(path.read_text() if path.exists() else "", set(ran))
    counts = {d: _counts(d, [row for name, row in rows.items() if name.split()[1] == d]) for d in ran} | counts
    cells |= {(name.split()[0], name.split()[1]): _cell(row) for name, row in rows.items()}
    for reason, names in _reasons(rows).items():
        reasons[reason] = names + reasons.get(reason, [])
    lines = [
        "<!-- made by `make test-ops`; do not edit -->",
        "",
        "# OpInfo as the judge",
        "",
        "Every operator of PyTorch's OpInfo database, all samples, forward and gradient through `smelt.compile(fn,",
        f"fullgraph=True)` against eager, with torch {torch.__version__.split('+')[0]} on a CPU. Compared are values",
        "(within a small factor of eager's own error, measured in double precision), dtypes, shapes and strides.",
        "`ok`: right, all in generated code and library kernels; `eager`: right, with calls of PyTorch's own operators",
        "inside the graph; `n/a`: eager itself refuses all samples.",
        "",
        "| dtype | rows | right | wrong value | error | without eager calls | run |",
        "|---|---|---|---|---|---|---|",
        *counts.values(),
        "",
        "## What is not right",
        "",
        *(f"- {reason}: {', '.join(names)}" for reason, names in sorted(reasons.items())),
        "",
        "## All",
        "",
        f"| operator | {' | '.join(counts)} |",
        f"|---|{'---|' * len(counts)}",
    ]
    for operator in sorted({operator for operator, _ in cells}):
        lines.append(f"| {operator} | {' | '.join(cells.get((operator, dtype), '') for dtype in counts)} |")
    path.write_text("\n".join(lines) + "\n")


def _kept(text: str, ran: set[str]) -> tuple[dict[str, str], dict[tuple[str, str], str], dict[str, list[str]]]:
    """Counts, cells and reasons that a page holds of other dtypes than these."""
    counts: dict[str, str] = {}
    cells: dict[tuple[str, str], str] = {}
    reasons: dict[str, list[str]] = {}
    dtypes: list[str] = []
    table = ""
    for line in text.splitlines():
        first, *rest = (part.strip() for part in line.strip("|").split("|"))
        if first in ("dtype", "operator"):
            table, dtypes = first, rest
        elif line.startswith("- "):
            reason, _, names = line[2:].rpartition(": ")
            others = [name for name in names.split(", ") if name.split()[-1] not in ran]
            reasons |= {reason: others} if others else {}
        elif line.startswith("| ") and table == "dtype" and first not in ran:
            counts[first] = line if len(rest) == _COLUMNS else f"{line} before |"
        elif line.startswith("| ") and table == "operator":
            cells |= {(first, d): cell for d, cell in zip(dtypes, rest, strict=True) if d not in ran and cell}
    return counts, cells, reasons


_COLUMNS = 6
"""Of the table of dtypes, beside their names."""


def _counts(dtype: str, rows: list[Row]) -> str:
    judged = [row for row in rows if row["status"] != "no samples"]
    counts = collections.Counter(row["status"] for row in judged)
    alone = sum(not row.get("fallbacks") and row["status"] == "right" for row in judged)
    failed = len(judged) - counts["right"] - counts["wrong"]
    share = f"{100 * alone / len(judged):.1f} %" if judged else ""
    right = f"{counts['right']} ({100 * counts['right'] / len(judged):.1f} %)" if judged else ""
    day = time.strftime("%Y-%m-%d", time.gmtime(max(row["ended"] for row in rows)))
    return f"| {dtype} | {len(judged)} | {right} | {counts['wrong']} | {failed} | {alone} ({share}) | {day} |"


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    if row["status"] == "right":
        return "eager" if row["fallbacks"] else "ok"
    return "n/a" if row["status"] == "no samples" else row["status"]


def _reasons(rows: Rows) -> dict[str, list[str]]:
    """The rows that each reason stops."""
    found: dict[str, list[str]] = collections.defaultdict(list)
    for name, row in rows.items():
        if row["status"] not in ("right", "no samples"):
            found[f"{row['status']}: {_reason(row['detail'])}"].append(name)
    return found


def _reason(detail: str) -> str:
    """The message without where it was raised, and what differs between runs."""
    text = detail.partition(": ")[2] if detail.startswith("sample ") else detail
    parts = [part.strip() for part in text.split(" | ") if not part.strip().startswith(("at:", "try:"))]
    head = parts[0].partition(": ")[2] if " at " in parts[0].partition(":")[0] else parts[0]
    text = " ".join([head, *parts[1:]])
    return re.sub(r"/\S*/(?=\w+\.py)", "", text)[:200].replace("|", "/").replace("\n", " ")
