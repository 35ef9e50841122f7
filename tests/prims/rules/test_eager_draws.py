"""`eager_rng`: numbers drawn into an argument are eager's, whatever the layout of its memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "rows": lambda: torch.zeros(8, 20),
    "steps": lambda: torch.zeros(8, 40)[:, ::2],
    "gaps": lambda: torch.zeros(8, 41)[:, 3:],
    "every second row": lambda: torch.zeros(16, 20)[::2],
    "columns": lambda: torch.zeros(20, 8).t(),
    "columns with gaps": lambda: torch.zeros(20, 9).t()[1:],
    "offset": lambda: torch.zeros(41)[1:],
    "few": lambda: torch.zeros(30)[::3],
    "none": lambda: torch.zeros(30, 0)[::3],
    "double": lambda: torch.zeros(8, 40, dtype=torch.float64)[:, ::2],
}
DRAWS = ("normal_", "uniform_", "exponential_", "random_", "cauchy_", "log_normal_")


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_draws_into_memory_of_any_layout(layout: str, draw: str) -> None:
    """`normal_` draws other numbers where memory has gaps than where it has none."""

    def inside(x: torch.Tensor) -> Any:
        return getattr(x, draw)() + 1, torch.rand(2)

    results = []
    for run in (inside, smelt.compile(inside, options={"eager_rng": True})):
        torch.manual_seed(3)
        x = LAYOUTS[layout]()
        results.append((run(x), x, run(x)))
    torch.testing.assert_close(*results, rtol=0, atol=0)
