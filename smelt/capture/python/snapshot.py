"""What the capture can reach, as it was before a branch: to see what one way changed, and to undo it for the other."""

from __future__ import annotations

import collections
import types
from collections.abc import Iterable, Sequence
from typing import Any

from smelt.base.class_tables import classes, isinstance
from smelt.base.warned import heard
from smelt.capture._native import iterator_position
from smelt.capture.core.frames import Unread
from smelt.capture.core.generators import TracedGenerator
from smelt.capture.core.interface import Interpreter
from smelt.capture.core.values import LEAVES, SIZED_ITERATORS, own_dict
from smelt.capture.python.effects import DeferredWarning, items_of, own_items
from smelt.graph.trace.trace import TraceTensor

_OPAQUE = (type, types.ModuleType, types.FunctionType, types.CodeType, TraceTensor, Unread)

Parts = dict[Any, Any]
"""What an object holds: items of a dictionary or list by `("item", key)`, attributes by `("", name)`."""


class CannotUndo(Exception):
    """Something was changed that has to be done at its time, or cannot be put back."""


class Snapshot:
    """A look at all objects that the interpreted frames made and can reach, and at what was put off so far.

    Args:
        vm: the capture.
        roots: variables and stacks of its frames.
    """

    def __init__(self, vm: Interpreter, roots: Iterable[object]) -> None:
        self.vm = vm
        self.effects, self.reads = self._effects(), dict(vm.reads)
        self.contents: dict[int, tuple[Any, Parts]] = {}
        waiting = [*roots, *(m.copy for m in vm.effects.mirrors.values())]
        while waiting:
            value = waiting.pop()
            if type(value) in LEAVES or isinstance(value, _OPAQUE) or id(value) in self.contents or value is vm:
                continue  # generators of the capture lead to the capture itself
            if id(value) in vm.sources and id(value) not in vm.effects.mirrors:
                continue  # its changes are put off
            parts = _parts(value)
            self.contents[id(value)] = value, parts
            waiting.extend(parts.values())

    def existed(self, value: object) -> bool:
        """The object is among those that were looked at."""
        return id(value) in self.contents

    def parts(self, value: object) -> Parts:
        """What an object held."""
        return self.contents[id(value)][1]

    def take_changes(self) -> dict[int, Parts]:
        """What the objects hold that were changed since, by identity; they hold again what they held before.

        Raises:
            CannotUndo: more was changed than that.
        """
        if self._effects() != self.effects or any(self.vm.reads.get(k) is not v for k, v in self.reads.items()):
            raise CannotUndo("it changes something outside of the function")
        changes = {}
        for value, before in self.contents.values():
            now = _parts(value)
            if not _same(now, before):
                changes[id(value)] = now
                put(value, before)
        return changes

    def changed(self) -> bool:
        """Something that it looked at is not as it was, or more was put off than warnings."""
        stores, deferred, *rest = self._effects()
        before, heard, *others = self.effects
        if (stores, rest) != (before, others):
            return True
        if not all(isinstance(each, DeferredWarning) for each in self.vm.effects.deferred[heard:deferred]):
            return True
        return any(not _same(_parts(value), parts) for value, parts in self.contents.values())

    def _effects(self) -> tuple[dict[tuple[str, int, str], int], int, dict[int, int], set[int]]:
        effects = self.vm.effects
        stores = {key: id(store.value) for key, store in effects.stores.items()}
        appended = {key: len(items) for key, (_, items) in effects.appended.items()}
        changed = {key for key, mirror in effects.mirrors.items() if mirror.changed}
        return stores, len(effects.deferred), appended, changed


def _named(parts: Parts, kind: str) -> list[tuple[Any, object]]:
    """Of parts of one kind what names them, and what they are."""
    return [(key[1], part) for key, part in parts.items() if type(key) is tuple and key[:1] == (kind,)]


def _fill(cell: types.CellType, parts: Sequence[object]) -> None:
    """Let a cell hold this value; without one it is empty."""
    if parts:
        cell.cell_contents = parts[0]
    else:
        del cell.cell_contents


def put(value: Any, parts: Parts) -> None:
    """Let an object hold these parts.

    Raises:
        CannotUndo: nobody but itself can change what it holds.
    """
    attributes, items = dict(_named(parts, "")), _named(parts, "item")
    if isinstance(value, dict):
        base: Any = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict
        base.clear(value)
        for key, part in items:
            base.__setitem__(value, key, part)
    elif isinstance(value, list):
        value[:] = [part for _, part in items]
    elif isinstance(value, types.CellType):
        _fill(value, [part for _, part in items])
    elif items or own_dict(value) is None:
        raise CannotUndo(f"it changes a {type(value).__name__}")
    own = own_dict(value)
    if own is not None:
        own.clear()
        own.update(attributes)


def _same(a: Parts, b: Parts) -> bool:
    made = classes(int, range)  # anew for each question where an iterator stands
    return list(a) == list(b) and all(a[k] is part or type(part) in made and a[k] == part for k, part in b.items())


def _parts(value: Any) -> Parts:
    items: Iterable[tuple[Any, Any]]
    if isinstance(value, dict):
        items = items_of(value)
    elif isinstance(value, types.CellType):
        items = _cell(value)
    elif isinstance(value, types.MethodType):
        items = enumerate((value.__self__, value.__func__))
    elif isinstance(value, TracedGenerator):
        state = (value.frame.pc, value.started, value.done, *value.frame.locals, *value.frame.stack)
        items = enumerate(state)
    elif hasattr(type(value), "__next__"):
        items = enumerate(_progress(value))
    elif isinstance(value, (list, tuple, set, frozenset)) or hasattr(type(value), "appendleft"):
        items = enumerate(own_items(value))
    else:
        items = ()
    own = own_dict(value)
    parts: Parts = {("item", key): part for key, part in items}
    if own is not None:
        parts.update((("", name), part) for name, part in own.items())
    return parts


def _cell(cell: types.CellType) -> list[tuple[int, object]]:
    try:
        return [(0, cell.cell_contents)]
    except ValueError:
        return []


def _progress(iterator: Any) -> list[object]:
    """Builtin iterators say where they stand when they are asked how to make them again."""
    if type(iterator) in SIZED_ITERATORS:  # it would raise when the size of what it iterates has changed
        return [*(iterator_position(iterator) or ())]
    with heard(None):
        try:
            reduced = iterator.__reduce__()
        except TypeError:
            return []
    if not isinstance(reduced, tuple):
        return []
    out: list[Any] = []
    for item in (*reduced[1], *reduced[2:]):
        if isinstance(item, (list, tuple)):  # maybe made for the answer
            out += [len(item), *item]
        else:
            out.append(item)
    return out
