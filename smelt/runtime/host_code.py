"""Compiles host text to code objects, in pieces, and keeps them as bytes, which are faster to read than to make."""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
from collections.abc import Iterator
from types import CodeType

from smelt.base.store import content_key, store

FILE = "<smelt host program>"
"""Name of the file in tracebacks."""

PIECE = 4096
"""Number of characters of source after which a piece ends with the current statement."""

MIN_STORED_CHARS = 16 * 1024
"""Minimum number of characters of source for which code is kept in the store: below, compiling is as fast as reading a
file.
"""

_DIGEST_BYTES = 32


def host_code(source: str, kept: bytes | None = None) -> list[CodeType]:
    """Returns the code objects of a host text, to be executed in order in one scope.

    Args:
        source: Python text.
        kept: result of `to_bytes` for this text, possibly in another process. It is ignored if it is for another text
            or another interpreter.

    Raises:
        SyntaxError: the text is not valid Python.
    """
    code = from_bytes(kept, source) if kept is not None else None
    if code is not None:
        return code
    if len(source) < MIN_STORED_CHARS:
        return _compiled(source)
    key = content_key("host code", importlib.util.MAGIC_NUMBER, source)
    data = store().get("host", key, ".code")
    code = from_bytes(data, source) if data is not None else None
    if code is None:
        code = _compiled(source)
        store().put("host", key, _sealed(code, source), ".code")
    return code


def to_bytes(source: str) -> bytes:
    """Returns the code objects of a host text as bytes for this version of Python's bytecode.

    Raises:
        SyntaxError: the text is not valid Python.
    """
    return _sealed(_compiled(source), source)


def from_bytes(data: bytes, source: str) -> list[CodeType] | None:
    """Returns the code objects that `to_bytes(source)` wrote; None if they are for another text or interpreter, or
    damaged.

    Changed bytes are never unmarshalled, because that may end the process.
    """
    prefix = _prefix(source)
    start = len(prefix) + _DIGEST_BYTES
    body = data[start:]
    if data[: len(prefix)] != prefix or data[len(prefix) : start] != hashlib.sha256(body).digest():
        return None
    code: list[CodeType] = marshal.loads(body)
    return code


def _sealed(code: list[CodeType], source: str) -> bytes:
    body = marshal.dumps(code)
    return _prefix(source) + hashlib.sha256(body).digest() + body


def _prefix(source: str) -> bytes:
    """Returns the prefix of bytes that belong to this text and this interpreter."""
    return importlib.util.MAGIC_NUMBER + hashlib.sha256(source.encode()).digest()


def _compiled(source: str) -> list[CodeType]:
    return [compile(piece, FILE, "exec") for piece in pieces(source)]


def pieces(source: str) -> Iterator[str]:
    """Yields Python source in pieces of whole statements, each with the line numbers of the whole text.

    A syntax tree takes 140 times the memory of its text. For a large model, whose text binds many externs, that is more
    than all of the compiler's graphs. Each piece is compiled with its own small tree.
    """
    lines = source.splitlines(keepends=True)
    begun = size = 0
    for number, line in enumerate(lines):
        if size >= PIECE and line[0].isidentifier():
            yield "\n" * begun + "".join(lines[begun:number])
            begun, size = number, 0
        size += len(line)
    yield "\n" * begun + "".join(lines[begun:])
