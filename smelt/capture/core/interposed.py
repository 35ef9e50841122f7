"""Functions that Python itself calls between two instructions of a program; they are not compiled with the program.

Hooks for audits, traces and profiles are recognized in C, by the thread's state.
"""

from __future__ import annotations

import weakref
from types import CodeType, FrameType

from smelt.capture.core.interface import Args


def comes_between(code: CodeType, slots: Args) -> bool:
    """Whether a starting frame belongs to a finalizer, a callback of a weak reference or of the garbage collector, a
    signal handler, or the hook that reports their errors (`sys.unraisablehook`)."""
    if not slots:
        return False
    before, last = (None, *slots)[-2:]  # `len` may have been replaced by the program
    kind = type(last)  # a `type` that runs no method of the program
    if kind is FrameType:
        return type(before) is int
    if kind is dict:
        return type(before) is str and before in ("start", "stop") and len(last) == 3 and "collected" in last
    if issubclass(kind, weakref.ref):
        return weakref.ref.__call__(last) is None
    return len(slots) == 1 and (
        code.co_name == "__del__" or type.__getattribute__(kind, "__name__") == _OF_THEIR_ERRORS
    )


_OF_THEIR_ERRORS = "UnraisableHookArgs"
