"""Compares two runs: returns the changes of one contender, regressions first.

Speed is compared as the speed-up over eager within each run, so that the load of the machine does not look like a
slower compiler. Cold starts and memory are compared directly, and only between equal machines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from smelt.base.errors import unknown_name
from smelt.bench.report.summary import (
    BASE,
    Figure,
    Key,
    Mean,
    cold_s,
    contenders,
    count,
    find_judged,
    first_line,
    merge,
    peak_mb,
    reference,
    row_key,
    speedup,
)
from smelt.bench.results import Benchmark, Result, Row, Spread

STEP = 1.05
"""Minimum factor of the change of a speed-up, which must exceed the noise as well, to be reported."""

COST = 1.10
"""Minimum factor of the change of a cold start or a peak of memory to be reported; a run measures each of these
once.
"""

KINDS = {
    "broke": "passed before, does not now",
    "slower": "slower steps",
    "cold": "slower cold start",
    "memory": "more memory",
    "breaks": "more graph breaks",
    "fixed": "passes now",
    "faster": "faster steps",
    "cold_better": "faster cold start",
    "memory_better": "less memory",
    "breaks_better": "fewer graph breaks",
    "otherwise": "fails otherwise",
    "unjudged": "cannot be judged in both",
    "new": "new rows",
    "removed": "removed rows",
}
"""Title by kind of change, in the order of a report."""

WORSE = ("broke", "slower", "cold", "memory", "breaks")
"""The kinds that are regressions."""

MACHINE = ("cpu", "cores", "threads", "gpus", "system")
"""Facts of the machine that must be equal for absolute figures to be compared."""


@dataclass(frozen=True)
class Change:
    """One row's change. `factor` above 1 is how many times worse (or better) the figure is; `text` gives both
    figures.
    """

    kind: str
    row: Row
    text: str
    factor: float = 1.0


@dataclass
class Comparison:
    """All changes in the order of KINDS, the largest first, and the means over the rows that passed in both runs."""

    contender: str
    changes: list[Change] = field(default_factory=list)
    same: int = 0
    before: Mean | None = None
    after: Mean | None = None
    differs: list[str] = field(default_factory=list)

    def of(self, *kinds: str) -> list[Change]:
        """Returns the changes of these kinds."""
        return [change for change in self.changes if change.kind in kinds]


def compare(old: Benchmark, new: Benchmark, contender: str | None = None) -> Comparison:
    """Returns the changes from `old` to `new` for the contender (default: the judged contender of `new`).

    Raises:
        OptionError: the contender took part in neither run.
    """
    before, after = ({row_key(row): row for row in merge([run])[0]} for run in (old, new))
    rows = [*after.values(), *before.values()]
    if contender is not None and contender not in contenders(rows):
        raise unknown_name("contender", contender, contenders(rows))
    name = contender or find_judged(rows) or BASE
    result = Comparison(name, differs=machine_differences(old, new))
    both = [key for key in before if key in after]
    absolute = not any(old.machine.get(fact) != new.machine.get(fact) for fact in MACHINE)
    for key in both:
        found = row_changes(before[key], after[key], name, absolute)
        result.changes += found
        result.same += not found
    result.changes += _only(before, after, "removed") + _only(after, before, "new")
    order = list(KINDS)
    result.changes.sort(key=lambda change: (order.index(change.kind), -change.factor))
    pairs = [(speedup(before[key], name), speedup(after[key], name)) for key in both]
    result.before, result.after = _means([pair for pair in pairs if None not in pair])
    return result


def _means(pairs: Sequence[tuple[float | None, float | None]]) -> tuple[Mean | None, Mean | None]:
    """Returns the geometric means of the first and of the second numbers."""
    return Mean.of(pair[0] for pair in pairs), Mean.of(pair[1] for pair in pairs)


def machine_differences(old: Benchmark, new: Benchmark) -> list[str]:
    """Returns `name: old, now new` for each fact of the machine and each version that differs."""
    facts = [
        {name: value for name, value in run.machine.items() if name != "packages"} | run.machine.get("packages", {})
        for run in (old, new)
    ]
    names = dict.fromkeys([*facts[0], *facts[1]])
    return [
        f"{name}: {facts[0].get(name)}, now {facts[1].get(name)}"
        for name in names
        if facts[0].get(name) != facts[1].get(name)
    ]


def _only(rows: dict[Key, Row], others: dict[Key, Row], kind: str) -> list[Change]:
    return [Change(kind, row, "") for key, row in rows.items() if key not in others]


def row_changes(old: Row, new: Row, name: str, absolute: bool = True) -> list[Change]:
    """Returns all changes in one row. Figures are compared only if the contender passed in both runs."""
    before, after = old.results.get(name), new.results.get(name)
    if before is None or after is None:
        missing = "before" if before is None else "now"
        return [] if before is after else [Change("unjudged", new, f"{name} was not measured {missing}")]
    if (before.status, after.status) != ("pass", "pass"):
        return status_changes(new, before, after)
    changes = [step_change(old, new, name)]
    if absolute:
        changes += [
            cost_change(old, new, name, "cold", cold_s, lambda value: f"{value:.2f} s"),
            cost_change(old, new, name, "memory", peak_mb, lambda value: f"{value:.0f} MiB"),
        ]
    changes.append(break_change(new, before, after))
    return [change for change in changes if change is not None]


def status_changes(row: Row, before: Result, after: Result) -> list[Change]:
    """Returns the change of a row that did not pass in both runs."""
    was, now = (f"{result.status}: {first_line(result)}" for result in (before, after))
    unjudged = ("skipped", "eager_fails")
    if before.status == after.status:
        return []
    if before.status in unjudged or after.status in unjudged:
        text = f"{before.status if before.status == 'pass' else was}; now {after.status}"
        return [Change("unjudged", row, text if after.status == "pass" else f"{text}: {first_line(after)}")]
    if before.status == "pass":
        return [Change("broke", row, now)]
    if after.status == "pass":
        return [Change("fixed", row, f"was {was}")]
    return [Change("otherwise", row, f"{now}; was {was}")]


def step_change(old: Row, new: Row, name: str) -> Change | None:
    """Returns the change of a speed-up over eager by more than STEP and by more than the noise, or None."""
    before, after = speedup(old, name), speedup(new, name)
    if before is None or after is None:
        return None
    factor = max(before / after, after / before)
    spread = noise(old, new, name)
    if factor <= max(STEP, 1 + spread):
        return None
    text = f"{before:.2f}x over eager, now {after:.2f}x (noise {100 * spread:.0f}%)"
    return Change("slower" if after < before else "faster", new, text, factor)


def noise(old: Row, new: Row, name: str) -> float:
    """Returns the relative noise of the change between two speed-ups: the root of the sum of squares of the relative
    half distances between the quartiles of their four measurements.
    """
    steps = [row.results[who].step for row in (old, new) for who in (BASE, name)]
    return math.sqrt(sum(_half_spread(step) ** 2 for step in steps if step))


def _half_spread(step: Spread) -> float:
    return (step.high - step.low) / 2 / step.median


def cost_change(
    old: Row, new: Row, name: str, kind: str, figure: Figure, show: Callable[[float], str]
) -> Change | None:
    """Returns the change of a cost by more than COST, with the change of the reference's own cost, or None."""
    before, after = figure(old.results[name]), figure(new.results[name])
    if not before or not after:
        return None
    factor = max(before / after, after / before)
    if factor <= COST:
        return None
    text = f"{show(before)}, now {show(after)}: {after / before:.2f}x"
    other = reference([old, new], name)
    control = [figure(row.results[other]) if other in row.results else None for row in (old, new)]
    if other != name and control[0] and control[1]:
        text += f" ({other}: {control[1] / control[0]:.2f}x)"
    return Change(kind if after > before else f"{kind}_better", new, text, factor)


def break_change(row: Row, before: Result, after: Result) -> Change | None:
    """Returns the change of the number of graph breaks if both runs counted them, or None."""
    if "breaks" not in before.counts or "breaks" not in after.counts:
        return None
    was, now = count(before, "breaks"), count(after, "breaks")
    if was == now:
        return None
    factor = (max(was, now) + 1) / (min(was, now) + 1)
    return Change("breaks" if now > was else "breaks_better", row, f"{was}, now {now}", factor)


def regressions(changes: Sequence[Change]) -> int:
    """Returns the number of rows with at least one regression."""
    return len({row_key(change.row) for change in changes if change.kind in WORSE})
