"""Summarises rows: pass rates, geometric means, start times, breaks and failures, as figures without text.

A ratio of two contenders exists only where both passed the row and both have the figure. Every mean gives its number of
rows. A failed row does not enter a mean as 1.0.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from smelt.bench.results import Benchmark, Result, Row, setting_of

BASE = "eager"
RIVAL = "torch.compile"

Figure = Callable[[Result], float | None]


def step_s(result: Result) -> float | None:
    """Returns the median seconds of a step, or None."""
    return result.step.median if result.step else None


def cold_s(result: Result) -> float | None:
    """Returns the seconds of the cold start, or None."""
    return result.cold_s


def warm_s(result: Result) -> float | None:
    """Returns the seconds of the warm start, or None."""
    return result.warm_s


def peak_mb(result: Result) -> float | None:
    """Returns the peak memory in MiB, or None."""
    return result.peak_mb


@dataclass(frozen=True)
class Setting:
    """The properties that rows must share for their figures to be averaged."""

    suite: str
    train: bool
    precision: str
    device: str
    size: str = ""
    mode: str | None = None
    dynamic: bool | None = None
    optimizer: str = "sgd"

    @classmethod
    def of(cls, row: Row) -> Setting:
        """Returns the setting of a row."""
        return cls(row.suite, *setting_of(row))

    @property
    def how(self) -> str:
        """Describe the setting without its suite."""
        dynamic = {None: None, True: "dynamic", False: "static"}[self.dynamic]
        size = f"{self.size} size" if self.size else None
        optimizer = {"sgd": None, "none": "forward and backward"}.get(self.optimizer, self.optimizer)
        what = "training" if self.train else "inference"
        words = (what, optimizer, self.precision, self.device, size, self.mode, dynamic)
        return ", ".join(word for word in words if word)


Key = tuple[str, str, Setting]


def row_key(row: Row) -> Key:
    """Returns the key that identifies a row across runs: model, shape and setting."""
    return row.model, row.shape, Setting.of(row)


def merge(benchmarks: Iterable[Benchmark]) -> tuple[list[Row], int]:
    """Returns the rows of all runs, and the number of rows that later runs replaced.

    A row that was measured again replaces the earlier one as a whole: ratios hold only within one run.
    """
    rows: dict[Key, Row] = {}
    total = 0
    for benchmark in benchmarks:
        for row in benchmark.rows:
            rows[row_key(row)] = row
            total += 1
    return list(rows.values()), total - len(rows)


def contenders(rows: Iterable[Row]) -> list[str]:
    """Returns the names of all contenders: eager, torch.compile, then the others in order of appearance."""
    names = list(dict.fromkeys(name for row in rows for name in row.results))
    return [*(name for name in (BASE, RIVAL) if name in names), *(n for n in names if n not in (BASE, RIVAL))]


def find_judged(rows: Iterable[Row]) -> str | None:
    """Returns the contender that a report is about: smelt, else another of its backends, else the first other than
    eager and torch.compile.
    """
    names = [name for name in contenders(rows) if name not in (BASE, RIVAL)]
    names.sort(key=lambda name: (name != "smelt", not name.startswith("smelt:")))
    return names[0] if names else None


def ratio(row: Row, name: str, other: str, figure: Figure) -> float | None:
    """Returns `name`'s figure divided by `other`'s, if both passed and both have the figure; else None."""
    pair = (row.results.get(name), row.results.get(other))
    values = [figure(result) if result and result.status == "pass" else None for result in pair]
    if any(value is None or not math.isfinite(value) or value <= 0 for value in values):
        return None
    own, base = values
    assert own is not None and base is not None
    return own / base


def speedup(row: Row, name: str, other: str = BASE) -> float | None:
    """Returns how many times as fast a step of `name` is as one of `other`: above 1 is faster."""
    return ratio(row, other, name, step_s)


@dataclass(frozen=True)
class Mean:
    """The geometric mean of `rows` ratios, the lowest and highest of them, and the number of ratios below 1."""

    value: float
    rows: int
    low: float
    high: float
    below: int

    @classmethod
    def of(cls, ratios: Iterable[float | None]) -> Mean | None:
        """Returns the mean of the ratios that are not None, or None without any."""
        known = [value for value in ratios if value is not None]
        if not known:
            return None
        below = sum(value < 1.0 for value in known)
        return cls(statistics.geometric_mean(known), len(known), min(known), max(known), below)


@dataclass(frozen=True)
class Start:
    """Median seconds of a contender's start and of another's, and their ratio, over the rows that have both."""

    own_s: float
    other: str
    other_s: float
    ratio: Mean

    @classmethod
    def of(cls, rows: Sequence[Row], name: str, other: str, figure: Figure) -> Start | None:
        """Returns the medians and their ratio; None if no row has both figures."""
        both = [row for row in rows if ratio(row, name, other, figure) is not None]
        mean = Mean.of(ratio(row, name, other, figure) for row in both)
        if mean is None:
            return None
        own, others = ([figure(row.results[who]) or 0.0 for row in both] for who in (name, other))
        return cls(statistics.median(own), other, statistics.median(others), mean)


@dataclass(frozen=True)
class Graphs:
    """Numbers that the compiler counted over the `rows` rows that report them. `whole` is the number of rows with one
    graph and no break.
    """

    rows: int = 0
    whole: int = 0
    graphs: int = 0
    breaks: int = 0
    recompiles: int = 0
    fallbacks: int = 0


@dataclass(frozen=True)
class Standing:
    """The figures of one contender in one setting.

    Attributes:
        statuses: number of rows by status.
        unchecked: number of rows that passed without a comparison of their results.
    """

    setting: Setting
    contender: str
    rows: int
    statuses: Mapping[str, int]
    unchecked: int
    over_eager: Mean | None
    over_rival: Mean | None
    peak: Mean | None
    cold: Start | None
    warm: Start | None
    graphs: Graphs

    @property
    def passed(self) -> int:
        """Number of rows that passed."""
        return self.statuses.get("pass", 0)

    @property
    def judged(self) -> int:
        """Number of rows that were neither skipped nor failed in eager."""
        return self.rows - self.statuses.get("skipped", 0) - self.statuses.get("eager_fails", 0)


ALL = "all suites"
"""The suite name of a Standing that covers several suites."""


def standings(rows: Sequence[Row]) -> list[Standing]:
    """Returns the figures of every contender over all suites, if there are several, then in every setting, in order of
    appearance.
    """
    groups: dict[Setting, list[Row]] = {}
    for row in rows:
        groups.setdefault(Setting.of(row), []).append(row)
    over: dict[Setting, list[list[Row]]] = {}
    for setting, group in groups.items():
        all_suites = Setting(**(vars(setting) | {"suite": ALL}))
        over.setdefault(all_suites, []).append(group)
    groups = {setting: sum(lists, []) for setting, lists in over.items() if len(lists) > 1} | groups
    return [standing(setting, name, group) for setting, group in groups.items() for name in compared(group)]


def compared(rows: Sequence[Row]) -> list[str]:
    """Returns the contenders that are compared with another: all but eager, unless eager is the only one."""
    names = contenders(rows)
    return [name for name in names if name != BASE] or names


def standing(setting: Setting, name: str, rows: Sequence[Row]) -> Standing:
    """Returns the figures of one contender over rows of one setting."""
    results = [row.results[name] for row in rows if name in row.results]
    other = reference(rows, name)
    return Standing(
        setting,
        name,
        len(results),
        Counter(result.status for result in results),
        sum(result.status == "pass" and result.accuracy is None for result in results) if name != BASE else 0,
        Mean.of(speedup(row, name) for row in rows) if name != BASE else None,
        Mean.of(speedup(row, name, RIVAL) for row in rows) if name != RIVAL else None,
        Mean.of(ratio(row, name, BASE, peak_mb) for row in rows) if name != BASE else None,
        Start.of(rows, name, other, cold_s),
        Start.of(rows, name, other, warm_s),
        count_graphs(results),
    )


def reference(rows: Iterable[Row], name: str) -> str:
    """Returns the contender with which the starts of others are compared: torch.compile if it took part, else eager."""
    return RIVAL if name != RIVAL and any(RIVAL in row.results for row in rows) else BASE


def count(result: Result, key: str) -> int:
    """Returns a number that the compiler counted, or 0."""
    value = result.counts.get(key)
    return int(value) if isinstance(value, (int, float)) else 0


def count_graphs(results: Iterable[Result]) -> Graphs:
    """Sum the numbers of the results that count graphs."""
    known = [result for result in results if isinstance(result.counts.get("graphs"), (int, float))]
    return Graphs(
        len(known),
        sum(count(result, "graphs") == 1 and not count(result, "breaks") for result in known),
        *(sum(count(result, key) for result in known) for key in ("graphs", "breaks", "recompiles", "fallbacks")),
    )


TALLIES = {
    "break_reasons": "Graph breaks",
    "extern_ops": "Operators handed back to torch",
    "eager_ops": "Operators that torch runs in a step",
}
"""Titles of the counters by name, by the key of the compiler's counts."""


