"""`smelt bench regional`: measures rows, prints them, and compares them with their goals."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from smelt.bench.machine import describe_machine
from smelt.bench.processes.process import Failure, Limits, Server, cache_environment
from smelt.bench.regional.measure import Passes

EAGER, TORCH, TORCH_REGIONS, SMELT, SMELT_REGIONS = CONTENDERS = (
    "eager", "torch.compile", "torch.compile:regions", "smelt", "smelt:regions",
)  # fmt: skip

TITLES = {
    EAGER: "eager",
    TORCH: "torch.compile, whole",
    TORCH_REGIONS: "torch.compile, regions",
    SMELT: "smelt, whole",
    SMELT_REGIONS: "smelt, regions",
}

GOALS = (
    ("regional step / whole", "step_s", SMELT_REGIONS, SMELT, 1.03),
    ("whole cold start / regional", "cold_s", SMELT, SMELT_REGIONS, 1.3),
    ("whole cold start / torch.compile's whole", "cold_s", SMELT, TORCH, 0.1),
    ("regional cold start / torch.compile's whole", "cold_s", SMELT_REGIONS, TORCH, 0.1),
    ("whole cold start / torch.compile's regional", "cold_s", SMELT, TORCH_REGIONS, 0.5),
    ("regional cold start / torch.compile's regional", "cold_s", SMELT_REGIONS, TORCH_REGIONS, 0.5),
)
"""(title of the comparison, figure, contender, contender whose figure is the divisor, maximum ratio) for each goal."""

Row = dict[str, dict[str, Any]]
"""By contender: `cold_s`, `seconds`, `step_s` (their median) and `error`, or `failed` with the reason."""


def measure_row(model: str, passes: Passes, contenders: Sequence[str], rounds: int, server: Server) -> Row:
    """Measure one model at one batch size: each contender's first pass with empty caches, then passes of all in
    turn.
    """
    row: Row = {name: {} for name in contenders}
    given: dict[str, Any] = {"model": model, "passes": asdict(passes)}
    with tempfile.TemporaryDirectory(prefix="smelt-bench-regional-") as folder:
        for name in contenders:
            task = {"task": "first_pass", "contender": name, **given}
            row[name] = _values_of(server.run(task, cache_environment(Path(folder), [name]), Limits()))
        able = [name for name in contenders if "failed" not in row[name]]
        task = {"task": "passes_in_turn", "contenders": able, "rounds": rounds, **given}
        found = server.run(task, cache_environment(Path(folder), able), Limits())
    for name in able:
        more = _values_of(found if isinstance(found, Failure) else found[name])
        if "seconds" in more:
            more["step_s"] = statistics.median(more["seconds"])
        row[name] |= more
    return row


def _values_of(value: dict[str, Any] | Failure) -> dict[str, Any]:
    return {"failed": f"{value.status}: {value.error}"} if isinstance(value, Failure) else value


def run_regional(
    models: Sequence[str],
    batches: Sequence[int],
    passes: Passes,
    contenders: Sequence[str],
    rounds: int,
    command: str,
    console: Console,
    json_file: Path | None = None,
) -> dict[str, Row]:
    """Measure each model at each batch size; print a table and the goals of each row, and write all figures to
    `json_file`.

    Args:
        passes: the settings; their batch is replaced by each of `batches`.

    Returns:
        Rows by name, such as `32-layers, 1x128`.
    """
    rows: dict[str, Row] = {}
    with Server(["transformers", "accelerate"] if TORCH_REGIONS in contenders else ["transformers"]) as server:
        for model in models:
            for batch in batches:
                name = f"{model}, {batch}x{passes.length}"
                console.print(f"measuring {name}", style="dim", highlight=False)
                row_passes = Passes(**asdict(passes) | {"batch": batch})
                rows[name] = measure_row(model, row_passes, contenders, rounds, server)
                if json_file is not None:
                    kept = {"command": command, "machine": describe_machine(), "regional": rows}
                    json_file.write_text(json.dumps(kept, indent=1) + "\n")
    what = "forward and backward" if passes.train else "forward with gradients on"
    console.print(table(rows, f"{what}, {passes.dtype}, {passes.device}; steps: median of {rounds}, in turn"))
    for line in [*failures(rows), *goals(rows)]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return rows


def table(rows: Mapping[str, Row], title: str) -> Table:
    """Make a table of all rows, with one line per contender."""
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, title=title)
    for head in ("model", "compiled by"):
        shown.add_column(head, no_wrap=True)
    for head in ("step ms", "x eager", "cold start s", "graphs", "error"):
        shown.add_column(head, justify="right")
    for name, row in rows.items():
        for contender, value in row.items():
            step, eager = value.get("step_s"), row.get(EAGER, {}).get("step_s")
            counts = value.get("counts") or {}
            shown.add_row(
                name if contender == next(iter(row)) else "",
                TITLES.get(contender, contender),
                f"{step * 1e3:.2f}" if step else "failed",
                f"{eager / step:.2f}" if step and eager else "",
                f"{value['cold_s']:.2f}" if "cold_s" in value else "",
                f"{counts['graphs']}" if "graphs" in counts else "",
                f"{value['error']:.1e}" if "error" in value and contender != EAGER else "",
            )
    return shown


def failures(rows: Mapping[str, Row]) -> Iterable[str]:
    """Yields a line for each contender that failed."""
    for name, row in rows.items():
        for contender, value in row.items():
            if "failed" in value:
                yield f"{name}, {contender}: {' '.join(value['failed'].split())[:300]}"


def goals(rows: Mapping[str, Row]) -> Iterable[str]:
    """Yields a line for each goal whose two figures were measured."""
    for name, row in rows.items():
        for what, key, ours, theirs, most in GOALS:
            above, below = row.get(ours, {}).get(key), row.get(theirs, {}).get(key)
            if above and below:
                verdict = "reached" if above / below <= most else "missed"
                yield f"{name}: {what}: {above / below:.2f} (goal: at most {most}): {verdict}"
