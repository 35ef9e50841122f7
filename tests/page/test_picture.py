"""smelt/page/picture.py: boxes lie below what they read, and nothing leaves the picture."""

from __future__ import annotations

import re
import time

import pytest

from smelt.page.picture import MAX_BOXES, Box, draw_program, draw_shares, draw_steps, draw_times


def box(*sources: int) -> Box:
    return Box("kernel", "mul", "f.py:1", "title", "k", sources)


def rectangles(svg: str) -> list[tuple[float, float, float, float]]:
    found = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', svg)
    return [(float(x), float(y), float(w), float(h)) for x, y, w, h in found]


@pytest.mark.parametrize(
    "boxes",
    [
        [],
        [box()],
        [box(), box(0), box(1)],
        [box(), box(0), box(0), box(0), box(1, 2, 3)],
        [box(), box(), box(0, 1), box(0)],
        [box(*range(max(0, n - 3), n)) for n in range(40)],
    ],
    ids=["none", "one", "chain", "fan", "two roots", "dense"],
)
def test_boxes(boxes: list[Box]) -> None:
    svg = draw_program(boxes)
    placed = rectangles(svg)
    assert len(placed) == len(boxes)
    for (_, y, _, _), each in zip(placed, boxes, strict=True):
        assert all(placed[source][1] + placed[source][3] < y for source in each.sources)
    for i, (x, y, w, h) in enumerate(placed):
        assert not any(abs(x - u) < w and abs(y - v) < h for u, v, _, _ in placed[:i])
    width, height = map(float, re.search(r'viewBox="0 0 ([\d.-]+) ([\d.-]+)"', svg).groups())  # type: ignore[union-attr]
    assert all(0 <= x and x + w <= width and 0 <= y and y + h <= height for x, y, w, h in placed)


def test_a_large_program_is_drawn_partly_and_quickly() -> None:
    begin = time.perf_counter()
    svg = draw_program([box(*([n - 1] if n else [])) for n in range(5000)])
    assert len(rectangles(svg)) == MAX_BOXES
    assert time.perf_counter() - begin < 5


def test_curves_and_bars() -> None:
    assert "NaN" not in draw_steps([0, 0], [], "x") and draw_steps([], [], "x")
    assert "7 MB" in draw_steps([3_000_000, 7_000_000], [(1, "")], "x")
    assert draw_times({"area": [(0.0, 0.0)]}, "x") and "2 s" in draw_times({"area": [(0.0, 1.0), (2.0, 5.0)]}, "x")
    assert "(75 %)" in draw_shares({"build": 3.0, "joint": 1.0})
    assert draw_shares({}) and draw_shares({"a": 0.0})
