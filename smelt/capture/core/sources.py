"""Sources: the paths by which values that existed before the frame are reached (argument, global, attribute, item).

The guards fetch each source's value on every call (`_native.Guards`), and residual code uses it. `text` is the source
as a Python expression with the names of the captured function.
"""

from __future__ import annotations

import sys
from typing import Any

from smelt.base.python_text import is_plain_name, quoted
from smelt.base.text import on_one_line
from smelt.capture import _native as native

MEMBERS = frozenset({"_parameters", "_buffers", "_modules"})
"""The dictionaries of an nn.Module that contain its parameters, buffers and submodules."""

PROLOGUE = -2
"""Kind of the source of an input that the prologue computes: no guard fetches it."""


class Source:
    """One step of a path: `kind` and `key` are those of a guard fetch, `base` is the previous step (None for a root).

    Attributes:
        local: the value is reached from an argument or a stack slot, so it may differ from call to call.
    """

    __slots__ = ("base", "kind", "key", "text", "local")

    def __init__(self, base: Source | None, kind: int, key: Any, text: str) -> None:
        self.base, self.kind, self.key, self.text = base, kind, key, on_one_line(text)
        self.local: bool = kind == native.LOCAL if base is None else base.local

    def __repr__(self) -> str:
        return f"<{self.text}>"


def local(slot: int, name: str) -> Source:
    """The value of a frame's slot when the frame starts; at a point of resumption, stack elements follow the slots."""
    return Source(None, native.LOCAL, slot, name)


def const(value: object, text: str) -> Source:
    """The source of an object that is the same at every call, because a guard or the code itself keeps it alive."""
    return Source(None, native.CONST, value, text)


def frame_globals() -> Source:
    """The global variables of the captured function."""
    return Source(None, native.GLOBALS, None, "globals()")


def frame_function() -> Source:
    """The captured function object itself."""
    return Source(None, native.FUNC, None, "function")


def _dotted(text: str, name: str) -> str:
    return f"{text}.{name}" if is_plain_name(name) else f"getattr({text}, {quoted(name)})"


def attr(base: Source, name: str) -> Source:
    """The source of `getattr(base, name)`, for attributes whose lookup runs no Python code."""
    return Source(base, native.ATTR, name, _dotted(base.text, name))


FUNCTION_FIELDS = frozenset(
    {"__code__", "__defaults__", "__kwdefaults__", "__closure__", "__name__", "__qualname__", "__doc__"}
)
"""Fields of a function object, which are read without running any code."""


def function_field(base: Source, name: str) -> Source:
    """The source of one of the FUNCTION_FIELDS of a function."""
    return Source(base, native.FUNCTION_FIELD, name, f"{base.text}.{name}")


def slot(base: Source, descriptor: Any) -> Source:
    """The value in a `__slots__` member of an object, by its descriptor; NULL if the slot is empty."""
    return Source(base, native.SLOT, descriptor, f"{base.text}.{descriptor.__name__}")


def instance_dict(base: Source) -> Source:
    """`base.__dict__`"""
    return Source(base, native.INSTANCE_DICT, None, f"{base.text}.__dict__")


def instance_item(base: Source, name: str) -> Source:
    """An attribute that lives in the instance's own dictionary."""
    return Source(instance_dict(base), native.DICT_ITEM, name, _dotted(base.text, name))


def instance_item_or_missing(base: Source, name: str) -> Source:
    """An attribute in the instance's own dictionary, or the marker of a missing one, so that a guard can check
    absence."""
    return Source(instance_dict(base), native.DICT_ITEM_OR_MISSING, name, f"{base.text}.__dict__.get({quoted(name)})")


def class_attr(cls: type, name: str) -> Source:
    """The raw attribute that a lookup in the method resolution order of a constant class finds."""
    return Source(const(cls, cls.__name__), native.CLASS_ATTR, name, _dotted(cls.__name__, name))


def attribute_of(cls: Source, name: str) -> Source:
    """The raw attribute that a lookup in the method resolution order finds, of a class that may differ between
    calls."""
    return Source(cls, native.CLASS_ATTR, name, _dotted(cls.text, name))


def member(base: Source, table: str, name: str) -> Source:
    """A parameter, buffer or submodule of a module."""
    text = f"{base.text}[{name}]" if name.isascii() and name.isdigit() else _dotted(base.text, name)
    return Source(base, native.MODULE_MEMBER, (table, name), text)


def dict_item(base: Source, key: object, shown: str | None = None) -> Source:
    """An item of a dict or dict subclass, read without its overrides; an item of a module's table becomes a `member`.

    Args:
        shown: text for the key if its `repr` is of no use.
    """
    if type(base.key) is str and base.key in MEMBERS and base.base is not None and type(key) is str:
        if base.base.kind == native.INSTANCE_DICT and base.base.base is not None:
            return member(base.base.base, base.key, key)
    return Source(base, native.DICT_ITEM, key, f"{base.text}[{shown or repr(key)}]")


def global_item(base: Source, name: str) -> Source:
    """A global variable; `base` is the dictionary of globals."""
    text = name if base.text == "globals()" and is_plain_name(name) else _dotted(base.text, name)
    return Source(base, native.DICT_ITEM, name, text)


def global_missing(base: Source, name: str) -> Source:
    """The source for a name that the globals lack, so that it refers to a builtin."""
    return Source(base, native.DICT_ITEM_OR_MISSING, name, f"{base.text}.get({quoted(name)})")


def dict_value(base: Source, index: int) -> Source:
    """The value at an index in the order of a dict, whichever key it has."""
    return Source(base, native.DICT_VALUE, index, f"list({base.text}.values())[{index}]")


def sequence_item(base: Source, index: int, kind: type) -> Source:
    """An item of a list or tuple (or of a subclass, read without its overrides)."""
    fetch = native.LIST_ITEM if issubclass(kind, list) else native.TUPLE_ITEM
    return Source(base, fetch, index, f"{base.text}[{index}]")


def cell_content(base: Source, name: str) -> Source:
    """The value in a closure cell."""
    return Source(base, native.CELL, None, name)


def closure_cell(function: Source, index: int) -> Source:
    """The i-th cell of a function's closure."""
    return sequence_item(function_field(function, "__closure__"), index, tuple)


def size(base: Source, dim: int) -> Source:
    """One size of a tensor."""
    return Source(base, native.SIZE, dim, f"{base.text}.shape[{dim}]")


def called(base: Source, fn: object, name: str) -> Source:
    """The result of a side-effect-free function of `base`: a weak reference's referent, a context variable's value."""
    return Source(base, native.CALL, fn, f"{name}({base.text})")


HANDLED = called(const(None, ""), lambda _: sys.exception(), "sys.exception")
"""The source of the exception that is being handled when a frame starts or continues."""
