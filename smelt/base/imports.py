"""Imports at the first call, for modules that few programs need; recognizes table entries of interrupted imports.

Modules fill tables of other modules while they are imported. Python drops a module whose import raised and imports it
anew when it is needed; its entries in the tables remain and must be replaced.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any


def late(module: str, name: str) -> Callable[..., Any]:
    """Returns a function that imports `module` and calls its function or class `name`.

    The importing module declares the real one under `TYPE_CHECKING`, for the table of imports and the types. Only what
    one target needs is imported late: all other modules of the compiler are imported together, before a program is
    captured.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*args, **kwargs)

    return call


def is_of_dropped_module(function: Callable[..., Any]) -> bool:
    """Whether `sys.modules` no longer has the module object that defined the function, since its import raised."""
    module = sys.modules.get(function.__module__)
    return module is None or vars(module) is not function.__globals__
