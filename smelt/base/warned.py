"""Collects or suppresses the warnings of torch's code while the compiler runs it on stand-in tensors.

C code of torch warns through Python's module `warnings`. A filter before all other filters lets every warning of a
collecting thread pass to this module, and affects no other thread. When compiled code repeats a warning, the program's
own filters apply.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from types import FrameType
from typing import Any, NamedTuple

from smelt.base.errors import SmeltWarning
from smelt.base.locks import new_lock
from smelt.base.process_state import switch

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_GRAPH = "<eval_with_key>"
_MODULE = vars(warnings)


class Warned(NamedTuple):
    """A warning of torch's code.

    Attributes:
        location: (globals, file, line) if the warning names a line of torch; None if it names a line of the program.
        up: number of frames from the frame that called torch to the named frame of the program.
    """

    message: Warning
    category: type[Warning]
    location: tuple[dict[str, Any], str, int] | None
    up: int
    source: Any


class _Listening(NamedTuple):
    """The state of a collecting thread: the list for its warnings (None: they are dropped), and the recorder
    (`warnings._showwarnmsg_impl`) that was active before.
    """

    found: list[Warned] | None
    recorder: Any


class _CollectingPattern:
    """The pattern of a warning filter that matches every text in a collecting thread, and no text in other threads."""

    def match(self, text: str) -> bool:
        return threading.get_ident() in _threads


_FILTER: Any = ("always", _CollectingPattern(), Warning, None, 0)
_threads: dict[int, _Listening] = {}
_before: dict[str, Any] = {}
"""The attributes of the module `warnings` before the first collecting thread replaced them; empty if none is active."""
_lock = new_lock()


class heard:
    """Context in which warnings of this thread are appended to the list `found` and not shown; None: they are dropped.

    A class and not a generator function, which would take twice as long: each call of torch in a capture enters it.
    """

    __slots__ = ("_before", "_found")

    def __init__(self, found: list[Warned] | None) -> None:
        self._found = found

    def __enter__(self) -> None:
        self._before = _listening()
        _listen(_Listening(self._found, _MODULE["_showwarnmsg_impl"]))

    def __exit__(self, *_: object) -> None:
        _listen(self._before)


def _listening() -> _Listening | None:
    return _threads.get(threading.get_ident())


def _listen(how: _Listening | None) -> None:
    with _lock:
        if how is None:
            _threads.pop(threading.get_ident(), None)
        else:
            _threads[threading.get_ident()] = how
        if _threads and not _before:
            _install()
        elif _before and not _threads:
            _remove(**_before)


switch("warnings heard", _listening, _listen)


def _install() -> None:
    installed = [_FILTER, *warnings.filters]
    _before.update(filters=warnings.filters, installed=installed, show=_MODULE["_showwarnmsg"])
    _MODULE["filters"], _MODULE["_showwarnmsg"] = installed, _show


def _remove(filters: Any, installed: list[Any], show: Any) -> None:
    _before.clear()
    if _MODULE["_showwarnmsg"] is _show:
        _MODULE["_showwarnmsg"] = show
    if warnings.filters is installed and installed[1:] == filters:
        _MODULE["filters"] = filters
    elif _FILTER in warnings.filters:  # other code has added a filter in the meantime
        warnings.filters.remove(_FILTER)  # type: ignore[attr-defined]


def _forget_threads() -> None:
    """Forget the state of all other threads; called in a process that was just forked."""
    how = _listening()
    _threads.clear()
    _listen(how)


os.register_at_fork(after_in_child=_forget_threads)


def _show(msg: Any) -> None:
    """The function that `warnings` calls for a warning that passes its filters."""
    how = _listening()
    if how is None or how.recorder is not _MODULE["_showwarnmsg_impl"] or issubclass(msg.category, SmeltWarning):
        _before.get("show", _PLAIN)(msg)  # not recorded here, for example because torch records it
    elif how.found is not None:
        _add(how.found, msg, sys._getframe(1))


_PLAIN = _MODULE["_showwarnmsg"]


def _add(found: list[Warned], msg: Any, frame: FrameType | None) -> None:
    """Append a warning that was raised in `frame` to `found`, with the location that it names."""
    location, beyond = None, 0
    while frame is not None and not frame.f_code.co_filename.startswith(_HERE):
        if frame.f_code.co_filename.startswith(_GRAPH):
            return  # raised while a captured graph runs; the capture kept such warnings
        if location is None and (frame.f_code.co_filename, frame.f_lineno) == (msg.filename, msg.lineno):
            location = (frame.f_globals, msg.filename, msg.lineno)
        frame = frame.f_back
    if frame is not None and frame.f_code.co_name == "__torch_dispatch__":
        return  # the warning is about the compiler's own use of an operator
    while (
        location is None
        and frame is not None
        and (frame.f_code.co_filename, frame.f_lineno) != (msg.filename, msg.lineno)
    ):
        frame, beyond = frame.f_back, beyond + 1
    found.append(Warned(msg.message, msg.category, location, beyond, msg.source))
