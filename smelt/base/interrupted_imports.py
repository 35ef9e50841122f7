"""Recognizes table entries that were made by a module whose import was interrupted.

Modules fill tables of other modules while they are imported. Python drops a module whose import raised and imports it
anew when it is needed; its entries in the tables remain and must be replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def is_of_dropped_module(function: Callable[..., Any]) -> bool:
    """Whether `sys.modules` no longer has the module object that defined the function, since its import raised."""
    module = sys.modules.get(function.__module__)
    return module is None or vars(module) is not function.__globals__
