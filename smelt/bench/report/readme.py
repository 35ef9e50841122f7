"""Writes the README's figures of GPUs from the files of results in the repository.

`smelt bench report bench/results/*.json --readme README.md` replaces the text between the two marks; a test fails when
the README differs from the files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from smelt.base.errors import SmeltError
from smelt.bench.bandwidth.run import Bandwidth
from smelt.bench.contenders import DEFAULT, family_of, mode_of
from smelt.bench.report.sections import headline, plural
from smelt.bench.report.summary import BASE, RIVAL, Mean, cold_s, merge, peak_mb, ratio, speedup, step_s
from smelt.bench.results import Benchmark, Result, Row
from smelt.bench.tables import describe, describe_machine_line

BEGIN = "<!-- gpu:begin (written by `smelt bench report bench/results/*.json --readme README.md`) -->"
END = "<!-- gpu:end -->"

NOTHING = "No figures of a GPU are kept yet."

OURS = "smelt"
STEP = "smelt:step"


def write_readme(path: Path, files: Iterable[Path]) -> None:
    """Replace the README's figures of a GPU by those of the files.

    Raises:
        SmeltError: a file cannot be read or is no file of results, or the README lacks the two marks.
    """
    text = path.read_text(encoding="utf-8")
    path.write_text(replace_section(text, gpu_section(*read_files(files)), path.name), encoding="utf-8")


def replace_section(text: str, section: str, name: str) -> str:
    """Returns `text` with `section` between the marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SmeltError(f"{name} has no place for the figures", hint=f"two lines: {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{section}\n{END}{after}"


def read_files(files: Iterable[Path]) -> tuple[list[Benchmark], list[Bandwidth]]:
    """Read runs of models and runs of bandwidth, in the order of the files' names."""
    models: list[Benchmark] = []
    bandwidths: list[Bandwidth] = []
    for file in sorted(files, key=lambda file: file.name):
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SmeltError(f"cannot read {file}", why=str(error)) from None
        if isinstance(data, dict) and "copy_bytes_s" in data:
            bandwidths.append(Bandwidth.load(file))
        else:
            models.append(Benchmark.load(file))
    return models, bandwidths


def gpu_section(models: Sequence[Benchmark], bandwidths: Sequence[Bandwidth]) -> str:
    """Returns the text between the marks, as Markdown."""
    models = [run for run in models if any(row.device != "cpu" for row in run.rows)]
    bandwidth_of_gpus = [run for run in bandwidths if run.device != "cpu"]
    paragraphs = [
        *model_paragraphs(models),
        *(paragraph for run in bandwidth_of_gpus for paragraph in bandwidth_section(run)),
    ]
    if not paragraphs:
        return NOTHING
    machines = dict.fromkeys([describe(run) for run in models] + [_described(run) for run in bandwidths])
    commands = dict.fromkeys([run.command for run in models] + [run.command for run in bandwidths])
    return "\n\n".join([*paragraphs, "Commands: " + ", ".join(f"`{command}`" for command in commands) + ".", *machines])


def model_paragraphs(models: Sequence[Benchmark]) -> list[str]:
    """Returns tables and means of the models: the baselines, whole steps, the suites."""
    rows = [row for row in merge(models)[0] if row.device != "cpu"]
    steps = [row for row in rows if STEP in row.results]
    baselines = [row for row in rows if row.suite == "baselines" and row not in steps]
    others = [row for row in rows if row.suite != "baselines" and row not in steps]
    paragraphs = [
        *baseline_section(baselines, gpus_and_dates(runs_of(models, baselines))),
        *step_section(steps, gpus_and_dates(runs_of(models, steps))),
    ]
    if others:
        paragraphs += [*headline(others), f"The suites were measured{gpus_and_dates(runs_of(models, others))}."]
    return paragraphs


def runs_of(runs: Iterable[Benchmark], rows: Iterable[Row]) -> list[Benchmark]:
    """Returns the runs in which these rows were measured."""
    known = {_identity(row) for row in rows}
    return [run for run in runs if any(_identity(row) in known for row in run.rows)]


def gpus_and_dates(runs: Iterable[Benchmark | Bandwidth]) -> str:
    """Describe where and when runs were made: " on CARD (DAY)"."""
    found: dict[str, None] = {}
    for run in runs:
        cards = ", ".join(dict.fromkeys(run.machine.get("gpus") or ["a machine whose card is not known"]))
        found[f"{cards} ({run.started})"] = None
    return f" on {' and '.join(found)}"


def _identity(row: Row) -> tuple[object, ...]:
    return row.suite, row.model, row.precision, row.optimizer, row.mode, STEP in row.results


def _described(run: Bandwidth) -> str:
    return f"{describe_machine_line(run.machine)}; {run.started}"


HEADS = (
    "model", "precision", "mode", "eager ms", "torch.compile ms (x eager)", "smelt ms (x eager)", "x torch.compile",
    "first step s, torch.compile", "smelt", "peak MiB, eager", "torch.compile", "smelt", "error",
)  # fmt: skip
TEXT_HEADS = 3


def pairs_of(row: Row) -> list[tuple[str, str, str]]:
    """Returns (mode, torch.compile's contender, smelt's contender) of a row, for torch.compile in each mode; smelt in
    the same mode, or in its default.
    """
    rivals = [name for name in row.results if family_of(name) == RIVAL]
    found = []
    for rival in rivals:
        mode = mode_of(rival) or row.mode or DEFAULT
        named = f"{OURS}:{mode}"
        found.append((mode, rival, named if named in row.results else OURS))
    return [pair for pair in found if pair[2] in row.results]


def baseline_section(rows: Sequence[Row], where: str) -> list[str]:
    """Returns the table of models and modes, and its means."""
    if not rows:
        return []
    lines = [_baseline_line(row, *pair) for row in rows for pair in pairs_of(row)]
    train = "forward and backward" if all(row.optimizer == "none" for row in rows) else "training"
    paragraphs = [f"Models of the [baselines](docs/benchmarks.md), {train},{where}:", table(HEADS, lines, TEXT_HEADS)]
    paragraphs.append("; ".join(_means(rows)) + ".")
    most = max(row.side_by_side for row in rows)
    if most > 1:
        paragraphs.append(
            f"First steps were taken {most} at a time, so that they disturbed each other; steps were not."
        )
    return paragraphs


def _means(rows: Sequence[Row]) -> list[str]:
    """Describe the geometric means of the speed of each form of smelt relative to eager and to each form of
    torch.compile.
    """
    rivals = dict.fromkeys(name for row in rows for name in row.results if family_of(name) == RIVAL)
    ours = dict.fromkeys(name for row in rows for name in row.results if family_of(name) == OURS)
    return [
        f"{name} is {mean.value:.2f} times as fast as {rival} (geometric mean of {plural(mean.rows, 'model')}, "
        f"{mean.low:.2f} to {mean.high:.2f})"
        for name in ours
        for rival in [BASE, *rivals]
        if (mean := Mean.of(speedup(row, name, rival) for row in rows))
    ]


def _baseline_line(row: Row, mode: str, rival: str, ours: str) -> tuple[str, ...]:
    eager, other, own = (row.results.get(name, Result(name)) for name in (BASE, rival, ours))
    shown = mode if mode_of(ours) == mode or mode == DEFAULT else f"{mode}; smelt {DEFAULT}"
    return (
        f"{row.model}, {row.shape}",
        row.precision,
        shown,
        _number(step_s(eager), 1e3, 1),
        _with_ratio(other, speedup(row, rival)),
        _with_ratio(own, speedup(row, ours)),
        _number(speedup(row, ours, rival), 1, 2),
        *(_number(cold_s(result), 1, 1) for result in (other, own)),
        *(_number(peak_mb(result), 1, 0) for result in (eager, other, own)),
        f"{own.accuracy.ratio:.1f}x" if own.accuracy else "",
    )


def _with_ratio(result: Result, over_eager: float | None) -> str:
    if result.status != "pass":
        return result.status
    return f"{_number(step_s(result), 1e3, 1)} ({_number(over_eager, 1, 2)})"


def step_section(rows: Sequence[Row], where: str) -> list[str]:
    """Returns the table of whole steps: each contender's speed relative to eager."""
    if not rows:
        return []
    names = list(dict.fromkeys(name for row in rows for name in row.results if name != BASE))
    lines = []
    for row in rows:
        found = [row.results.get(name, Result(name, "")) for name in names]
        memory = ratio(row, STEP, BASE, peak_mb)
        lines.append(
            (
                f"{row.model}, {row.shape}",
                row.precision,
                _number(step_s(row.results.get(BASE, Result(BASE))), 1e3, 1),
                *(_with_ratio(result, speedup(row, result.contender)) for result in found),
                _number(memory, 1, 2),
            )
        )
    heads = ("model", "precision", "eager ms", *(f"{name} ms (x eager)" for name in names), f"peak, {STEP} x eager")
    optimizers = ", ".join(dict.fromkeys(row.optimizer for row in rows))
    return [f"Whole steps, with the optimizer ({optimizers}),{where}:", table(heads, lines, 2)]


def bandwidth_section(run: Bandwidth) -> list[str]:
    """Returns the table of shares of the copy's speed."""
    names = list(dict.fromkeys(name for problem in run.problems for name in problem.figures))
    lines = []
    for problem in run.problems:
        figures = [problem.figures.get(name) for name in names]
        shares = ["" if each is None or each.share is None else f"{each.share:.0%}" for each in figures]
        lines.append((problem.name, f"{problem.moved / 1e6:.0f}", *shares))
    speed = f"{run.copy_bytes_s / 1e12:.2f} TB/s, read and written"
    first = f"Share of the speed of a copy ({speed}), {run.dtype},{gpus_and_dates([run])}:"
    return [first, table(("program", "MB", *names), lines, 1)]


def table(heads: Sequence[str], lines: Iterable[Sequence[str]], left: int) -> str:
    """Make a Markdown table whose first `left` columns are text."""
    rule = "|" + "|".join("---" if index < left else "---:" for index in range(len(heads))) + "|"
    return "\n".join(["| " + " | ".join(heads) + " |", rule, *("| " + " | ".join(line) + " |" for line in lines)])


def _number(value: float | None, factor: float, digits: int) -> str:
    return "" if value is None else f"{value * factor:.{digits}f}"
