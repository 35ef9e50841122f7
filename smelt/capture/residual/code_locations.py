"""Gives all instructions of a code object one location in the user's code, for tracebacks, debuggers and coverage."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Protocol

from smelt.capture import _native as native


class Instruction(Protocol):
    """An instruction of the user's code."""

    @property
    def code(self) -> CodeType: ...

    @property
    def offset(self) -> int: ...


@functools.cache
def called_at(filename: str, name: str, line: int) -> Callable[..., object]:
    """A function `call(fn, *args, **kwargs)` that calls `fn`, for which the caller is this line of the user's
    function.
    """
    code = _call.__code__
    # the call in `_call` is one line below its first line
    code = code.replace(co_filename=filename, co_name=name, co_qualname=name, co_firstlineno=line - 1)
    native.quiet(code)  # the hook ignores the frame, which does not belong to the program
    return FunctionType(code, {}, name)


def _call(fn: Callable[..., object], /, *args: object, **kwargs: object) -> object:
    return fn(*args, **kwargs)


Position = tuple[int | None, int | None, int | None, int | None]


def with_location(code: CodeType, at: Instruction) -> CodeType:
    """The replacement code with a location table by which tracebacks, debuggers and coverage show the user's line.

    The table gives all instructions one location (format: CPython Objects/locations.md, the long form).
    """
    owner = at.code
    first, last, column, end = position(owner, at.offset)
    line = first or owner.co_firstlineno
    columns = (column or 0) + 1 if column is not None else 0, (end or 0) + 1 if end is not None else 0
    table, units = bytearray(), len(code.co_code) // 2
    delta = line - owner.co_firstlineno
    while units > 0:
        length = min(units, 8)
        table.append(0x80 | 14 << 3 | length - 1)
        table += _varint(delta << 1 if delta >= 0 else -delta << 1 | 1)
        table += _varint(max((last or line) - line, 0)) + _varint(columns[0]) + _varint(columns[1])
        units, delta = units - length, 0
    return code.replace(
        co_filename=owner.co_filename,
        co_firstlineno=owner.co_firstlineno,
        co_name=owner.co_name,
        co_qualname=owner.co_qualname,
        co_linetable=bytes(table),
    )


def position(code: CodeType, offset: int) -> Position:
    """(line, last line, column, last column) of an instruction."""
    for index, found in enumerate(code.co_positions()):
        if index == offset // 2:
            return found
    return (None, None, None, None)


def _varint(value: int) -> bytes:
    """Encode a variable-length integer: six bits per byte, lowest bits first; all bytes but the last have bit 6 set."""
    out = bytearray()
    while value > 63:
        out.append(value & 63 | 64)
        value >>= 6
    out.append(value)
    return bytes(out)
