"""Draws how a program uses its arena in the course of its calls."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from smelt.tiny.plan import Layout
from smelt.tiny.program import Program
from smelt.tiny.project.memory_map import sizes_of


def draw(program: Program, layout: Layout, path: Path) -> None:
    """Write a picture of the arena: calls on the x axis, addresses on the y axis, a rectangle for each value."""
    sizes = sizes_of(program, layout)
    figure = Figure(figsize=(12, 5))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    colours = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#9c755f", "#76b7b2")
    for number, (name, (first, last)) in enumerate(layout.lives.items()):
        colour = "#e15759" if name.startswith("d ") else colours[number % len(colours)]
        place = (first, layout.offsets[name] / 1024)
        axes.add_patch(
            Rectangle(place, last - first + 1, sizes[name] / 1024, facecolor=colour, edgecolor="white", lw=0.3)
        )
    axes.set(xlim=(-1, len(program.calls)), ylim=(0, layout.size / 1024), xlabel="call", ylabel="KB of the arena")
    axes.set_title(f"{program.graph.name}: arena over a training step (gradients red)")
    figure.savefig(path, dpi=110, bbox_inches="tight")
