"""Names objects of the program, and describes them by marks, so that another process finds or recognizes them.

A name is a path that begins at a module or at the artefact's model (or function). A mark describes an object without
naming it: objects that guards compare by identity are read from the model in the new process, and must have equal
marks.
"""

from __future__ import annotations

import builtins
import enum
import functools
import hashlib
import importlib
import math
import operator
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from smelt.artefact.container import ArtefactError

_SEARCHED = (torch, torch.nn.functional, torch.nn, operator, builtins, math)
"""Modules that are searched for C functions which do not name their own module."""

MODULE, NAMESPACE, ATTRIBUTE, ANCHOR = "module", "namespace", "attribute", "anchor"
CELL, ITEM, OF = "cell", "item", "of"


class Names:
    """Finds names for objects.

    Args:
        anchors: objects other than modules at which names may begin.
    """

    def __init__(self, anchors: dict[str, Any]) -> None:
        self.anchors = anchors
        self._anchor = {id(value): name for name, value in reversed(anchors.items())}
        self._everywhere: dict[int, tuple[str, ModuleType]] | None = None

    def __call__(self, value: Any) -> list[Any]:
        """A name of `value`.

        Raises:
            ArtefactError: the value has no name.
        """
        found = self._candidate(value)
        if found is not None and _finds(found, self.anchors, value):
            return found
        inner = self._inside(found, value)
        if inner is not None:
            return inner
        attribute = self._search(value)
        if attribute is not None:
            return [ATTRIBUTE, *attribute]
        raise ArtefactError(
            f"the program reads {_shown(value)}, which has no name that another process could find",
            hint="define functions, classes and constants at the top level of a module",
        )

    def _candidate(self, value: Any) -> list[Any] | None:
        if id(value) in self._anchor:
            return [ANCHOR, self._anchor[id(value)]]
        if isinstance(value, ModuleType):
            return [MODULE, value.__name__]
        if type(value) is dict and sys.modules.get(str(value.get("__name__"))) is not None:
            return [NAMESPACE, value["__name__"]]
        if isinstance(value, enum.Enum):
            return [ATTRIBUTE, type(value).__module__, f"{type(value).__qualname__}.{value.name}"]
        holder = getattr(value, "__self__", None)
        if type(value) in _BOUND and not isinstance(holder, (ModuleType, type, type(None))):
            return [OF, self(holder), value.__name__]
        owner = getattr(value, "__objclass__", None)
        if isinstance(owner, type):
            return [ATTRIBUTE, owner.__module__, f"{owner.__qualname__}.{value.__name__}"]
        return self._function_of_c(value) if isinstance(value, BuiltinFunctionType) else _qualified_name(value)

    def _function_of_c(self, value: BuiltinFunctionType) -> list[Any] | None:
        for module in _SEARCHED:
            if getattr(module, value.__name__, None) is value:
                return [ATTRIBUTE, module.__name__, value.__name__]
        return (
            [OF, self(value.__self__), value.__name__] if isinstance(value.__self__, type) else _qualified_name(value)
        )

    def _inside(self, candidate: list[Any] | None, value: Any) -> list[Any] | None:
        """The name of a function that a decorator has wrapped, or that is an attribute of a class of the model."""
        if not isinstance(value, FunctionType):
            return None
        names: list[list[Any]] = [] if candidate is None else [candidate]
        for name, anchor in self.anchors.items():
            if isinstance(anchor, type):
                names += [[ITEM, [ANCHOR, name], str(at), value.__name__] for at in range(len(anchor.__mro__))]
            elif isinstance(anchor, FunctionType):
                names.append([ANCHOR, name])
        for holder in names:
            try:
                around = find(holder, self.anchors)
            except ArtefactError:
                continue
            found = _within(holder, around, value, _DEEPEST)
            if found is not None:
                return found
        return None

    def _search(self, value: Any) -> tuple[str, str] | None:
        """(module, attribute) of the first loaded module that has the object; None if no module has it."""
        if type(value) in _VALUES or type(value) is tuple:
            return None
        if self._everywhere is None:
            self._everywhere = {}
            for name, module in sorted(sys.modules.items(), reverse=True):  # of several the first is entered last
                if isinstance(module, ModuleType):
                    self._everywhere |= dict.fromkeys(map(id, vars(module).values()), (name, module))
        holder = self._everywhere.get(id(value))
        keys = [] if holder is None else [key for key, each in vars(holder[1]).items() if each is value]
        return None if holder is None or not keys else (holder[0], keys[0])


