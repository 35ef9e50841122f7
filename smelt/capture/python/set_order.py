"""Copies of sets that iterate in the order of the original.

A set iterates in the order of its hash table, which depends on the table's size and, for items whose hashes collide, on
the order in which they were inserted. A set that is made from the items of another one, in the order of iteration, may
therefore iterate in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

Items = set[object] | frozenset[object]

S = TypeVar("S", bound=Items)


def in_order(make: Callable[[Iterable[object]], S], items: Sequence[object], original: Items | None = None) -> S | None:
    """`make(...)` of the items, iterating in their order; None if no order of insertion that is tried gives that.

    Args:
        make: makes a set, a frozenset or a subclass instance of given items.
        items: of a set, in its order of iteration.
        original: that set, whose table is copied if possible.
    """
    wanted = [*map(id, items)]
    for order in _orders(items, original):
        made = make(order)
        inside = set.__iter__(made) if isinstance(made, set) else frozenset.__iter__(made)
        if [*map(id, inside)] == wanted:
            return made
    return None


def _orders(items: Sequence[object], original: Items | None) -> Iterator[Iterable[object]]:
    """Orders of insertion: that of iteration first, then its rotations, as a displaced item may lie at either end."""
    if original is not None:
        yield set(original)  # of an equal size of table, C copies the table as it is
    yield items
    for first in range(1, len(items)):
        yield [*items[first:], *items[:first]]
    yield items[::-1]
