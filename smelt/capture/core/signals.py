"""Errors that a signal handler raises while the compiler works: they belong to the program and must reach it."""

from __future__ import annotations

import signal
import threading
import traceback
from types import CodeType

from smelt.base._native import heard_from_handlers
from smelt.base.class_tables import isinstance
from smelt.capture import _native as native
from smelt.capture.core.breaks import UserError


def raise_heard() -> None:
    """Raise the exception that a signal handler has raised while this thread compiles, even if it was swallowed
    since."""
    error = heard_from_handlers()
    if error is not None:
        native.reraise(error)


def raise_if_signalled(error: BaseException) -> None:
    """Raise the exception of a signal handler (for example a time limit), if it is `error` or a cause of `error`.

    `KeyboardInterrupt` and other exceptions outside of `Exception` pass through the compiler's own handlers. An
    ordinary exception would be mistaken for a failure of the compiler, or of the operation in which it was raised.
    During a compilation, `process_state` records exceptions of signal handlers; in residual code it does not, so the
    traceback of `error` is searched for a signal handler.
    """
    raise_heard()
    if threading.current_thread() is not threading.main_thread():
        return  # signal handlers run only on the main thread
    handlers = _handlers()
    if not handlers:
        return
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        if any(frame.f_code in handlers for frame, _ in traceback.walk_tb(each.__traceback__)):
            native.reraise(each)
        left += [each.__context__, each.__cause__, each.error if isinstance(each, UserError) else None]


def _handlers() -> set[CodeType]:
    found = set()
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        code = getattr(getattr(handler, "__func__", handler), "__code__", None)
        if isinstance(code, CodeType):
            found.add(code)
    return found
