"""Pictures of the page as SVG: a program as boxes and arrows, memory over time, shares of a total."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from smelt.page.markup import Markup, bytes_text, element, joined, seconds_text

BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 176, 40, 22, 34, 12

MAX_BOXES = 600
"""Maximum number of boxes in one picture; browsers are slow with more."""


@dataclass(frozen=True)
class Box:
    """A step of a program.

    Attributes:
        kind: a class of the style sheet.
        title: the full description, shown as a tooltip.
        link: target of a click.
        sources: indices of the boxes whose values it reads.
    """

    kind: str
    first: str
    second: str
    title: str
    link: str
    sources: tuple[int, ...]


def draw_program(boxes: Sequence[Box]) -> Markup:
    """Draw the boxes in layers, each box below all boxes that it reads."""
    boxes = boxes[:MAX_BOXES]
    layers = _layers(boxes)
    width = max((len(layer) for layer in layers), default=1) * (BOX_WIDTH + GAP_X) - GAP_X
    position: dict[int, tuple[float, float]] = {}
    for depth, layer in enumerate(layers):
        begin = MARGIN + (width - (len(layer) * (BOX_WIDTH + GAP_X) - GAP_X)) / 2
        for column, number in enumerate(layer):
            position[number] = begin + column * (BOX_WIDTH + GAP_X), MARGIN + depth * (BOX_HEIGHT + GAP_Y)
    edges = [_edge(position[source], position[number]) for number, box in enumerate(boxes) for source in box.sources]
    shown = [_box(box, *position[number]) for number, box in enumerate(boxes)]
    total = 2 * MARGIN + width, 2 * MARGIN + len(layers) * (BOX_HEIGHT + GAP_Y) - GAP_Y
    return element(
        "svg", element("g", edges, class_="edges"), shown,
        viewBox=f"0 0 {total[0]:.0f} {total[1]:.0f}", width=f"{total[0]:.0f}", height=f"{total[1]:.0f}",
        class_="graph", role="img", aria_label="the steps of the program, and which reads what of which",
    )  # fmt: skip


def _layers(boxes: Sequence[Box]) -> list[list[int]]:
    """Indices of boxes by depth; within a layer each box is near the boxes that it reads."""
    depth: list[int] = []
    for box in boxes:
        depth.append(1 + max((depth[s] for s in box.sources), default=-1))
    layers: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for number, level in enumerate(depth):
        layers[level].append(number)
    column: dict[int, float] = {}
    for layer in layers:
        middle = {
            n: sum(column[s] for s in boxes[n].sources) / len(boxes[n].sources) if boxes[n].sources else 0.0
            for n in layer
        }
        layer.sort(key=lambda n: (middle[n], n))
        for at, number in enumerate(layer):
            column[number] = at - (len(layer) - 1) / 2
    return layers


def _edge(start: tuple[float, float], end: tuple[float, float]) -> Markup:
    x1, y1 = start[0] + BOX_WIDTH / 2, start[1] + BOX_HEIGHT
    x2, y2 = end[0] + BOX_WIDTH / 2, end[1]
    bend = max((y2 - y1) / 2, GAP_Y / 2)
    path = f"M{x1:.0f},{y1:.0f}C{x1:.0f},{y1 + bend:.0f} {x2:.0f},{y2 - bend:.0f} {x2:.0f},{y2:.0f}"
    return element("path", d=path)


def _box(box: Box, x: float, y: float) -> Markup:
    middle = f"{x + BOX_WIDTH / 2:.0f}"
    return element(
        "a",
        element("title", box.title),
        element("rect", x=f"{x:.0f}", y=f"{y:.0f}", width=BOX_WIDTH, height=BOX_HEIGHT, rx=6),
        element("text", _fitting(box.first), x=middle, y=f"{y + 17:.0f}", class_="what"),
        element("text", _fitting(box.second), x=middle, y=f"{y + 32:.0f}", class_="where"),
        href=f"#{box.link}",
        class_=f"box {box.kind}",
    )


def _fitting(text: str, most: int = 27) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


# -- curves and bars --------------------------------------------------------------------------------------------------

CURVE_WIDTH, CURVE_HEIGHT = 720, 130


def draw_steps(levels: Sequence[int], marks: Sequence[tuple[int, str]], label: str) -> Markup:
    """Draw the bytes after each step as a step curve; `marks` are (step, text)."""
    points = [(float(i), float(level)) for i, level in enumerate(levels)]
    steps = [(x + dx, y) for x, y in points for dx in (0.0, 1.0)]
    return _curve([("area", steps)], len(levels), max(levels, default=0), marks, label, lambda x: "")


def draw_times(series: Mapping[str, Sequence[tuple[float, float]]], label: str) -> Markup:
    """Draw bytes over seconds, with a line for each name; a name is also a class of the style sheet."""
    points = [point for each in series.values() for point in each]
    end = max((x for x, _ in points), default=0.0)
    most = max((y for _, y in points), default=0.0)
    return _curve(list(series.items()), end, most, [], label, seconds_text)


Points = Sequence[tuple[float, float]]


def _curve(
    series: Sequence[tuple[str, Points]],
    end: float,
    most: float,
    marks: Sequence[tuple[int, str]],
    label: str,
    along: Callable[[float], str],
) -> Markup:
    """Draw areas under lines; the horizontal axis ends at `end`, the vertical axis (bytes) at `most`."""
    right, bottom, left = CURVE_WIDTH - 8, CURVE_HEIGHT - 20, 66
    scale_x, scale_y = (right - left) / (end or 1), (bottom - 12) / (most or 1)
    drawn = []
    for kind, points in series:
        at = [(left + x * scale_x, bottom - y * scale_y) for x, y in points]
        if at:
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
            outline = f"{at[0][0]:.1f},{bottom} {line} {at[-1][0]:.1f},{bottom}"
            drawn.append(element("polygon", points=outline, class_=kind))
    grid = []
    for level in (0.0, most / 2, most):
        y = bottom - level * scale_y
        grid.append(element("line", x1=left, x2=right, y1=f"{y:.1f}", y2=f"{y:.1f}"))
        grid.append(element("text", bytes_text(level), x=left - 6, y=f"{y + 4:.1f}", class_="left"))
    shown = []
    for step, text in marks:
        x = f"{left + step * scale_x:.1f}"
        shown.append(element("line", x1=x, x2=x, y1=8, y2=bottom))
        shown.append(element("text", text, x=x, y=CURVE_HEIGHT - 4, class_="under"))
    ends = element("text", along(end), x=right, y=CURVE_HEIGHT - 4, class_="right")
    return element(
        "svg", element("g", grid, class_="grid"), drawn, element("g", shown, class_="marks"), ends,
        viewBox=f"0 0 {CURVE_WIDTH} {CURVE_HEIGHT}", class_="curve", role="img", aria_label=label,
    )  # fmt: skip


def draw_shares(shares: Mapping[str, float]) -> Markup:
    """Draw seconds by name as a list of bars."""
    most = max(shares.values(), default=0.0) or 1.0
    total = sum(shares.values())
    return element(
        "div",
        [
            joined(
                element("span", name),
                element(
                    "svg",
                    element("rect", width=f"{100 * seconds / most:.2f}", height=10, rx=1),
                    viewBox="0 0 100 10", preserveAspectRatio="none", aria_hidden="true",
                ),
                element("span", f"{seconds_text(seconds)} ({100 * seconds / (total or 1):.0f} %)"),
            )
            for name, seconds in sorted(shares.items(), key=lambda item: -item[1])
        ],
        class_="shares",
    )  # fmt: skip
