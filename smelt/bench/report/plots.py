"""Plots rows as SVG for an HTML page. Colours are the page's CSS variables, so they follow its theme."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from smelt.bench.report.summary import BASE, RIVAL, Setting, cold_s, compared, ratio, reference, speedup
from smelt.bench.results import Row

VARIABLES = {"#0a0b01": "--ink", "#0a0b02": "--line", "#0a0b03": "--rival"} | {
    f"#0a0b1{index}": f"--series-{index}" for index in range(4)
}
"""CSS variable of the page by placeholder colour, which it replaces."""

INK, LINE, RIVALS, *SERIES = VARIABLES

TICKS = tuple(m * 10.0**e for e in range(-4, 5) for m in (1, 2, 5))

NAMED = 24
"""Maximum number of rows whose names are written below a plot."""

STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "smelt",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": LINE,
    "legend.frameon": False,
}


def colour(name: str, names: Sequence[str]) -> str:
    """Returns a contender's placeholder colour: a fixed colour for torch.compile, the others in order."""
    others = [other for other in names if other not in (BASE, RIVAL)]
    return RIVALS if name in (BASE, RIVAL) else SERIES[others.index(name) % len(SERIES)]


def speedup_plot(rows: Sequence[Row]) -> str | None:
    """Plot speed-ups over eager in ascending order, a panel for each setting; None without speed-ups."""
    names = [name for name in compared(rows) if name != BASE]
    known = [value for row in rows for name in names if (value := speedup(row, name)) is not None]
    groups = _groups([row for row in rows if any(speedup(row, name) for name in names)])
    if not groups:
        return None
    columns = min(3, len(groups))
    lines = -(-len(groups) // columns)
    with style():
        figure = _figure(3.7 * columns + 0.6, 3.0 * lines + 0.4)
        panels = list(figure.subplots(lines, columns, sharey=True, squeeze=False).flat)
        for panel, (setting, group) in zip(panels, groups.items(), strict=False):
            panel.axhline(1.0, color=INK, linewidth=1)
            for name in names:
                values = sorted(value for row in group if (value := speedup(row, name)) is not None)
                look = {"color": colour(name, names), "label": f"{name}: {len(values)}", "linewidth": 1}
                panel.plot(_shares(len(values)), values, ".-", **look)
            panel.set_title(f"{setting.suite}\n{setting.how}")
            panel.set_xlabel("share of rows, slowest first")
            panel.set_xlim(-0.03, 1.03)
            panel.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.0f}%"))
            panel.legend(title="rows that passed", fontsize=9, title_fontsize=9, loc="upper left")
            _log_axis(panel, "{:g}x", [0.55, 1.9, *known])
        for panel in panels[len(groups) :]:
            panel.axis("off")
        figure.axes[0].set_ylabel("times as fast as eager")
        return _svg(figure, "speedups", "Speed-ups over eager, sorted, for each suite and setting")


def cold_plot(rows: Sequence[Row], name: str) -> str | None:
    """Plot the cold starts of a contender and of its reference, paired by row; None if no row has both."""
    other = reference(rows, name)
    both = [row for row in rows if other != name and ratio(row, name, other, cold_s) is not None]
    if not both:
        return None
    both.sort(key=lambda row: row.results[name].cold_s or 0.0)
    own, others = ([row.results[who].cold_s or 0.0 for row in both] for who in (name, other))
    positions = range(1, len(both) + 1)
    with style():
        figure = _figure(11.7, 3.6)
        panel = figure.subplots()
        panel.vlines(positions, own, others, color=LINE, linewidth=1)
        panel.plot(positions, others, "o", color=colour(other, [name]), label=other, markersize=4)
        panel.plot(positions, own, "o", color=colour(name, [name]), label=name, markersize=4)
        panel.set_ylabel("cold start, seconds")
        panel.set_xlim(0.3, len(both) + 0.7)
        panel.legend(loc="lower right", ncols=2, bbox_to_anchor=(1.0, 1.0))
        panel.set_title(f"{len(both)} {'row' if len(both) == 1 else 'rows'} that both passed", loc="left")
        if len(both) <= NAMED:
            panel.set_xticks(positions, [row.model for row in both], rotation=35, ha="right")
        else:
            panel.set_xlabel(f"rows, by the cold start of {name}")
        _log_axis(panel, "{:g} s", [*own, *others])
        return _svg(figure, "cold", f"Cold starts of {name} and {other}, row by row")


def _groups(rows: Sequence[Row]) -> dict[Setting, list[Row]]:
    groups: dict[Setting, list[Row]] = {}
    for row in rows:
        groups.setdefault(Setting.of(row), []).append(row)
    return groups


def _shares(n: int) -> list[float]:
    """Returns `n` evenly spaced positions from 0 to 1; a single one is in the middle."""
    return [0.5] if n == 1 else [index / (n - 1) for index in range(n)]


def _log_axis(panel: Any, text: str, values: Sequence[float]) -> None:
    """Set up a logarithmic axis that covers the values, with ticks at 1, 2 and 5 times powers of ten."""
    low, high = min(values) / 1.15, max(values) * 1.15
    panel.set_yscale("log")
    panel.set_ylim(low, high)
    panel.yaxis.set_major_locator(FixedLocator([tick for tick in TICKS if low <= tick <= high]))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text.format(value)))
    panel.grid(axis="y", alpha=0.6, linewidth=0.6)


@contextmanager
def style() -> Iterator[None]:
    """A context with matplotlib's settings for the figures of a report."""
    with matplotlib.rc_context(STYLE):
        yield


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _svg(figure: Figure, name: str, label: str) -> str:
    """Convert the figure to an <svg> element without links, whose ids begin with `name` and whose colours are
    variables.
    """
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r"#0a0b\w\w", lambda match: f"var({VARIABLES[match.group()]})", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)
