"""A table of facts about code objects, keyed by identity; a row is removed when its code object dies."""

from __future__ import annotations

from types import CodeType
from typing import TypeVar

from smelt.base.class_tables import ByIdentity

V = TypeVar("V")


class ByCode(ByIdentity[CodeType, V]):
    """A table whose rows are removed when their code dies. A value must not refer to its code, which would keep it
    alive.

    `WeakKeyDictionary` does not fit: it compares keys by equality, and code objects of equal text are equal.
    """

    __slots__ = ()