def tally(result: Result, key: str) -> Counter[str]:
    """Returns one of TALLIES of a result: occurrences by text. A plain list counts each entry once."""
    value: Any = result.counts.get(key)
    if isinstance(value, dict):
        return Counter({str(name): int(n) for name, n in value.items() if isinstance(n, (int, float))})
    return Counter(str(item) for item in value) if isinstance(value, list) else Counter()


def tallies(rows: Iterable[Row], name: str, key: str) -> list[tuple[str, int, int]]:
    """Returns (text, occurrences, rows) over all rows of a contender, in descending order of rows, without source
    locations.
    """
    times: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for row in rows:
        if name in row.results:
            found: Counter[str] = Counter()
            for text, n in tally(row.results[name], key).items():
                found[re.sub(r" \([^()]*:\d+\)$", "", text)] += n
            times.update(found)
            seen.update(found.keys())
    return sorted(((text, times[text], seen[text]) for text in times), key=lambda entry: (-entry[2], -entry[1], entry))


def slowest(rows: Iterable[Row], name: str, most: int = 10) -> list[tuple[Row, float]]:
    """Returns the rows with the lowest speed-up over eager, each with its speed-up."""
    known = [(row, value) for row in rows if (value := speedup(row, name)) is not None]
    return sorted(known, key=lambda pair: pair[1])[:most]


