"""Which operation of the forward, and so which line of the user, a node of the autograd engine comes from.

The engine numbers its nodes in the order in which the forward makes them. So those that one operation has made have the
numbers from the one that came next when it began.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from smelt.base.torch_c import next_sequence_number, node_being_run


class BackwardLines:
    """The operations of a forward in order, each with the number that its first node would have."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.origins: list[tuple[str, Any]] = []

    def begin(self, operation: str, line: Any) -> None:
        """The operation of this name, of this line, is about to run."""
        self.numbers.append(next_sequence_number())
        self.origins.append((operation, line))

    def of_running(self) -> dict[str, Any]:
        """What is known of the node that the engine runs now, as entries of a graph node's `meta`."""
        node = node_being_run()
        if node is None or not self.numbers:
            return {}
        number = node._sequence_nr()
        if number < self.numbers[0] or number >= _OF_LEAVES:
            return {}
        operation, line = self.origins[bisect_right(self.numbers, number) - 1]
        return {"of": operation, "line": line}


_OF_LEAVES = 1 << 63
"""Nodes that accumulate gradients of leaves have the largest number of all."""
