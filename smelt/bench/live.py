"""The terminal's view of a running benchmark: the complete rows, the current measurement, the remaining time."""

from __future__ import annotations

import threading
from collections import Counter
from types import TracebackType

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from smelt.bench.results import Benchmark, Row
from smelt.bench.tables import compact_table, one_line, results_table

DETAILED = 8
"""Maximum number of models for which each contender has a separate line; with more models, each model has one line."""


class LiveTable:
    """A live view of a benchmark; `show` and `finished` may be called from any thread."""

    def __init__(self, benchmark: Benchmark, title: str, models: int, console: Console) -> None:
        self.benchmark, self.title, self.models, self.console = benchmark, title, models, console
        self._busy: dict[int, tuple[Row, str, str]] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._bar = self._progress.add_task(self.title, total=models, completed=len(benchmark.rows))
        self._live = Live(self, console=console, refresh_per_second=2, vertical_overflow="visible")

    def __enter__(self) -> LiveTable:
        self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._busy.clear()
        self._live.__exit__(kind, error, at)

    def show(self, row: Row, contender: str, phase: str) -> None:
        """Show that this thread measures this phase of the row."""
        self._busy[threading.get_ident()] = row, contender, phase

    def finished(self, row: Row) -> None:
        """Show that a row is complete; the benchmark already contains it."""
        self._busy.pop(threading.get_ident(), None)
        self._progress.advance(self._bar)
        if not self.console.is_terminal:  # a log cannot show a live table; it gets each row when the row is complete
            self.console.print(one_line(row), highlight=False, markup=False, soft_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows, busy = list(self.benchmark.rows), list(self._busy.values())
        if self.models <= DETAILED:
            doing = (busy[0][0].model, *busy[0][1:]) if busy else None
            yield results_table([*rows, *(row for row, *_ in busy)], self.title, doing)
            return
        # The table shows the last rows that fit while the benchmark runs, and all rows once it has ended.
        fit = max(3, console.size.height - 8 - len(busy)) if self._live.is_started and busy else len(rows)
        statuses = Counter(result.status for row in rows for result in list(row.results.values())[-1:])
        yield Group(
            compact_table(rows[-fit:]),
            *(Text(f"{row.suite}/{row.model}: {who}, {phase} ...", style="cyan") for row, who, phase in busy),
            Text(", ".join(f"{number} {status}" for status, number in statuses.most_common())),
            self._progress,
        )
