"""Reads through `ctypes` objects and weak proxies end the graph, because other code may change the memory or object."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable
from typing import Any

from smelt.base.class_tables import classes, isinstance
from smelt.capture.core.breaks import Break

_Data: Any = ctypes.c_int.__mro__[-2]
"""The base class of all `ctypes` data types (`ctypes._CData`)."""

_PROXIES = classes(*weakref.ProxyTypes)
"""Types of weak proxies, which give access to another object."""


def refuse_windows(values: Iterable[object]) -> None:
    """End the graph if one of these values is a `ctypes` object or a weak proxy.

    Raises:
        Break: one of them is.
    """
    for value in values:
        if type(value) in _PROXIES:
            why = "what the object holds is known when the program runs"
            raise Break(f"C code asks a {type(value).__name__}", why, in_frame=True)
        if isinstance(value, _Data):
            why = "what lies at an address is known when the program runs"
            raise Break(f"memory is read through a {type(value).__name__} of ctypes", why)


def refuse_fields(obj: object, name: str) -> None:
    """End the graph if an attribute is a field of a `ctypes` structure or union.

    Raises:
        Break: the attribute is such a field.
    """
    if isinstance(obj, (ctypes.Structure, ctypes.Union)) and any(name == field[0] for field in _fields(type(obj))):
        refuse_windows((obj,))


def _fields(kind: type) -> list[Any]:
    return [field for base in kind.__mro__ for field in vars(base).get("_fields_", ())]
