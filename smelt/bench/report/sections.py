"""Turns figures into titled tables of plain text, which are the same for Markdown and for HTML.

Every time and size comes with a ratio to another contender's, and every mean with its number of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from smelt.bench.report.compare import COST, KINDS, STEP, WORSE, Comparison, regressions
from smelt.bench.report.summary import (
    ALL,
    BASE,
    RIVAL,
    TALLIES,
    Failures,
    Mean,
    Setting,
    Standing,
    Start,
    compared,
    find_judged,
    group_failures,
    group_skipped,
    slowest,
    speedup,
    standings,
    tallies,
)
from smelt.bench.results import Benchmark, Row
from smelt.bench.tables import describe

MAX_LISTED_LINES = 15
"""Maximum number of lines of a list of break reasons or operators."""


@dataclass(frozen=True)
class Section:
    """A title, a paragraph, and a table whose first `left` columns are text; without `heads` there is no table."""

    title: str
    text: str = ""
    heads: tuple[str, ...] = ()
    lines: Sequence[tuple[str, ...]] = ()
    left: int = 3


def report_sections(rows: Sequence[Row], benchmarks: Sequence[Benchmark], replaced: int = 0) -> list[Section]:
    """Returns the whole report except its plots and the table of rows. Sections without a line are left out."""
    found = standings(rows)
    name = find_judged(rows)
    sections = [
        pass_section(found),
        speed_section(found),
        start_section(found),
        memory_section(found),
        graph_section(found),
        *([slowest_section(rows, name)] if name else []),
        failure_section(group_failures(rows)),
        skipped_section(group_skipped(rows)),
    ]
    sections += [tally_section(rows, who, key, title) for who in compared(rows) for key, title in TALLIES.items()]
    sections = [section for section in sections if section.lines]
    return [*sections, run_section(benchmarks, replaced)]


def headline(rows: Sequence[Row]) -> list[str]:
    """Returns one sentence on the judged contender in each setting, over all suites if there are several."""
    name = find_judged(rows)
    found = [entry for entry in standings(rows) if entry.contender == name]
    summed = {_how(entry) for entry in found if entry.setting.suite == ALL}
    return [_sentence(entry) for entry in found if entry.setting.suite == ALL or _how(entry) not in summed] or [
        "No contender was measured beside eager and torch.compile." if rows else "The run has no rows."
    ]


def _how(entry: Standing) -> str:
    return entry.setting.how


def _sentence(entry: Standing) -> str:
    clauses = [f"{entry.contender} passes {entry.passed} of {entry.judged} rows"]
    if entry.over_eager:
        clauses.append(f"{times(entry.over_eager)} as fast as eager")
    if entry.over_rival:
        clauses.append(f"{times(entry.over_rival)} as fast as {RIVAL}")
    if entry.cold:
        clauses.append(f"cold start {times(entry.cold.ratio)} that of {entry.cold.other}")
    return f"{entry.setting.suite}, {entry.setting.how}: {'; '.join(clauses)}."


def times(mean: Mean) -> str:
    """Format a mean, such as `1.82x (12 rows)`."""
    return f"{mean.value:.2f}x ({plural(mean.rows, 'row')})"


def plural(n: int, noun: str) -> str:
    """Format a number with its noun, such as `1 row` or `2 rows`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def setting_cells(setting: Setting, contender: str) -> tuple[str, str, str]:
    """Returns the first three cells of a line."""
    return setting.suite, setting.how, contender


