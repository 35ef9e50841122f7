"""Marks in a joint graph: which gradients autograd's engine has, whatever results are used.

A joint graph is traced with a gradient for each result. At a call some may be absent, and then eager's engine leaves
out whole nodes: what it does not come to gives nothing, which is not zeros. A node of a `torch.autograd.Function` is
given zeros, or None, for single gradients that are absent. So the nodes where that shows are marked in the graph:
where gradients of different results meet, and what such a function is given. The marks compute nothing, and are gone
before anything is scheduled.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from torch import fx

from smelt.base.errors import SmeltError


class Flow:
    """Which gradients of one joint graph are there, by the results that have one.

    A set of conditions is an integer with a bit for each: first come the graph's differentiable results; then, for each
    of `choices`, the gradients that a function gives.
    """

    def __init__(self, count: int) -> None:
        self.count = self.bits = count
        self.choices: list[Choice] = []

    def present(self, absent: Container[int]) -> int:
        """The conditions that hold where the results at these positions have no gradient."""
        found = sum(1 << i for i in range(self.count) if i not in absent)
        for choice in self.choices:
            found |= choice.given(found)
        return found

    def error(self, present: int) -> Exception | None:
        """What the first function raises, in the engine's order, where these conditions hold."""
        for choice in self.choices:
            pattern = choice.pattern(present)
            gives = None if pattern is None else choice.gives[pattern]
            if isinstance(gives, Exception):
                return gives
        return None

    def add(self, choice: Choice) -> None:
        """Note a function; its conditions get the next bits."""
        choice.first = self.bits
        self.bits += choice.edges
        self.choices.append(choice)


class Choice:
    """A function whose backward is given None for gradients that are absent: what it gives for which of them.

    Attributes:
        visited: the results from which the engine comes to it; entries: for each gradient that it is given, those for
            which that is there. With more than one set of them, `patterns` are those sets (bits by position), the first
            of which is that of the trace.
        gives: for each pattern the gradients that it gives (bits by position), or the error that it raises.
        edges: how many it may give; first: the bit of the first.
    """

    def __init__(self, visited: int, entries: Sequence[int], patterns: Sequence[int], edges: int) -> None:
        self.visited, self.entries, self.patterns, self.edges = visited, tuple(entries), list(patterns), edges
        self.gives: list[int | Exception] = []
        self.first = 0

    def pattern(self, present: int) -> int | None:
        """The index of the one of `patterns` that is there; None where the engine does not come to the function."""
        if not self.visited & present:
            return None
        found = sum(1 << k for k, mask in enumerate(self.entries) if mask & present)
        if found not in self.patterns:
            raise SmeltError(
                "a gradient through a function that is given None for gradients that are absent",
                why="it has too many results to try all sets of them",
                hint="give zeros to it: leave out set_materialize_grads(False)",
            )
        return self.patterns.index(found)

    def given(self, present: int) -> int:
        """The conditions of this function that hold."""
        pattern = self.pattern(present)
        gives = 0 if pattern is None else self.gives[pattern]
        return gives << self.first if isinstance(gives, int) else 0


class GradientMark:
    """The target of a node that is what its operand is.

    Attributes:
        mask: the gradient is there where one of these conditions holds.
    """

    def __init__(self, flow: Flow, mask: int = 0) -> None:
        self.flow, self.mask = flow, mask
        self.__name__ = self.__qualname__ = type(self).__name__.lower()

    def __call__(self, gradient: Any, *_: Any) -> Any:
        return gradient


class Contribution(GradientMark):
    """A gradient that an engine node gives to another one, which may have it from others as well."""


class Materialized(GradientMark):
    """A gradient that a `torch.autograd.Function` is given: zeros where it is absent."""


class Chosen(GradientMark):
    """A gradient that the function of `choice` gives: the operand at the pattern's index, None where it gives none."""

    def __init__(self, flow: Flow, choice: Choice) -> None:
        super().__init__(flow)
        self.choice = choice


def flow_of(graph: fx.Graph) -> Flow | None:
    """What the marks of a graph depend on; None where there are none."""
    return next((node.target.flow for node in graph.nodes if isinstance(node.target, GradientMark)), None)


def marks(graph: fx.Graph) -> list[fx.Node]:
    """The marks of a graph."""
    return [node for node in graph.nodes if isinstance(node.target, GradientMark)]
