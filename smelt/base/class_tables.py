"""Tables whose keys are classes or other objects, compared by identity.

A dictionary hashes and compares its keys. For a class the metaclass does this; a metaclass of the user's program may
return arbitrary values or raise. The same holds for `in` and `==` on classes, also in tuples. The builtin `isinstance`
reads `__class__` of an object, which the program may also define; the `isinstance` of this module uses `type(object)`.
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
    """A set of classes whose `in` compares by identity."""
    return ClassTable([(member, None) for member in members])


def by_class(values: Mapping[Any, V]) -> ClassTable[V]:
    """A dictionary whose keys are classes, compared by identity."""
    return ClassTable(values.items())


class ByIdentity(Generic[K, V]):
    """A table that drops an entry when its key is freed. A value must not refer to its key: both would stay alive."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[int, tuple[V, weakref.ref[K]]] = {}

    def get(self, key: K) -> V | None:
        """The value of the key; None if the table does not have the key."""
        row = self._rows.get(id(key))
        return None if row is None else row[0]

    def put(self, key: K, value: V) -> V:
        """Set the value of the key, and return the value."""
        rows, number = self._rows, id(key)
        rows[number] = value, weakref.ref(key, lambda _: rows.pop(number, None))
        return value

    def __contains__(self, key: K) -> bool:
        return id(key) in self._rows

    def __len__(self) -> int:
        return len(self._rows)