def pass_section(found: Iterable[Standing]) -> Section:
    """Returns the section of pass rates."""
    failing = ("fail_accuracy", "fail_compile", "fail_run", "timeout")
    heads = ("suite", "setting", "contender", "passed", "rate", "wrong results", "compile", "run", "timeout")
    lines = []
    for entry in found:
        rate = f"{100 * entry.passed / entry.judged:.0f}%" if entry.judged else ""
        counts = [str(entry.statuses.get(status, 0)) for status in (*failing, "eager_fails", "skipped")]
        passed = f"{entry.passed} of {entry.judged}"
        lines.append((*setting_cells(entry.setting, entry.contender), passed, rate, *counts, str(entry.unchecked)))
    text = "Rows that were skipped, or on which eager itself fails, are not judged. Unchecked rows passed without a "
    text += "comparison of their results."
    return Section("Pass rates", text, (*heads, "eager fails", "skipped", "unchecked"), lines)


def speed_section(found: Iterable[Standing]) -> Section:
    """Returns the section of geometric means of step speed-ups."""
    heads = ("suite", "setting", "contender", "x eager", "rows", "slower", "from - to")
    lines = [
        (*setting_cells(entry.setting, entry.contender), *_mean(entry.over_eager), *_mean(entry.over_rival))
        for entry in found
        if entry.over_eager or entry.over_rival
    ]
    text = "Geometric means of the ratios of median steps over the rows that both passed; slower: rows of these with a "
    text += "ratio below 1. A row that failed is in no mean."
    return Section("Speed of a step", text, (*heads, f"x {RIVAL}", "rows", "slower", "from - to"), lines)


def _mean(mean: Mean | None) -> tuple[str, ...]:
    if mean is None:
        return "", "", "", ""
    return f"{mean.value:.2f}x", str(mean.rows), str(mean.below), f"{mean.low:.2f} - {mean.high:.2f}"


def start_section(found: Iterable[Standing]) -> Section:
    """Returns the section of medians and ratios of cold and warm starts."""
    heads = ("suite", "setting", "contender", "against", "cold s", "its cold s", "ratio", "rows")
    lines = [
        (*setting_cells(entry.setting, entry.contender), start.other, *_start(entry.cold), *_start(entry.warm))
        for entry in found
        if (start := entry.cold or entry.warm)
    ]
    text = "Medians, and the geometric mean of the ratios (lower is better), over the rows that both passed."
    return Section("Cold and warm start", text, (*heads, "warm s", "its warm s", "ratio", "rows"), lines, left=4)


def _start(start: Start | None) -> tuple[str, ...]:
    if start is None:
        return "", "", "", ""
    return f"{start.own_s:.2f}", f"{start.other_s:.2f}", f"{start.ratio.value:.2f}x", str(start.ratio.rows)


def memory_section(found: Iterable[Standing]) -> Section:
    """Returns the section of peak memory relative to eager."""
    heads = ("suite", "setting", "contender", "peak, x eager", "rows", "least", "most")
    lines = [
        (
            *setting_cells(entry.setting, entry.contender),
            f"{entry.peak.value:.2f}x",
            str(entry.peak.rows),
            f"{entry.peak.low:.2f}x",
            f"{entry.peak.high:.2f}x",
        )
        for entry in found
        if entry.peak
    ]
    return Section("Peak memory", "Geometric means of the ratios to eager's peak; lower is better.", heads, lines)


def graph_section(found: Iterable[Standing]) -> Section:
    """Returns the section of graphs, breaks, recompilations and fallbacks."""
    heads = ("suite", "setting", "contender", "rows", "one graph", "graphs", "breaks", "recompiles", "frames in eager")
    lines = [
        (*setting_cells(entry.setting, entry.contender), *(str(value) for value in vars(entry.graphs).values()))
        for entry in found
        if entry.graphs.rows
    ]
    return Section("Graphs", "One graph: rows that are a single graph without a break.", heads, lines)


def slowest_section(rows: Sequence[Row], name: str) -> Section:
    """Returns the section of the rows where the judged contender has the lowest speed-ups."""
    lines = []
    for row, value in slowest(rows, name):
        rival = speedup(row, name, RIVAL)
        lines.append((row.suite, Setting.of(row).how, row.model, f"{value:.2f}x", f"{rival:.2f}x" if rival else ""))
    heads = ("suite", "setting", "model", "x eager", f"x {RIVAL}")
    return Section(f"Slowest rows of {name}", "", heads, lines)


