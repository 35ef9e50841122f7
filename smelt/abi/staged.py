"""Programs that give results out in stages, while their later kernels have yet to run.

A host program in stages is a generator: it stops where results are final and hands them out, its memory its own until
it goes on. Who asks for all results at once gets them as from any other program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

Steps = Callable[[list[Any]], Iterator[list[Any]]]
"""Boxed, as every program: it empties the list of inputs. Each list that it hands out is for the caller to empty."""


class Staged:
    """The program over its stages.

    Args:
        steps: runs it; what it hands out at each stage are the results at the stage's positions, in order.
        positions: for each stage, the positions of its results. Each result belongs to one stage.
    """

    def __init__(self, steps: Steps, positions: Sequence[Sequence[int]]) -> None:
        self.begin, self.positions = steps, tuple(map(tuple, positions))
        self.count = sum(map(len, self.positions))

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """All results."""
        results: list[Any] = [None] * self.count
        for positions, given in zip(self.positions, self.begin(inputs), strict=True):
            for position, value in zip(positions, given, strict=True):
                results[position] = value
        return results
