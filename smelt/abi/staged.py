"""Programs that return results in stages, while later kernels have yet to run.

The host program of such a program is a generator: it yields results as soon as they are final, and keeps its buffers
until it is resumed. Called like any other program, it returns all results at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

Steps = Callable[[list[Any]], Iterator[list[Any]]]
"""Type of a boxed call, as for every program: it empties the list of inputs. The caller may empty each list that is
yielded.
"""


class Staged:
    """A program whose host program is a generator.

    Args:
        steps: function that runs the program, and yields for each stage the results at the stage's positions, in order.
        positions: for each stage, the positions of its results. Each result belongs to one stage.
    """

    def __init__(self, steps: Steps, positions: Sequence[Sequence[int]]) -> None:
        self.begin, self.positions = steps, tuple(map(tuple, positions))
        self.count = sum(map(len, self.positions))

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Run the program; returns all results."""
        results: list[Any] = [None] * self.count
        for positions, given in zip(self.positions, self.begin(inputs), strict=True):
            for position, value in zip(positions, given, strict=True):
                results[position] = value
        return results
