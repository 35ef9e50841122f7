"""Warnings that code of torch gives while the compiler runs it on stand-ins: gathered for the program, or left out.

C code of torch warns as Python code does, so that filters are where both are heard: one in front of all others, which
holds for threads that listen alone. The program's own filters decide when the warning is given again.
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
        location: (globals, file, line) in torch that it points to; None: it points to the program,
        up: the number of frames above the frame that called torch.
    """

    message: Warning
    category: type[Warning]
    location: tuple[dict[str, Any], str, int] | None
    up: int
    source: Any


class _Listening(NamedTuple):
    """What a thread listens with: where warnings go to (None: nowhere), and who records them without it."""

    found: list[Warned] | None
    recorder: Any


class _Heard:
    """The pattern of a filter that every text fits which a listening thread gives."""

    def match(self, text: str) -> bool:
        return threading.get_ident() in _threads


_FILTER: Any = ("always", _Heard(), Warning, None, 0)
_threads: dict[int, _Listening] = {}
_before: dict[str, Any] = {}
"""The attributes of the module `warnings` before the first of these threads replaced them."""
_lock = new_lock()


class heard:
    """Warnings of this thread are put into `found`, and the program sees none; None: they are left out.

    A class, since it is entered for each call of torch in a capture: a generator takes twice as long.
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
    elif _FILTER in warnings.filters:  # somebody has added one meanwhile
        warnings.filters.remove(_FILTER)  # type: ignore[attr-defined]


def _forget_threads() -> None:
    """In a process that was just forked other threads are gone."""
    how = _listening()
    _threads.clear()
    _listen(how)


os.register_at_fork(after_in_child=_forget_threads)


def _show(msg: Any) -> None:
    """The function that `warnings` calls for a warning that passes its filters."""
    how = _listening()
    if how is None or how.recorder is not _MODULE["_showwarnmsg_impl"] or issubclass(msg.category, SmeltWarning):
        _before.get("show", _PLAIN)(msg)  # torch itself records it, for one
    elif how.found is not None:
        _add(how.found, msg, sys._getframe(1))


_PLAIN = _MODULE["_showwarnmsg"]


def _add(found: list[Warned], msg: Any, frame: FrameType | None) -> None:
    """Enter a warning that came out of `frame`, with the frame in the stack that it points to."""
    location, beyond = None, 0
    while frame is not None and not frame.f_code.co_filename.startswith(_HERE):
        if frame.f_code.co_filename.startswith(_GRAPH):
            return  # a function that was captured before, and its warnings with it
        if location is None and (frame.f_code.co_filename, frame.f_lineno) == (msg.filename, msg.lineno):
            location = (frame.f_globals, msg.filename, msg.lineno)
        frame = frame.f_back
    if frame is not None and frame.f_code.co_name == "__torch_dispatch__":
        return  # it is about how the compiler looks into an operator
    while (
        location is None
        and frame is not None
        and (frame.f_code.co_filename, frame.f_lineno) != (msg.filename, msg.lineno)
    ):
        frame, beyond = frame.f_back, beyond + 1
    found.append(Warned(msg.message, msg.category, location, beyond, msg.source))
