"""Reads of a class's `__dict__`: a view of the class's content that includes the program's deferred writes."""

from __future__ import annotations

import types
from collections.abc import Callable

from smelt.capture.core.interface import Interpreter
from smelt.capture.python.effects import ClassDict


class _Contents:
    """The content that a class had when its `__dict__` was read, for a guard."""

    def __init__(self, cls: type) -> None:
        self.cls, self.items = cls, [*vars(cls).items()]

    def unchanged(self) -> bool:
        """Whether the class has the same objects under the same names, in the same order."""
        now = vars(self.cls)
        return len(now) == len(self.items) and all(
            name == before and value is value_before
            for (name, value), (before, value_before) in zip(now.items(), self.items, strict=True)
        )


def class_dict(
    vm: Interpreter, cls: type, read: Callable[[str, object], object]
) -> types.MappingProxyType[str, object]:
    """A view of the class's content. `read(name, raw)` gives the handle of one value."""
    known = vm.effects.class_dicts.get(id(cls))
    if known is not None:
        return known.view()
    contents = _Contents(cls)
    vm.guards.flag(contents.unchanged, (), True)
    known = ClassDict(cls, {name: read(name, raw) for name, raw in contents.items})
    for store in vm.effects.stores.values():
        if store.kind == "attr" and store.target is cls:
            known.write(store.name, store.value, store.anew)
    vm.effects.class_dicts[id(cls)] = known
    return known.view()
