"""Applies the writes of a call to attributes and containers temporarily, while versions for later calls are compiled.

A model that counts its calls, or acts differently in the first one, reads state that an earlier call wrote: a version
fits one call, and the next call needs another version. Compiling ahead runs nothing, so the writes that one capture has
found are applied before the next capture, and undone at the end. The values of tensors that the graph computes are not
known. They are replaced by stand-ins with the same metadata, since a version depends on no tensor's values.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from smelt.base.class_tables import isinstance
from smelt.base.torch_c import inference_mode
from smelt.capture.core.interface import Interpreter, Store
from smelt.capture.core.sources import MEMBERS
from smelt.capture.core.values import own_dict
from smelt.capture.guards.dynamic_shapes import mark_dynamic
from smelt.capture.python.effects import DELETED
from smelt.capture.python.set_order import in_order
from smelt.graph.ir.meta import TensorMeta, meta_of
from smelt.graph.ir.symint import from_torch
from smelt.graph.trace.trace import TraceTensor
from smelt.shapes.size import Size, hint

PLAIN = (int, float, bool, str, bytes, type(None))
"""Types of plain values that are written. Tensors, objects that existed before the call, and containers of all these
are written, too."""

_PAIRS = (dict, collections.OrderedDict, collections.defaultdict)
_ITEMS = (list, set, collections.deque)


class _Unknown(Exception):
    """A value is made by residual code, or a tensor cannot have a stand-in."""


class StateWrites:
    """The writes that one capture has found, as far as their values are known without running the call.

    Args:
        vm: the interpreter, at the end of its capture.
        slots: the argument slots of the call; the next call passes other tensors.
    """

    def __init__(self, vm: Interpreter, slots: Sequence[Any]) -> None:
        effects = vm.effects
        self.external: Callable[[int], bool] = frozenset(vm.sources).__contains__
        self._original = effects.original
        self._stand_ins = StandIns(vm, slots)
        self.attributes: list[tuple[dict[str, Any], str, Any]] = []
        self.contents: list[tuple[Any, list[Any]]] = []
        for store in effects.stores.values():
            self._add_attribute(store)
        mirrors = {id(each): each for each in effects.mirrors.values() if each.changed}.values()
        self._add((mirror.original, mirror.copy) for mirror in mirrors)
        self._add((container, [*container, *items]) for container, items in effects.appended.values())

    def _add_attribute(self, store: Store) -> None:
        attributes = self._attributes(store)
        is_object = self.external(id(store.value)) and not isinstance(store.value, (torch.Tensor, *PLAIN))
        if attributes is None or is_object:
            return
        try:
            self.attributes.append((attributes, store.name, self._value(store.value)))
        except _Unknown:
            return

    def _attributes(self, store: Store) -> dict[str, Any] | None:
        """The dictionary to which an assignment writes; None if it runs other code, or writes to a new object."""
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
        """The items of a container; for a dictionary its (key, value) pairs."""
        if type(container) in _PAIRS:
            return [(self._value(key), self._value(value)) for key, value in container.items()]
        return [self._value(item) for item in container]

    def _value(self, value: Any) -> Any:
        """The value that the program will find in place of a value of the capture.

        Raises:
            _Unknown: the value is not known.
        """
        value = _plain(self._original(value))
        if type(value) in PLAIN:
            return value
        if isinstance(value, torch.Tensor):
            return self._stand_ins(value)
        if self.external(id(value)):
            return value
        if type(value) in (dict, list, set, tuple):
            made = in_order(set, self._items(value)) if type(value) is set else type(value)(self._items(value))
            if made is None:
                raise _Unknown
            return made
        raise _Unknown


class StandIns:
    """Makes a stand-in, a tensor without values, for each tensor that a call writes to its state.

    Args:
        vm: the interpreter, at the end of its capture.
        slots: the argument slots of the call.
    """

    def __init__(self, vm: Interpreter, slots: Sequence[Any]) -> None:
        self.tensors = vm.tensors
        self.arguments = {id(leaf) for leaf in pytree.tree_leaves(tuple(slots)) if isinstance(leaf, torch.Tensor)}
        self.made: dict[int, torch.Tensor] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor that the next call finds in place of a tensor of the capture: the real tensor if it existed before
        the call and is no argument, else a stand-in.

        Raises:
            _Unknown: no stand-in can be made.
        """
        real = self.tensors.real.get(id(tensor)) if type(tensor) is TraceTensor else tensor
        if real is not None and id(real) not in self.arguments:
            return real
        if id(tensor) not in self.made:
            self.made[id(tensor)] = self._make(tensor, real)
        return self.made[id(tensor)]

    def _make(self, tensor: torch.Tensor, real: torch.Tensor | None) -> torch.Tensor:
        meta = meta_of(tensor)
        is_made_leaf = isinstance(tensor, TraceTensor) and self.tensors.contains_made_leaf([tensor])
        if type(meta) is not TensorMeta or is_made_leaf:
            raise _Unknown
        shape, stride = (tuple(map(hint, sizes)) for sizes in (meta.shape, meta.stride))
        with inference_mode(tensor in self.tensors.inference or (real is not None and real.is_inference())):
            made = torch.empty_strided(shape, stride, dtype=meta.dtype, device=meta.device)
        if meta.requires_grad:
            with torch.enable_grad():
                made.requires_grad_()
                made = made if real is not None and real.is_leaf else made.clone()  # the clone has a history
        if made.stride() != stride:
            raise _Unknown
        for dim, size in enumerate(meta.shape):
            if isinstance(size, Size):
                mark_dynamic(made, dim)
        return made


class CallState:
    """Sets attributes of objects and items of containers to their values after a call, and restores them."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def put(self, left: StateWrites) -> bool:
        """Apply the writes of a call; returns whether there were any."""
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

    def restore_all(self) -> None:
        """Restore all attributes and containers."""
        while self._undo:
            self._undo.pop()()


def _plain(value: Any) -> Any:
    """The example value of a symbolic number; any other value unchanged."""
    value = from_torch(value) if type(value) is torch.SymInt else value
    return hint(value) if isinstance(value, Size) else value


def _replace(container: Any, items: list[Any]) -> None:
    if type(container) is set and in_order(partial(_refilled, container), items) is not None:
        return
    container.clear()
    if type(container) in (list, collections.deque):
        container.extend(items)
    else:
        container.update(items)


def _refilled(container: set[Any], items: Iterable[Any]) -> set[Any]:
    """The set, refilled with `items`. The order of insertion may change the order of iteration."""
    container.clear()
    container.update(items)
    return container
