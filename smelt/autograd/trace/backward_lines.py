"""Finds the operation of the forward, and so the user's line, from which a node of the autograd engine comes.

The engine numbers its nodes in the order in which the forward makes them. The nodes of one operation thus have the
numbers from the counter's value when the operation began to its value when the next one began.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from smelt.base.torch_c import next_sequence_number, node_being_run


class BackwardLines:
    """The operations of a forward in order, each with the number that its first autograd node would have."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.origins: list[tuple[str, Any, int | None]] = []

    def begin(self, operation: str, line: Any, region: int | None = None) -> None:
        """Record that `operation` of this line is about to run, in the `checkpoint` call of number `region`, if any."""
        self.numbers.append(next_sequence_number())
        self.origins.append((operation, line, region))

    def of_running(self) -> dict[str, Any]:
        """Returns the origin of the node that the engine is running, as entries of a graph node's `meta`."""
        operation, line, _ = self._of_running()
        return {} if operation is None else {"of": operation, "line": line}

    def region(self) -> int | None:
        """Returns the `checkpoint` call from which the running node comes, or None."""
        return self._of_running()[2]

    def _of_running(self) -> tuple[str | None, Any, int | None]:
        node = node_being_run()
        if node is None or not self.numbers:
            return _NOTHING
        number = node._sequence_nr()
        if number < self.numbers[0] or number >= _OF_LEAVES:
            return _NOTHING
        return self.origins[bisect_right(self.numbers, number) - 1]


_OF_LEAVES = 1 << 63
"""Number of the autograd nodes that accumulate gradients of leaves; it is larger than all other numbers."""

_NOTHING = None, None, None
