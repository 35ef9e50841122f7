"""Tables that modules fill while they are imported, and imports that an interrupt ended.

Python forgets a module whose import raised, and imports it again when it is wanted; what it had entered in the tables
of other modules is still there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def is_forgotten(function: Callable[..., Any]) -> bool:
    """Whether the import of the module that a function was made in was ended, and has begun again or not yet."""
    module = sys.modules.get(function.__module__)
    return module is None or vars(module) is not function.__globals__
