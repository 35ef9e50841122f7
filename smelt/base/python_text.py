"""How what the user's program calls things gets into generated Python: as quoted constants, and as names made here.

Attributes, keywords and keys may be any string, also one that is Python, no identifier, an identifier that Python reads
as another one (NFKC), or of a class with a `__repr__` of its own.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Container, Iterable
from typing import Any

from smelt.base.class_tables import ClassTable, by_class


def quoted(text: str) -> str:
    """The literal of these characters."""
    return repr(str.__str__(text))


def module_name(value: object) -> str:
    """The text of a `__module__`, or of `__name__` in globals; "" if the program has replaced it by something that is
    no string.
    """
    return value if type(value) is str else ""


def root_package(value: object) -> str:
    """The package that what a graph calls says it is of; operators that say nothing are torch's."""
    module = getattr(value, "__module__", None)
    return "torch" if module is None else module_name(module).split(".")[0]


def whole(value: int) -> str:
    """The literal of a whole number of any length; decimal ones are limited to some thousand digits."""
    return int.__repr__(value) if -_LONG < value < _LONG else hex(value)


_LONG = 10**600

LITERALS: ClassTable[Callable[[Any], str]] = by_class({int: whole, str: quoted, bool: repr, type(None): repr})
"""Types whose values are written out, and how."""


def scalar(value: bool | int | float | str | None) -> str:
    """The literal of a plain value, of whatever subclass."""
    match value:
        case None | bool():
            return repr(value)
        case int():
            return whole(int.__int__(value))
        case str():
            return quoted(value)
    text = float.__repr__(value)
    return text if text.strip("-0123456789.e+") == "" else f"float({quoted(text)})"


def is_plain_name(name: str) -> bool:
    """An attribute of this name may be written with a dot: others are data, which must not become code or lines."""
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name) and name != "__debug__"


def arguments(given: Iterable[str], named: Iterable[tuple[str, str]]) -> str:
    """The text between the parentheses of a call.

    Args:
        given: expressions.
        named: keywords with their expressions.
    """
    return ", ".join([*given, *(_keyword(str.__str__(name), expression) for name, expression in named)])


def _keyword(name: str, expression: str) -> str:
    return f"{name}={expression}" if is_plain_name(name) else f"**{{{quoted(name)}: {expression}}}"


def new_name(hint: str, *taken: Container[str]) -> str:
    """A name that none of these has and that shows where it comes from. It begins with a letter."""
    base = _NO_NAME.sub("_", str.__str__(hint)[:_LONGEST])
    base = base if base[:1].isalpha() and is_plain_name(base) else f"k{base}"
    name, count = base, 1
    while any(name in each for each in taken):
        name, count = f"{base}_{count}", count + 1
    return name


_NO_NAME = re.compile(r"[^A-Za-z0-9_]")
_LONGEST = 60


def names_in(text: str) -> set[str]:
    """The variables that generated expressions read: words that stand in no literal and behind no dot."""
    return {word for word in _WORDS.findall(text) if word}


_WORDS = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|(?<![.\w])([A-Za-z_]\w*)""")
