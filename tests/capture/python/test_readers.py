"""What guards read of sets does not depend on hashes where the order does not matter."""

from __future__ import annotations

import collections
import functools
import itertools
import math
import types
import weakref

import pytest

from smelt.capture.python.readers import (
    by_text,
    class_of_referent,
    deque_items,
    is_bare,
    maximal_length,
    referent,
    set_items,
    set_items_by_text,
    viewed,
)


class Names(set[object]):
    """A set with an iteration of its own."""

    def __iter__(self):  # type: ignore[no-untyped-def]
        raise AssertionError("guards do not run the program's methods")


class Queue(collections.deque[int]):
    """A deque with a length of its own."""

    maxlen = 7


@pytest.mark.parametrize("kind", [set, frozenset, Names])
def test_items_by_text_are_those_of_any_insertion(kind: type[set[object]]) -> None:
    items = ("b", "a", 1, 1.5, None, int, collections.OrderedDict, -0.0, b"a", math.inf)
    found = {set_items_by_text(kind(order)) for order in itertools.islice(itertools.permutations(items), 0, 5000, 97)}
    assert len(found) == 1
    assert set(*found) == set(items)
    assert by_text(set_items(kind(items))) in found


def test_equal_items_of_other_types_are_told_apart() -> None:
    assert [*map(type, set_items_by_text({True, "a"}))] != [*map(type, set_items_by_text({1, "a"}))]


def test_items_of_a_deque() -> None:
    assert deque_items(Queue([3, 1], 2)) == [3, 1]
    assert maximal_length(Queue([3, 1], 2)) == 2
    assert maximal_length(collections.deque()) is None


def test_objects_that_stand_for_others() -> None:
    held, values = Names(), {"a": 1}
    proxy, reference = weakref.proxy(held), weakref.ref(held)
    assert (referent(reference), class_of_referent(proxy)) == (held, Names)
    del held
    assert (referent(reference), class_of_referent(proxy)) == (None, None)
    assert viewed(values.keys()) is values and viewed(types.MappingProxyType(values)) is values
    partial = functools.partial(len, ())
    assert is_bare(partial)
    partial.extra = 1  # type: ignore[attr-defined]
    assert not is_bare(partial)
