"""The demo's report: one HTML file that holds its plots and needs nothing else."""

from __future__ import annotations

import base64
import html
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from smelt.demo.race import Runner

COLOURS = {"eager": "#8a8f98", "smelt": "#d9480f"}
HEADS = ("", "steps", "first step s", "median step ms", "steps/s", "last loss", "held out")

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1f2328 }
table { border-collapse: collapse } th, td { padding: .3rem .9rem; text-align: right; border-bottom: 1px solid #d0d7de }
th:first-child, td:first-child { text-align: left } img { max-width: 100%; margin: 1rem 0 }
pre { background: #f6f8fa; padding: 1rem; overflow-x: auto } .small { color: #59636e; font-size: .85rem }
"""


@dataclass
class Part:
    """One finished training: both sides, and text that the compiled side's model wrote, if it writes."""

    title: str
    score_name: str
    runners: list[Runner]
    sample: str = ""


def summary_rows(part: Part) -> list[tuple[str, ...]]:
    """A line for each side, by HEADS."""
    return [
        (
            runner.name,
            str(len(runner.losses)),
            f"{runner.first_s:.2f}",
            f"{runner.median_s * 1e3:.1f}",
            f"{1 / runner.median_s:.2f}",
            f"{statistics.fmean(runner.losses[-5:]):.4f}",
            "" if runner.score is None else f"{runner.score:.4f}",
        )
        for runner in part.runners
    ]


def verdict(part: Part) -> str:
    """What the part showed, in one sentence."""
    by_name = {runner.name: runner for runner in part.runners}
    eager, smelt = by_name["eager"], by_name["smelt"]
    ratio = eager.median_s / smelt.median_s
    gain, cost = eager.median_s - smelt.median_s, smelt.first_s - eager.first_s
    text = f"A compiled step takes {smelt.median_s * 1e3:.0f} ms, an eager one {eager.median_s * 1e3:.0f} ms"
    text += f": {ratio:.2f} times as fast." if gain > 0 else "."
    if gain > 0 and cost > 0:
        text += f" Compiling took {cost:.1f} s, earned back after {cost / gain:.0f} steps."
    return text


def write_report(folder: Path, parts: Sequence[Part], machine: dict[str, Any]) -> Path:
    """Write `folder`/index.html and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    body = "".join(_section(part) for part in parts)
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    about = f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, {packages}"
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>smelt demo</title>'
        f"<style>{STYLE}</style></head><body><h1>smelt: eager and compiled, side by side</h1>"
        "<p>Both sides start from the same weights, see the same batches and train in turns of about a second.</p>"
        f'{body}<p class="small">{html.escape(about)}. Made by <code>smelt demo</code>.</p></body></html>\n'
    )
    file = folder / "index.html"
    file.write_text(page, encoding="utf-8")
    return file


def _section(part: Part) -> str:
    heads = "".join(f"<th>{head}</th>" for head in (*HEADS[:-1], part.score_name))
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in summary_rows(part)
    )
    sample = f"<p>Written by the compiled model:</p><pre>{html.escape(part.sample)}</pre>" if part.sample else ""
    return (
        f"<h2>{html.escape(part.title)}</h2><p>{html.escape(verdict(part))}</p><table><tr>{heads}</tr>{rows}</table>"
        f'<img alt="loss and time per step" src="data:image/png;base64,{_plots(part)}">{sample}'
    )


def _plots(part: Part) -> str:
    """The loss of each side over steps and over seconds, and the time of each step, as base64 PNG."""
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    by_step, by_time, times = figure.subplots(1, 3)
    for index, runner in enumerate(part.runners):
        line = {"color": COLOURS[runner.name], "label": runner.name, "linewidth": 2.4 - index}
        losses = smooth(runner.losses)
        by_step.plot(range(1, len(losses) + 1), losses, **line)
        by_time.plot(_elapsed(runner), losses, **line)
        times.plot(range(2, len(runner.seconds) + 1), [s * 1e3 for s in runner.seconds[1:]], **line)
    _label(by_step, "loss, step by step", "step", "loss")
    _label(by_time, "loss over own time, compiling included", "seconds", "loss")
    _label(times, "time per step", "step", "ms")
    times.set_ylim(0, 2.5e3 * max(runner.median_s for runner in part.runners))  # a busy moment may stand out of it
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return base64.b64encode(file.getvalue()).decode()


def smooth(values: Sequence[float]) -> list[float]:
    """The mean of each value and those shortly before it: a fiftieth of the run."""
    width = max(1, len(values) // 50)
    return [statistics.fmean(values[max(0, index + 1 - width) : index + 1]) for index in range(len(values))]


def _elapsed(runner: Runner) -> list[float]:
    elapsed, total = [], runner.first_s - runner.seconds[0]
    for seconds in runner.seconds:
        total += seconds
        elapsed.append(total)
    return elapsed


def _label(axes: Any, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
