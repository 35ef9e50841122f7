"""Snapshots of the objects that a capture can reach, to find and undo the changes of one arm of a branch."""

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

Content = dict[Any, Any]
"""The content of an object: `("item", key)` -> item of a dictionary or list, `("", name)` -> attribute."""


class CannotUndo(Exception):
    """An arm made a change that cannot be deferred or undone."""


class Snapshot:
    """The content of all objects that the interpreted frames made and can reach, and the deferred effects so far.

    Args:
        vm: the capture.
        roots: the variables and stack elements of the capture's frames.
    """

    def __init__(self, vm: Interpreter, roots: Iterable[object]) -> None:
        self.vm = vm
        self.effects, self.reads = self._effects(), dict(vm.reads)
        self.contents: dict[int, tuple[Any, Content]] = {}
        waiting = [*roots, *(m.copy for m in vm.effects.mirrors.values())]
        while waiting:
            value = waiting.pop()
            if type(value) in LEAVES or isinstance(value, _OPAQUE) or id(value) in self.contents or value is vm:
                continue  # generators of the capture refer to the capture itself
            if id(value) in vm.sources and id(value) not in vm.effects.mirrors:
                continue  # changes of external objects are deferred
            content = _content_of(value)
            self.contents[id(value)] = value, content
            waiting.extend(content.values())

    def existed(self, value: object) -> bool:
        """Whether the object existed and was reachable at the time of the snapshot."""
        return id(value) in self.contents

    def take_changes(self) -> dict[int, Content]:
        """Undo the changes since the snapshot; returns id of each changed object -> its content before the undo.

        Raises:
            CannotUndo: external objects were changed as well.
        """
        if self._effects() != self.effects or any(self.vm.reads.get(k) is not v for k, v in self.reads.items()):
            raise CannotUndo("it changes something outside of the function")
        changes = {}
        for value, before in self.contents.values():
            now = _content_of(value)
            if not _same(now, before):
                changes[id(value)] = now
                set_content(value, before)
        return changes

    def changed(self) -> bool:
        """Whether an object has changed since the snapshot, or an effect other than a warning was deferred."""
        stores, deferred, *rest = self._effects()
        before, heard, *others = self.effects
        if (stores, rest) != (before, others):
            return True
        if not all(isinstance(each, DeferredWarning) for each in self.vm.effects.deferred[heard:deferred]):
            return True
        return any(not _same(_content_of(value), content) for value, content in self.contents.values())

    def _effects(self) -> tuple[dict[tuple[str, int, str], int], int, dict[int, int], set[int]]:
        effects = self.vm.effects
        stores = {key: id(store.value) for key, store in effects.stores.items()}
        appended = {key: len(items) for key, (_, items) in effects.appended.items()}
        changed = {key for key, mirror in effects.mirrors.items() if mirror.changed}
        return stores, len(effects.deferred), appended, changed


def _named(content: Content, kind: str) -> list[tuple[Any, object]]:
    """The (name, value) pairs of the content whose keys have this kind ("item" or "")."""
    return [(key[1], item) for key, item in content.items() if type(key) is tuple and key[:1] == (kind,)]


def _fill(cell: types.CellType, content: Sequence[object]) -> None:
    """Set the value of a cell, or empty it."""
    if content:
        cell.cell_contents = content[0]
    else:
        del cell.cell_contents


def set_content(value: Any, content: Content) -> None:
    """Set the content of an object.

    Raises:
        CannotUndo: the content can be set only by methods of the program.
    """
    attributes, items = dict(_named(content, "")), _named(content, "item")
    if isinstance(value, dict):
        base: Any = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict
        base.clear(value)
        for key, item in items:
            base.__setitem__(value, key, item)
    elif isinstance(value, list):
        value[:] = [item for _, item in items]
    elif isinstance(value, types.CellType):
        _fill(value, [item for _, item in items])
    elif items or own_dict(value) is None:
        raise CannotUndo(f"it changes a {type(value).__name__}")
    own = own_dict(value)
    if own is not None:
        own.clear()
        own.update(attributes)


def _same(a: Content, b: Content) -> bool:
    made = classes(int, range)  # each read of an iterator's position makes a new object
    return list(a) == list(b) and all(a[k] is item or type(item) in made and a[k] == item for k, item in b.items())


def _content_of(value: Any) -> Content:
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
    content: Content = {("item", key): item for key, item in items}
    if own is not None:
        content.update((("", name), item) for name, item in own.items())
    return content


def _cell(cell: types.CellType) -> list[tuple[int, object]]:
    try:
        return [(0, cell.cell_contents)]
    except ValueError:
        return []


def _progress(iterator: Any) -> list[object]:
    """The position of a builtin iterator, from its `__reduce__`."""
    if type(iterator) in SIZED_ITERATORS:  # `__reduce__` would raise when the size of the container has changed
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
        if isinstance(item, (list, tuple)):  # a new object, made for the result of `__reduce__`
            out += [len(item), *item]
        else:
            out.append(item)
    return out
