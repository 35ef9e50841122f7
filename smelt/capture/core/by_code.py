"""What was found out about code objects, each by its identity, as long as the code lives."""

from __future__ import annotations

from types import CodeType
from typing import TypeVar

from smelt.base.class_tables import ByIdentity

V = TypeVar("V")


class ByCode(ByIdentity[CodeType, V]):
    """A table whose rows go when their code does. A value must not hold the code: both would stay.

    Not a `WeakKeyDictionary`: codes of equal text are equal, and compared by it.
    """

    __slots__ = ()
