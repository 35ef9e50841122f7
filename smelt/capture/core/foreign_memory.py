"""Objects of `ctypes` and weak proxies: they show memory or objects that others may change, so the graph ends at
them."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable
from typing import Any

from smelt.base.class_tables import classes, isinstance
from smelt.capture.core.breaks import Break

_Data: Any = ctypes.c_int.__mro__[-2]
"""The base class of all of them."""

_PROXIES = classes(*weakref.ProxyTypes)
"""Weak proxies, which show another object in the same way."""


def refuse_windows(values: Iterable[object]) -> None:
    """End the graph where one of these values shows such memory.

    Raises:
        Break: one does.
    """
    for value in values:
        if type(value) in _PROXIES:
            why = "what the object holds is known when the program runs"
            raise Break(f"C code asks a {type(value).__name__}", why, in_frame=True)
        if isinstance(value, _Data):
            why = "what lies at an address is known when the program runs"
            raise Break(f"memory is read through a {type(value).__name__} of ctypes", why)


def refuse_fields(obj: object, name: str) -> None:
    """End the graph where an attribute is a field of a `ctypes` structure.

    Raises:
        Break: it is.
    """
    if isinstance(obj, (ctypes.Structure, ctypes.Union)) and any(name == field[0] for field in _fields(type(obj))):
        refuse_windows((obj,))


def _fields(kind: type) -> list[Any]:
    return [field for base in kind.__mro__ for field in vars(base).get("_fields_", ())]
