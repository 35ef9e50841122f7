"""Work of a compiled callable that runs later, outside of its calls."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from smelt.capture import _native as native


def on_behalf(session: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, captured for `session` whenever it is called: while gradients are computed, in another thread."""
    held = weakref.ref(session)
    return lambda *args, **kwargs: native.call(fn, args, kwargs, held())
