"""Marks in a joint graph: the gradients that exist in autograd's engine, depending on the results that are used.

A joint graph is traced with a gradient for each result. At a call some may be absent. Then eager's engine skips whole
nodes, and a skipped node gives no gradient, which differs from zeros. A node of a `torch.autograd.Function` gets zeros,
or None, for single gradients that are absent. So the nodes where that matters are marked in the graph: where gradients
of different results are added, and the gradients that such a function gets. Marks compute nothing, and are removed
before scheduling.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from torch import fx

from smelt.base.errors import SmeltError


class Flow:
    """The gradients of one joint graph that exist, depending on which results have a gradient.

    A set of conditions is an integer with a bit for each condition: first the graph's differentiable results; then, for
    each of `choices`, the gradients that a function gives.
    """

    def __init__(self, count: int) -> None:
        self.count = self.bits = count
        self.choices: list[Choice] = []

    def present(self, absent: Container[int]) -> int:
        """Returns the conditions that are true if the results at these positions have no gradient."""
        found = sum(1 << i for i in range(self.count) if i not in absent)
        for choice in self.choices:
            found |= choice.returned(found)
        return found

    def error(self, present: int) -> Exception | None:
        """Returns the error of the first function, in the engine's order, that raises an error under these conditions;
        else None.
        """
        for choice in self.choices:
            pattern = choice.pattern(present)
            gives = None if pattern is None else choice.gives[pattern]
            if isinstance(gives, Exception):
                return gives
        return None

    def add(self, choice: Choice) -> None:
        """Add a function; its conditions get the next bits."""
        choice.first = self.bits
        self.bits += choice.edges
        self.choices.append(choice)


class Choice:
    """A `torch.autograd.Function` whose backward gets None for absent gradients: the gradients that it returns depend
    on the gradients that it receives.

    Attributes:
        visited: the conditions under which the engine reaches the function: one of them suffices.
        entries: for each gradient that it receives, the conditions under which that gradient exists: one of them
            suffices.
        patterns: the sets of gradients that it may receive (a bit for each position); the first is that of the trace.
        gives: for each pattern, the set of gradients that the function returns (a bit for each position), or the error
            that it raises.
        edges: the number of gradients that it may return.
        first: the bit of the condition for the first of them.
    """

    def __init__(self, visited: int, entries: Sequence[int], patterns: Sequence[int], edges: int) -> None:
        self.visited, self.entries, self.patterns, self.edges = visited, tuple(entries), list(patterns), edges
        self.gives: list[int | Exception] = []
        self.first = 0

    def pattern(self, present: int) -> int | None:
        """Returns the index in `patterns` of the set of gradients that the function receives under these conditions;
        None if the engine does not reach the function.
        """
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

    def returned(self, present: int) -> int:
        """Returns the conditions of this function (one for each gradient that it may return) that are true under the
        conditions `present`.
        """
        pattern = self.pattern(present)
        gives = 0 if pattern is None else self.gives[pattern]
        return gives << self.first if isinstance(gives, int) else 0


class GradientMark:
    """The target of a node whose value is that of its operand.

    Attributes:
        mask: the conditions under which the gradient exists: one of them suffices.
    """

    def __init__(self, flow: Flow, mask: int = 0) -> None:
        self.flow, self.mask = flow, mask
        self.__name__ = self.__qualname__ = type(self).__name__.lower()

    def __call__(self, gradient: Any, *_: Any) -> Any:
        return gradient


class Contribution(GradientMark):
    """A gradient that one node of the engine passes to another, which may add further gradients to it."""


class Materialized(GradientMark):
    """A gradient that a `torch.autograd.Function` gets: zeros where it is absent."""


class Chosen(GradientMark):
    """A gradient that the function of `choice` returns: the operand at the pattern's index; None if it returns none."""

    def __init__(self, flow: Flow, choice: Choice) -> None:
        super().__init__(flow)
        self.choice = choice


def flow_of(graph: fx.Graph) -> Flow | None:
    """Returns the conditions on which the marks of a graph depend; None if it has no marks."""
    return next((node.target.flow for node in graph.nodes if isinstance(node.target, GradientMark)), None)


def marks(graph: fx.Graph) -> list[fx.Node]:
    """Returns the nodes of a graph that are marks."""
    return [node for node in graph.nodes if isinstance(node.target, GradientMark)]