def failure_section(groups: Iterable[Failures]) -> Section:
    """Returns the section of failures by reason, with the message of one example."""
    heads = ("contender", "status", "reason", "models", "rows")
    lines = [(g.contender, g.status, cut(g.reason), models(g.rows), str(len(g.rows))) for g in groups]
    text = "Grouped where the reasons differ in numbers and names only; the reason is the first row's."
    return Section("Failures", text, heads, lines, left=4)


def skipped_section(groups: Iterable[Failures]) -> Section:
    """Returns the section of rows that were not measured."""
    lines = [(cut(group.reason), models(group.rows), str(len(group.rows))) for group in groups]
    return Section("Skipped", "", ("reason", "models", "rows"), lines, left=2)


def models(rows: Iterable[Row]) -> str:
    """Lists the models' names without duplicates."""
    return ", ".join(dict.fromkeys(row.model for row in rows))


def cut(text: str, most: int = 300) -> str:
    """Cut a text to at most `most` characters."""
    return text if len(text) <= most else text[: most - 3] + "..."


def tally_section(rows: Sequence[Row], name: str, key: str, title: str) -> Section:
    """Returns the section of one of TALLIES, which a contender's compiler counted by name."""
    found = tallies(rows, name, key)
    lines = [(cut(text), str(seen), str(times)) for text, times, seen in found[:MAX_LISTED_LINES]]
    limit_note = f"The first {MAX_LISTED_LINES} of {len(found)}." if len(found) > MAX_LISTED_LINES else ""
    return Section(f"{title}: {name}", limit_note, ("what", "rows", "times"), lines, left=1)


def run_section(benchmarks: Sequence[Benchmark], replaced: int) -> Section:
    """Returns the section of commands, machines and versions."""
    lines = [(run.command, describe(run) if run.machine else "not recorded", str(len(run.rows))) for run in benchmarks]
    notes = []
    if len({describe(run).rpartition(";")[0] for run in benchmarks}) > 1:
        notes.append("The runs differ in machine or versions; each ratio is of one run, but means mix them.")
    if replaced:
        notes.append(f"{plural(replaced, 'row')} stood in more than one run; the last one given counts.")
    return Section("Machine and versions", " ".join(notes), ("command", "machine", "rows"), lines, left=2)


def comparison_sections(found: Comparison) -> list[Section]:
    """Returns the sections of a comparison: a summary, then a table for each kind of change, regressions first."""
    worse = regressions(found.changes)
    text = f"{plural(worse, 'row')} got worse for {found.contender}, {found.same} did not change"
    if found.before and found.after:
        text += f"; {found.before.value:.2f}x over {BASE} before, {found.after.value:.2f}x now, in the "
        text += f"{plural(found.after.rows, 'row')} measured in both"
    text += (
        f". Steps count from {100 * (STEP - 1):.0f}% and more than the noise on, costs from {100 * (COST - 1):.0f}%."
    )
    sections = [Section("Compared with the run before", text)]
    if found.differs:
        lines = [tuple(difference.split(": ", 1)) for difference in found.differs]
        sections.append(Section("What else differs", "", ("fact", "value"), lines, left=2))
    for kind, title in KINDS.items():
        lines = [
            (change.row.suite, Setting.of(change.row).how, change.row.model, change.row.shape, cut(change.text))
            for change in found.of(kind)
        ]
        if lines:
            mark = "Worse" if kind in WORSE else "Better" if kind in BETTER else "Other"
            heads = ("suite", "setting", "model", "shape", "what")
            sections.append(Section(f"{mark}: {title}", "", heads, lines, left=5))
    return sections


BETTER = ("fixed", "faster", "cold_better", "memory_better", "breaks_better")
