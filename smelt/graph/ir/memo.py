"""Tables of what was found out about layouts and operators, for all graphs. Rows about symbols go when a capture ends.

A row about a size that is a symbol serves the graph that the symbol belongs to alone, and would keep it.
"""

from __future__ import annotations

from typing import Any, TypeVar

from smelt.shapes import expr
from smelt.shapes.real import Real
from smelt.shapes.size import Size

V = TypeVar("V")

LIMIT = 100_000
"""Rows of a table: enough for many models, a bound for processes that never end."""

_of_symbols: list[tuple[dict[Any, Any], Any]] = []


def remember(table: dict[Any, V], key: Any, value: V) -> V:
    """Put a row into a table."""
    if len(table) > LIMIT:
        table.clear()
    table[key] = value
    if _has_symbols(key):
        _of_symbols.append((table, key))
    return value


def forget_symbols() -> None:
    """Drop the rows about symbols. Those of a capture of another thread are found out again."""
    while _of_symbols:
        table, key = _of_symbols.pop()
        table.pop(key, None)
    expr.forget_divisions()


def _has_symbols(key: Any) -> bool:
    if isinstance(key, tuple):
        return any(map(_has_symbols, key))
    if isinstance(key, (Size, Real)):
        return True
    val = getattr(key, "val", None)  # of a layout
    return val is not None and _has_symbols((val.shape, val.stride) if hasattr(val, "stride") else val.shape)
