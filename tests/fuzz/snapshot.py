"""A value and everything reachable from it as plain data: contents, types, and which objects are the same object.

Two runs of a program saw the same world exactly when their snapshots are equal.
"""

from __future__ import annotations

import collections
import logging
import re
import types
from collections.abc import Iterator
from typing import Any

import torch

_ATOMS = (int, bool, str, bytes, complex, type(None), type(...), type(NotImplemented), range)
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
_ITERATED = 12  # items that are drawn from an iterator
_MODULE = ("training", "_parameters", "_buffers", "_modules")
_SKIPPED = frozenset({"__weakref__", "__dict__", "_abc_impl", "__static_attributes__", "__firstlineno__"})


class Snapshot:
    """Walks values in one order and numbers objects as it meets them, so that aliases show as the same number."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._storages: dict[int, tuple[int, int]] = {}
        self._alive: list[Any] = []

    def __call__(self, value: Any) -> Any:
        kind = type(value)
        if kind in _ATOMS:
            return (kind.__name__, repr(value) if kind is not str else ADDRESS.sub("0x", value))
        if kind is float:
            return ("float", value.hex())
        if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format, types.CodeType)):
            return (kind.__name__, str(value) if kind is not types.CodeType else value.co_qualname)
        if isinstance(value, (types.ModuleType, types.BuiltinFunctionType)) and not _bound(value):
            return (kind.__name__, value.__name__)
        if isinstance(value, type):
            return ("class", value.__qualname__)
        if isinstance(value, logging.Logger):
            return ("Logger", value.name)
        number = self._seen.get(id(value))
        if number is not None:
            return ("same as", number)
        if kind is tuple:  # immutable: whether two are one object is the interpreter's own affair
            return ("tuple", *map(self, value))
        number = self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        return (number, kind.__qualname__, *self._inside(value, kind))

    def _inside(self, value: Any, kind: type) -> Iterator[Any]:
        if isinstance(value, torch.Tensor):
            yield from self._tensor(value)
        elif isinstance(value, torch.nn.Module):
            yield from self._module(value)
        elif isinstance(value, dict):
            yield from ((self(k), self(dict.__getitem__(value, k))) for k in _keys(value))
            if isinstance(value, collections.defaultdict):
                yield self(value.default_factory)
        elif isinstance(value, (set, frozenset)):
            yield tuple(sorted((self(item) for item in sorted(value, key=_order)), key=repr))
        elif isinstance(value, (list, tuple)):
            base: Any = list if isinstance(value, list) else tuple
            yield from map(self, base.__iter__(value))
        elif isinstance(value, collections.deque):
            yield value.maxlen
            yield from map(self, value)
        else:
            yield from self._object(value, kind)
            return
        if not isinstance(value, (torch.nn.Module, torch.Tensor)):
            yield from self._state(value)

    def _object(self, value: Any, kind: type) -> Iterator[Any]:
        if kind is types.FunctionType:
            yield value.__qualname__
            if hasattr(value, "_smelt_session"):  # what the compiler keeps at a compiled function is its own affair
                yield self(value.__wrapped__)
                return
            yield self(value.__defaults__)
            yield self(value.__kwdefaults__)
            yield self(value.__closure__)
            yield from self._state(value)
        elif kind is types.CellType:
            try:
                yield self(value.cell_contents)
            except ValueError:
                yield "empty"
        elif kind is types.MethodType:
            yield self(value.__func__)
            yield self(value.__self__)
        elif _bound(value):
            yield value.__name__
            yield self(value.__self__)
        elif isinstance(value, BaseException):
            yield self(value.args)
            yield self(value.__cause__)
            yield self(value.__context__)
            yield value.__suppress_context__
            yield from self._state(value)
        elif hasattr(kind, "__next__") and not hasattr(value, "__dict__"):
            yield from self._iterator(value)
        elif isinstance(value, (type({}.keys()), type({}.values()), type({}.items()), types.MappingProxyType)):
            yield from map(self, list(value))
        elif isinstance(value, (property, staticmethod, classmethod)):
            yield "descriptor"
        elif hasattr(value, "func") and hasattr(value, "keywords"):  # functools.partial
            yield self(value.func)
            yield self(value.args)
            yield self(value.keywords)
        elif isinstance(value, slice):
            yield repr(value)
        else:
            yield from self._state(value)
            if not hasattr(value, "__dict__") and type(value).__repr__ is not object.__repr__:
                yield ADDRESS.sub("0x", repr(value))

    def _iterator(self, value: Any) -> Iterator[Any]:
        for _ in range(_ITERATED):
            try:
                yield self(next(value))
            except StopIteration:
                return
            except Exception as error:
                yield ("raises", type(error).__name__, str(error))
                return

    def _tensor(self, value: torch.Tensor) -> Iterator[Any]:
        yield from (tuple(value.shape), str(value.dtype), value.requires_grad, value.is_leaf)
        storage = value.untyped_storage()
        place, first = -1, value.storage_offset()
        if storage.nbytes() and value.numel():  # no elements, no place that an operation could tell
            place, first = self._storages.setdefault(storage.data_ptr(), (len(self._storages), first))
        yield from (place, value.storage_offset() - first)  # where alone in its memory, its place there is free
        yield tuple(step for step, size in zip(value.stride(), value.shape, strict=True) if size > 1)
        yield bits(value)
        if value.is_leaf and value.grad is not None:
            yield self(value.grad)
        if vars(value):
            yield self(dict(vars(value)))

    def _module(self, value: Any) -> Iterator[Any]:
        held = vars(value)
        for name in _MODULE:
            yield (name, self(held[name]))
        for name in sorted(held):
            if name not in _MODULE and (not name.startswith("_") or name == "_count"):
                yield (name, self(held[name]))

    def _state(self, value: Any) -> Iterator[Any]:
        """Attributes in the instance's dictionary and slots."""
        for name, item in getattr(value, "__dict__", {}).items():
            if name not in _SKIPPED:
                yield (name, self(item))
        for base in type(value).__mro__:
            if base.__module__ != "program":
                continue
            for name, member in vars(base).items():
                if isinstance(member, types.MemberDescriptorType):
                    try:
                        yield (name, self(member.__get__(value)))
                    except AttributeError:
                        yield (name, "unset")

    def namespace(self, held: dict[str, Any]) -> list[Any]:
        """The globals of a program: all that it may have changed, class attributes included."""
        out = []
        for name, value in held.items():
            if name.startswith("__") or isinstance(value, types.ModuleType):
                continue
            out.append((name, self(value)))
            if isinstance(value, type) and value.__module__ == "program":
                state = {k: v for k, v in vars(value).items() if not k.startswith("_") and not _is_method(v)}
                out.append((f"{name}.__dict__", self(state)))
        return out


def bits(value: torch.Tensor) -> bytes:
    """The elements, NaN made one."""
    flat = value.detach().contiguous().clone().resolve_conj().resolve_neg()
    if flat.is_floating_point():
        flat = torch.where(flat.isnan(), torch.full_like(flat, float("nan")), flat)
    return bytes(flat.view(-1).view(torch.uint8).tolist()) if flat.numel() else b""


def _keys(value: dict[Any, Any]) -> list[Any]:
    base: Any = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict
    return list(base.keys(value))


def _order(value: Any) -> str:
    return f"{type(value).__name__} {value!r}" if isinstance(value, (int, float, str, tuple)) else type(value).__name__


def _bound(value: Any) -> bool:
    if not isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
        return False
    return value.__self__ is not None and not isinstance(value.__self__, (types.ModuleType, type))


def _is_method(value: Any) -> bool:
    return isinstance(value, (types.FunctionType, types.MemberDescriptorType, property, staticmethod, classmethod)) or (
        isinstance(value, types.GetSetDescriptorType)
    )
