"""What is known of classes and other objects, each by its identity.

A dictionary asks a key for its hash and compares keys: of a class that is its metaclass, which may be the
program's and say what it likes, or refuse to. So do `in` and `==` on classes, also in tuples. The builtin `isinstance`
reads the `__class__` of an object, which may be the program's, too: that of this module goes by the object's class.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from smelt.base._native import ClassTable
from smelt.base._native import isinstance as isinstance

V = TypeVar("V")
K = TypeVar("K")


def classes(*members: Any) -> ClassTable[None]:
    """A set of classes, of which `in` asks nothing."""
    return ClassTable([(member, None) for member in members])


def by_class(values: Mapping[Any, V]) -> ClassTable[V]:
    """A dictionary whose keys are classes, of which lookups ask nothing."""
    return ClassTable(values.items())


class ByIdentity(Generic[K, V]):
    """A table whose rows go when their keys do. A value must not hold the key: both would stay."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[int, tuple[V, weakref.ref[K]]] = {}

    def get(self, key: K) -> V | None:
        """What is known of the key."""
        row = self._rows.get(id(key))
        return None if row is None else row[0]

    def put(self, key: K, value: V) -> V:
        """From now on this is known of the key."""
        rows, number = self._rows, id(key)
        rows[number] = value, weakref.ref(key, lambda _: rows.pop(number, None))
        return value

    def __contains__(self, key: K) -> bool:
        return id(key) in self._rows

    def __len__(self) -> int:
        return len(self._rows)
