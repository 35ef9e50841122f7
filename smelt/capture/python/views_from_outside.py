"""Reads of external views of dictionaries: keys, values, items, and read-only proxies.

A view of the dictionary's mirror replaces the external view. Its content is guarded when C code reads it, and it
includes the program's writes to the dictionary.
"""

from __future__ import annotations

import collections
import types
from typing import Any

from smelt.capture._native import TYPE_IS
from smelt.capture.core import sources
from smelt.capture.core.interface import Interpreter
from smelt.capture.core.registry import READ
from smelt.capture.core.sources import Source
from smelt.capture.core.values import read_object
from smelt.capture.python.readers import viewed

_MAX_ITEMS_READ = 200
"""Maximum number of items of a dictionary that is mirrored for a view; C code that reads a larger view ends the
graph."""


_MAKE: dict[type, Any] = {types.MappingProxyType: types.MappingProxyType}
for _kind in (dict, collections.OrderedDict):
    for _view in ("keys", "values", "items"):
        _MAKE[type(getattr(_kind(), _view)())] = getattr(_kind, _view)


@READ(*_MAKE)
def read_view(vm: Interpreter, view: object, source: Source) -> object:
    """The view of the dictionary's mirror that replaces an external view."""
    key = id(view), "view"
    if key in vm.reads:
        vm.guards.same(vm.effects.views[id(vm.reads[key])][1], source)
        return vm.reads[key]
    mapping = viewed(view)
    plain = type(mapping) is dict or type(mapping) is collections.OrderedDict
    if not plain or len(mapping) > _MAX_ITEMS_READ or _has_owner(mapping):
        return read_object(vm, view, source)
    vm.guards.check(source, TYPE_IS, type(view))
    vm.effects.shown.add(id(mapping))
    mirror = vm.effects.mirror(vm.external(mapping, sources.called(source, viewed, "viewed")))
    vm.reads[key] = shown = _MAKE[type(view)](mirror)
    vm.effects.views[id(shown)] = view, source
    vm.keep(view)
    vm.keep(shown)
    return shown


def _has_owner(mapping: dict[object, object]) -> bool:
    """Whether this is the dictionary of a class or a module, which the program also writes through attributes or
    globals."""
    return "__builtins__" in mapping or {"__module__", "__doc__"} <= mapping.keys() or "__spec__" in mapping
