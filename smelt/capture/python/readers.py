"""Functions by which guards read what objects hold. Artefacts name them, so this module imports no other of capture."""

from __future__ import annotations

import collections
import functools
import gc
import weakref
from typing import Any, TypeVar

from smelt.base.class_tables import isinstance

T = TypeVar("T")


def deque_items(value: collections.deque[T]) -> list[T]:
    """The items of a deque, or of an instance of a subclass of one, ignoring overrides."""
    return list(collections.deque.__iter__(value))


def maximal_length(value: collections.deque[T]) -> int | None:
    """The `maxlen` of a deque, or of an instance of a subclass of one, ignoring overrides."""
    return _maxlen(value)


_maxlen = collections.deque.maxlen.__get__


def set_items(value: set[object] | frozenset[object]) -> tuple[object, ...]:
    """The items of a set, or of an instance of a subclass of one, in its order, ignoring overrides."""
    return tuple(set.__iter__(value) if isinstance(value, set) else frozenset.__iter__(value))


def set_items_by_text(value: set[object] | frozenset[object]) -> tuple[object, ...]:
    """The items of a set of plain values and classes in the order of `by_text`."""
    return by_text(set_items(value))


def by_text(items: tuple[object, ...]) -> tuple[object, ...]:
    """Plain values and classes in an order that does not depend on their hashes."""
    return tuple(sorted(items, key=lambda item: (type(item).__qualname__, _text(item))))


def _text(item: object) -> str:
    return type.__repr__(item) if isinstance(item, type) else repr(item)


def viewed(view: object) -> Any:
    """The mapping of a view of a dictionary, to which Python code has no direct access."""
    return gc.get_referents(view)[0]


def referent(reference: weakref.ref[T]) -> T | None:
    """The object of a weak reference; None if it is dead."""
    return reference()


def class_of_referent(proxy: object) -> object:
    """The class of a weak proxy's object; None if the object is dead."""
    try:
        return proxy.__class__
    except ReferenceError:
        return None


def is_bare(partial: functools.partial[object]) -> bool:
    """Whether a partial has no attribute dictionary: Python makes one when an attribute is read or set."""
    return functools.partial.__reduce__(partial)[2][3] is None
