"""What was found out about code objects, each by its identity, as long as the code lives."""

from __future__ import annotations

import weakref
from types import CodeType
from typing import Generic, TypeVar

V = TypeVar("V")


class ByCode(Generic[V]):
    """A table whose rows go when their code does. A value must not hold the code: both would stay.

    Not a `WeakKeyDictionary`: codes of equal text are equal, and compared by it.
    """

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[int, tuple[V, weakref.ref[CodeType]]] = {}

    def get(self, code: CodeType) -> V | None:
        """What is known of the code."""
        row = self._rows.get(id(code))
        return None if row is None else row[0]

    def put(self, code: CodeType, value: V) -> V:
        """From now on this is known of the code."""
        rows, key = self._rows, id(code)
        rows[key] = value, weakref.ref(code, lambda _: rows.pop(key, None))
        return value

    def __len__(self) -> int:
        return len(self._rows)
