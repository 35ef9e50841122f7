"""Makes copies of sets that iterate in the order of the original.

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
    """A set of the items that iterates in their order; None if none of the tried orders of insertion results in this
    order.

    Args:
        make: function that makes a set, a frozenset or an instance of a subclass from an iterable of items.
        items: the items of the original set, in its order of iteration.
        original: the original set, whose hash table is copied if possible; None without one.
    """
    wanted = [*map(id, items)]
    for order in _orders(items, original):
        made = make(order)
        inside = set.__iter__(made) if isinstance(made, set) else frozenset.__iter__(made)
        if [*map(id, inside)] == wanted:
            return made
    return None


def _orders(items: Sequence[object], original: Items | None) -> Iterator[Iterable[object]]:
    """Iterables of the items in the orders of insertion to try: the order of iteration first, then its rotations,
    because a displaced item may be at either end of the hash table."""
    if original is not None:
        yield set(original)  # C copies a table of equal size as it is
    yield items
    for first in range(1, len(items)):
        yield [*items[first:], *items[:first]]
    yield items[::-1]
