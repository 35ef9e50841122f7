"""What a call leaves on the program's objects, as far as a version for the next call may depend on it.

A model that counts its calls, or does something in the first one alone, reads what it wrote: its version fits one call,
and the next one needs another. Nothing runs when versions are compiled ahead; so what a capture has found to be
written is put there for the capture after it, and taken away in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from smelt.base.class_tables import isinstance
from smelt.capture.core.interface import Store
from smelt.capture.core.sources import MEMBERS
from smelt.capture.core.values import own_dict
from smelt.capture.python.effects import DELETED
from smelt.shapes.size import Size, hint

PLAIN = (int, float, bool, str, bytes, type(None), Size)
"""Types of values that are put; what is a tensor is not known before the graph has run."""


class LeftState:
    """Attributes of objects that stand as a call would leave them."""

    def __init__(self) -> None:
        self._before: dict[tuple[int, str], tuple[dict[str, object], object]] = {}

    def put(self, stores: Iterable[Store], is_external: Callable[[int], bool]) -> bool:
        """Do what a call would; whether anything was to be done.

        Args:
            is_external: tells, by its identity, what the program had before the call.
        """
        done = False
        for store in stores:
            held = _attributes(store) if is_external(id(store.target)) else None
            if held is not None and type(store.value) in PLAIN:
                self._before.setdefault((id(held), store.name), (held, held.get(store.name, DELETED)))
                held[store.name] = hint(store.value) if isinstance(store.value, Size) else store.value
                done = True
        return done

    def take_away(self) -> None:
        """Everything is as it was."""
        for (_, name), (held, value) in self._before.items():
            if value is DELETED:
                held.pop(name, None)
            else:
                held[name] = value
        self._before.clear()


def _attributes(store: Store) -> dict[str, Any] | None:
    """The dictionary that an assignment writes to; None where it does something else."""
    if store.kind != "attr" or isinstance(store.target, type):
        return None
    held: dict[str, Any] | None = own_dict(store.target)
    if held is None or hasattr(getattr(type(store.target), store.name, None), "__set__"):
        return None
    member = store.name not in held and any(store.name in (held.get(table) or ()) for table in MEMBERS)
    return None if member else held
