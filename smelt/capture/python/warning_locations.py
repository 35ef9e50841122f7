"""Locations of deferred warnings of the program and of torch: the same as eager reports."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch import nn

from smelt.base.warned import Warned
from smelt.capture.core.breaks import Break
from smelt.capture.core.interface import Interpreter

_HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_NOWHERE = "sys", 1 if sys.version_info < (3, 12) else 0, "sys", vars(sys).setdefault("__warningregistry__", {})
"""The location of a warning whose `stacklevel` exceeds the number of frames."""


@dataclass(frozen=True, slots=True)
class WarningLocation:
    """The location of a warning: a line of a file, and the globals of the code at this line."""

    globals: dict[str, Any]
    filename: str
    line: int


def location_of(vm: Interpreter, level: int, skipped: tuple[str, ...] = ()) -> WarningLocation | int:
    """The location that `warnings.warn(stacklevel=level)` reports; a number n if it is that of the n-th frame above the
    captured one.

    Args:
        skipped: prefixes of the names of files whose frames are not counted (`skip_file_prefixes`).

    Raises:
        Break: the location depends on the files of frames above the captured one.
    """
    level = max(level, 2 if skipped else 1)
    for k, location in enumerate(_locations(vm)):
        if k and skipped and location.filename.startswith(skipped):
            continue
        level -= 1
        if not level:
            return location
    if skipped:
        raise Break("warnings.warn(skip_file_prefixes=...) that points to a caller", "its file is known at the call")
    return level


def _locations(vm: Interpreter) -> Iterator[WarningLocation]:
    """The locations of the frames that eager execution would have, innermost first, up to the captured frame."""
    for depth in reversed(range(len(vm.frames))):
        frame = vm.frames[depth]
        yield WarningLocation(frame.globals, frame.code.co_filename, frame.at.line)
        if depth and depth in vm.python.module_depths:
            yield from _of_modules()


@functools.cache
def _of_modules() -> tuple[WarningLocation, ...]:
    """The locations of the calls in `nn.Module._call_impl` and `_wrapped_call_impl`, for modules without hooks."""
    locations = []
    for function, call in ((nn.Module._call_impl, "return forward_call("), (_WRAPPED, "return self._call_impl(")):
        lines, first = inspect.getsourcelines(function)
        line = next((k for k, text in enumerate(lines) if call in text), 0)
        locations.append(WarningLocation(function.__globals__, function.__code__.co_filename, first + line))
    return tuple(locations)


_WRAPPED = nn.Module._wrapped_call_impl


def location_of_torchs(vm: Interpreter, warned: Warned) -> WarningLocation | int:
    """The location of a warning of torch; a number n if it is that of the n-th frame above the captured one."""
    return location_of(vm, warned.up + 1) if warned.location is None else WarningLocation(*warned.location)


def above(level: int) -> tuple[str, int, str, dict[object, object]]:
    """(file, line, module, registry) of the `level`-th frame above the caller, as arguments of
    `warnings.warn_explicit`.

    Frames of the compiler are not counted, nor are frames of a function that continues in a later frame.
    """
    below: FrameType = sys._getframe(1)
    frame: FrameType | None = below.f_back
    while frame is not None:
        if not _is_ours(frame, below):
            level -= 1
            if not level:
                scope = frame.f_globals
                name = scope.get("__name__", "<string>")
                return frame.f_code.co_filename, frame.f_lineno, name, scope.setdefault("__warningregistry__", {})
            below = frame
        frame = frame.f_back
    return _NOWHERE


def _is_ours(frame: FrameType, below: FrameType) -> bool:
    """Whether a frame belongs to the compiler, or is the first one of a function that continues in the frame below."""
    code, rest = frame.f_code, below.f_code
    if code.co_filename.startswith((_HERE, "<smelt ")):
        return True
    return (
        code is not rest
        and _is_residual(frame)
        and (code.co_filename, code.co_firstlineno, code.co_name)
        == (
            rest.co_filename,
            rest.co_firstlineno,
            rest.co_name,
        )
    )


def _is_residual(frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_varnames[code.co_argcount - 2 : code.co_argcount] == ("_c", "_f")
