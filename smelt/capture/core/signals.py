"""Errors that a signal's handler raises while the compiler works: they are the program's, wherever they come."""

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
    """Raise what the handler of a signal has raised while this thread compiles, whatever became of it since."""
    error = heard_from_handlers()
    if error is not None:
        native.raise_again(error)


def raise_if_signalled(error: BaseException) -> None:
    """Raise what the handler of a signal has raised: a time limit, for example.

    `KeyboardInterrupt` and its kin pass by all that handles the compiler's errors. An ordinary exception would be taken
    for a failure of the compiler, or of the operation that it came in. While something is compiled, handlers are
    watched (`process_state`); in residual code `error` is that exception or came of it.
    """
    raise_heard()
    if threading.current_thread() is not threading.main_thread():
        return  # handlers run there
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
            native.raise_again(each)
        left += [each.__context__, each.__cause__, each.error if isinstance(each, UserError) else None]


def _handlers() -> set[CodeType]:
    found = set()
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        code = getattr(getattr(handler, "__func__", handler), "__code__", None)
        if isinstance(code, CodeType):
            found.add(code)
    return found
