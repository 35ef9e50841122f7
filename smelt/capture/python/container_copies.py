"""Copies of the program's containers that are passed to C code with mirrors in place of external containers.

`Effects.plain` makes the copies. C code may return or store a copy (`q.extend([items])`), which is then replaced by the
program's own container.
"""

from __future__ import annotations

import collections
from typing import Any

from smelt.base.class_tables import isinstance


class Copies:
    """The copies that were made during one capture."""

    def __init__(self) -> None:
        self._kept_alive: dict[int, tuple[object, object]] = {}  # by identity of the copy

    def note(self, copy: object, container: object) -> None:
        """Record that `copy` is a copy of `container`."""
        self._kept_alive[id(copy)] = copy, container

    def clear(self) -> None:
        """Drop the references to the program's objects."""
        self._kept_alive.clear()

    def own(self, value: object) -> Any:
        """The container that the value is a copy of; any other value unchanged."""
        known = self._kept_alive.get(id(value))
        return value if known is None else known[1]

    def give_back(self, value: object) -> object:
        """An object that C code returned or wrote to, with copies of containers replaced by the program's own
        containers.
        """
        own = self.own(value)
        if own is not value or not self._kept_alive:
            return own
        kind = next((kind for kind in _KINDS if isinstance(value, kind)), None)
        if kind is None:
            return value
        items = kind.items(value) if kind is dict else enumerate(kind.__iter__(value))
        changed = {key: self.own(item) for key, item in items if self.own(item) is not item}
        if changed and kind is tuple:
            return tuple.__new__(type(value), [changed.get(at, item) for at, item in enumerate(tuple.__iter__(value))])
        for key, item in changed.items():
            kind.__setitem__(value, key, item)
        return value


_KINDS: tuple[Any, ...] = (list, tuple, collections.deque, dict)