@dataclass
class Failures:
    """Rows with the same failure: same contender, same status, and a reason that differs only in numbers and names."""

    contender: str
    status: str
    reason: str
    rows: list[Row] = field(default_factory=list)


def group_failures(rows: Iterable[Row]) -> list[Failures]:
    """Group failures by contender and reason, the largest group first. Skipped rows are left out.

    If eager fails on a row, only eager's own reason is listed.
    """
    groups: dict[tuple[str, str, str], Failures] = {}
    for row in rows:
        for name, result in row.results.items():
            if result.status in ("pass", "skipped"):
                continue
            if result.status == "eager_fails" and name != BASE and _status(row, BASE) == "eager_fails":
                continue
            key = (name, result.status, same_reason(result))
            groups.setdefault(key, Failures(name, result.status, first_line(result))).rows.append(row)
    order = contenders(row for group in groups.values() for row in group.rows)
    return sorted(groups.values(), key=lambda group: (-order.index(group.contender), -len(group.rows)))


def group_skipped(rows: Iterable[Row]) -> list[Failures]:
    """Group the rows that any contender skipped by reason."""
    groups: dict[str, Failures] = {}
    for row in rows:
        for result in row.results.values():
            if result.status == "skipped":
                reason = first_line(result)
                groups.setdefault(reason, Failures(result.contender, "skipped", reason)).rows.append(row)
                break
    return sorted(groups.values(), key=lambda group: -len(group.rows))


def _status(row: Row, name: str) -> str | None:
    return row.results[name].status if name in row.results else None


def first_line(result: Result) -> str:
    """Returns the first informative line of the error."""
    lines = (line.strip() for line in (result.error or "").splitlines())
    return next(filter(None, lines), "no reason was kept")


def same_reason(result: Result) -> str:
    """Returns the reason without details that differ between models: numbers, quoted names, and names of wrong
    tensors.
    """
    if result.status == "fail_accuracy":
        return ""
    text = re.sub(r"'[^']*'|\"[^\"]*\"|0x[0-9a-fA-F]+", "*", first_line(result))
    return re.sub(r"\d+(\.\d+)?", "#", text)
