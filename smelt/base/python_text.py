"""Writes names and constants of the user's program into generated Python: as quoted literals, or as new identifiers.

Attributes, keywords and keys may be any string: one that contains Python code, one that is not an identifier, an
identifier that Python normalizes to another one (NFKC), or an instance of a subclass of `str` with its own `__repr__`.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Container, Iterable
from typing import Any

from smelt.base.class_tables import ClassTable, by_class


def quoted(text: str) -> str:
    """The Python literal of a string."""
    return repr(str.__str__(text))


def module_name(value: object) -> str:
    """The value of a `__module__`, or of `__name__` in globals, if it is a string; "" if the program replaced it by
    another type of value.
    """
    return value if type(value) is str else ""


def root_package(value: object) -> str:
    """The top-level package in the `__module__` of a function that a graph calls; "torch" if `__module__` is None."""
    module = getattr(value, "__module__", None)
    return "torch" if module is None else module_name(module).split(".")[0]


def int_literal(value: int) -> str:
    """The literal of an int of any size; large ones are hexadecimal, since Python limits the digits of decimal ones."""
    return int.__repr__(value) if -_LONG < value < _LONG else hex(value)


_LONG = 10**600

LITERALS: ClassTable[Callable[[Any], str]] = by_class({int: int_literal, str: quoted, bool: repr, type(None): repr})
"""Type -> function that writes its values as literals, for the types whose values become literals."""


def scalar(value: bool | int | float | str | None) -> str:
    """The literal of a plain value; instances of subclasses are written as values of the plain type."""
    match value:
        case None | bool():
            return repr(value)
        case int():
            return int_literal(int.__int__(value))
        case str():
            return quoted(value)
    text = float.__repr__(value)
    return text if text.strip("-0123456789.e+") == "" else f"float({quoted(text)})"


def is_plain_name(name: str) -> bool:
    """Whether an attribute of this name may be written after a dot; other names must be written as quoted strings."""
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name) and name != "__debug__"


def arguments(positional: Iterable[str], named: Iterable[tuple[str, str]]) -> str:
    """The text between the parentheses of a call.

    Args:
        given: expressions.
        named: keywords with their expressions.
    """
    return ", ".join([*positional, *(_keyword(str.__str__(name), expression) for name, expression in named)])


def _keyword(name: str, expression: str) -> str:
    return f"{name}={expression}" if is_plain_name(name) else f"**{{{quoted(name)}: {expression}}}"


def new_name(hint: str, *taken: Container[str]) -> str:
    """An identifier derived from `hint` that is in none of the containers `taken` and begins with a letter."""
    base = _NO_NAME.sub("_", str.__str__(hint)[:_LONGEST])
    base = base if base[:1].isalpha() and is_plain_name(base) else f"k{base}"
    name, count = base, 1
    while any(name in each for each in taken):
        name, count = f"{base}_{count}", count + 1
    return name


_NO_NAME = re.compile(r"[^A-Za-z0-9_]")
_LONGEST = 60


def names_in(text: str) -> set[str]:
    """The variables in generated expressions: identifiers outside of literals that do not follow a dot."""
    return {word for word in _WORDS.findall(text) if word}


_WORDS = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|(?<![.\w])([A-Za-z_]\w*)""")
