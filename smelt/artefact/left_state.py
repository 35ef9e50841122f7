"""Writes of a call to attributes and containers, made for a time while versions for later calls are compiled ahead.

A model that counts its calls, or acts differently in the first one, reads what it wrote: its version fits one call, and
the next call needs another. Nothing runs when versions are compiled ahead, so the writes that one capture has found
are made before the next capture, and undone at the end.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any

import torch

from smelt.base.class_tables import isinstance
from smelt.capture.core.interface import Interpreter, Store
from smelt.capture.core.sources import MEMBERS
from smelt.capture.core.values import own_dict
from smelt.capture.python.effects import DELETED
from smelt.graph.ir.symint import from_torch
from smelt.shapes.size import Size, hint

PLAIN = (int, float, bool, str, bytes, type(None))
"""Types of values that are put; what is a tensor is not known before the graph has run."""

_PAIRS = (dict, collections.OrderedDict, collections.defaultdict)
_ITEMS = (list, set, collections.deque)


class _Unknown(Exception):
    """A value that is not known before the graph has run, or is made by residual code."""


class Left:
    """What one capture has found to be written, with the values that are known without running it.

    Args:
        vm: the interpreter, at the end of its capture.
    """

    def __init__(self, vm: Interpreter) -> None:
        effects = vm.effects
        self.external: Callable[[int], bool] = frozenset(vm.sources).__contains__
        written = [(self._attributes(store), store) for store in effects.stores.values()]
        known = [
            (attributes, store.name, _plain(store.value)) for attributes, store in written if attributes is not None
        ]
        self.attributes = [each for each in known if type(each[2]) in PLAIN]
        self.contents: list[tuple[Any, list[Any]]] = []
        self._original = effects.original
        mirrors = {id(each): each for each in effects.mirrors.values() if each.changed}.values()
        self._add((mirror.original, mirror.copy) for mirror in mirrors)
        self._add((container, [*container, *items]) for container, items in effects.appended.values())

    def _attributes(self, store: Store) -> dict[str, Any] | None:
        """The dictionary that an assignment writes to; None where it does something else, or to a new object."""
        if store.kind == "global":
            variables: dict[str, Any] = store.target
            return variables
        if store.kind != "attr" or isinstance(store.target, type) or not self.external(id(store.target)):
            return None
        attributes: dict[str, Any] | None = own_dict(store.target)
        if attributes is None or hasattr(getattr(type(store.target), store.name, None), "__set__"):
            return None
        member = store.name not in attributes and any(store.name in (attributes.get(table) or ()) for table in MEMBERS)
        return None if member else attributes

    def _add(self, written: Iterable[tuple[Any, Any]]) -> None:
        for container, now in written:
            if type(container) in (*_PAIRS, *_ITEMS):
                try:
                    self.contents.append((container, self._items(now)))
                except _Unknown:
                    continue

    def _items(self, container: Any) -> list[Any]:
        """The items of a container; of a dictionary the pairs."""
        if type(container) in _PAIRS:
            return [(self._value(key), self._value(value)) for key, value in container.items()]
        return [self._value(item) for item in container]

    def _value(self, value: Any) -> Any:
        """The value that the program will find.

        Raises:
            _Unknown: it is not known.
        """
        value = _plain(self._original(value))
        if type(value) in PLAIN:
            return value
        if self.external(id(value)):
            return value
        if type(value) in (dict, list, set, tuple):
            return type(value)(self._items(value))
        raise _Unknown


class LeftState:
    """Attributes of objects and items of containers, set to the values that a call would leave."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def put(self, left: Left) -> bool:
        """Make the writes of a call; returns whether there were any."""
        for attributes, name, value in left.attributes:
            self._set(attributes, name, value)
        for container, items in left.contents:
            self._fill(container, items)
        return bool(left.attributes or left.contents)

    def _set(self, attributes: dict[str, Any], name: str, value: Any) -> None:
        before = attributes.get(name, DELETED)
        self._undo.append(
            lambda: attributes.pop(name, None) if before is DELETED else attributes.update({name: before})
        )
        attributes[name] = value

    def _fill(self, container: Any, items: list[Any]) -> None:
        before = [*(container.items() if type(container) in _PAIRS else container)]
        self._undo.append(lambda: _replace(container, before))
        _replace(container, items)

    def take_away(self) -> None:
        """Restore all attributes and containers."""
        while self._undo:
            self._undo.pop()()


def _plain(value: Any) -> Any:
    """Of a number that is a symbol the one that this call computes with; anything else unchanged."""
    value = from_torch(value) if type(value) is torch.SymInt else value
    return hint(value) if isinstance(value, Size) else value


def _replace(container: Any, items: list[Any]) -> None:
    container.clear()
    if type(container) in (list, collections.deque):
        container.extend(items)
    else:
        container.update(items)