def _qualified_name(value: Any) -> list[Any] | None:
    """The name that `__module__` and `__qualname__` of an object form; None if they are not strings."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", getattr(value, "__name__", None))
    return [ATTRIBUTE, module, name] if type(module) is str and type(name) is str else None


def _within(name: list[Any], around: Any, value: Any, depth: int) -> list[Any] | None:
    """The name of `value` if it is `around`, or is found in its wrapped functions and closures down to `depth` levels.

    None if it is not found; `name` is the name of `around`.
    """
    if around is value:
        return name
    if not depth:
        return None
    for attribute in HOLDERS.get(type(around), ()):
        found = _within([OF, name, attribute], getattr(around, attribute), value, depth - 1)
        if found is not None:
            return found
    for at, cell in enumerate(getattr(around, "__closure__", None) or ()):
        try:
            found = _within([CELL, name, str(at), ""], cell.cell_contents, value, depth - 1)
        except ValueError:  # an empty cell
            continue
        if found is not None:
            return found
    return None


_BOUND = (BuiltinFunctionType, MethodType)
"""Types of objects that each attribute access creates anew."""

HOLDERS: dict[type, tuple[str, ...]] = {
    property: ("fget", "fset", "fdel"),
    classmethod: ("__func__",),
    staticmethod: ("__func__",),
    MethodType: ("__func__",),
    functools.cached_property: ("func",),
    functools.partial: ("func",),
}
"""Type that wraps functions -> its attributes with these functions."""


def reachable(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """An object, the functions that it wraps and their globals, each with its attribute path from the object."""
    yield path, value
    for attribute in (*HOLDERS.get(type(value), ()), *(["__globals__"] if isinstance(value, FunctionType) else ())):
        yield from reachable(getattr(value, attribute), f"{path}.{attribute}".lstrip("."))


_DEEPEST = 6
"""Maximum number of nested decorators through which a function is searched."""


def _finds(name: list[Any], anchors: dict[str, Any], value: Any) -> bool:
    try:
        found = find(name, anchors)
        return found is value or (type(value) in _BOUND and bool(found == value))
    except ArtefactError:
        return False


def find(name: Any, anchors: dict[str, Any]) -> Any:
    """The object with that name.

    Raises:
        ArtefactError: no such object exists.
    """
    try:
        match name:
            case [str("anchor"), str(anchor)]:
                return anchors[anchor]
            case [str("module"), str(module)]:
                return importlib.import_module(module)
            case [str("namespace"), str(module)]:
                return vars(importlib.import_module(module))
            case [str("attribute"), str(module), str(path)]:
                found: Any = sys.modules.get(module) or importlib.import_module(module)
                for attribute in path.split("."):
                    found = getattr(found, attribute)
                return found
            case [str("cell"), base, str(at), str()]:
                return find(base, anchors).__closure__[int(at)].cell_contents
            case [str("of"), base, str(attribute)]:
                return getattr(find(base, anchors), attribute)
            case [str("item"), base, str(at), str(key)]:
                return vars(find(base, anchors).__mro__[int(at)])[key]
    except (KeyError, AttributeError, ImportError, ValueError, IndexError, TypeError) as error:
        raise ArtefactError(f"{'.'.join(map(str, name[1:]))} is not here", why=str(error)) from error
    raise ArtefactError(f"an artefact holds what is no name: {str(name)[:100]}")


def anchors_of(function: FunctionType, model: nn.Module | None) -> dict[str, Any]:
    """The objects at which references by name may begin: the compiled function, the submodules of the model and their
    classes.

    Classes of submodules may be defined inside functions, where no name reaches them.
    """
    out: dict[str, Any] = {"function": function, "code": function.__code__, "globals": function.__globals__}
    if model is not None:
        for name, submodule in model.named_modules():
            out[f"part:{name}"] = submodule
            out.setdefault(f"class:{name}", type(submodule))
    return out


def code_hash(code: CodeType) -> str:
    """A hash of a function's code: instructions, constants and names, without line numbers and file names."""
    digest = hashlib.sha256()
    _add_code(digest, code)
    return digest.hexdigest()[:32]


def _add_code(digest: Any, code: CodeType) -> None:
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_name)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    digest.update(repr((names, counts)).encode())
    digest.update(code.co_code + code.co_exceptiontable)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add_code(digest, constant)
        else:
            digest.update(_plain(constant).encode())


def _plain(constant: Any) -> str:
    """Text of a constant in code, equal in every process: sets are sorted."""
    if isinstance(constant, frozenset):
        return f"frozenset({sorted(map(_plain, constant))})"
    if isinstance(constant, tuple):
        return f"({', '.join(map(_plain, constant))})"
    if type(constant) in _VALUES or constant is Ellipsis:
        return f"{type(constant).__name__}:{constant!r}"
    return str(mark(constant))


def mark(value: Any) -> list[Any]:
    """The mark of an object. Objects with equal marks behave alike, except for contents that other guards check."""
    if isinstance(value, ModuleType):
        return ["module", value.__name__]
    if isinstance(value, type):
        return ["class", value.__module__, value.__qualname__]
    if isinstance(value, FunctionType):
        defaults = [_mark_of_default(each) for each in value.__defaults__ or ()]
        named = sorted([key, _mark_of_default(each)] for key, each in (value.__kwdefaults__ or {}).items())
        return ["function", value.__module__, value.__qualname__, code_hash(value.__code__), defaults, named]
    if isinstance(value, CodeType):
        return ["code", value.co_qualname, code_hash(value)]
    if isinstance(value, MethodType):
        return ["method", mark(value.__func__)]
    if type(value) in _VALUES or type(value) in (tuple, frozenset):
        return ["value", _plain(value)]
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    shown = name if isinstance(name, str) else ""
    return ["object", type(value).__module__, type(value).__qualname__, shown]


_VALUES = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout)


def _mark_of_default(value: Any) -> Any:
    if type(value) in _VALUES:
        return _plain(value)
    return mark(value)[:3]


def _shown(value: Any) -> str:
    name = getattr(value, "__qualname__", None)
    return f"{type(value).__qualname__} {name}" if isinstance(name, str) else f"an object of {type(value).__qualname__}"
