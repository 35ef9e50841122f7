"""Tables of computed facts about layouts and operators, shared by all graphs; rows about symbols last one capture.

A row about a symbolic size is useful only to the graph to which the symbol belongs, and would keep it alive.
"""

from __future__ import annotations

from typing import Any, TypeVar

from smelt.shapes import expr
from smelt.shapes.real import Real
from smelt.shapes.size import Size

V = TypeVar("V")

MAX_ROWS = 100_000
"""Maximum number of rows of a table: enough for many models, while it bounds the memory of processes that never end."""

_of_symbols: list[tuple[dict[Any, Any], Any]] = []


def remember(table: dict[Any, V], key: Any, value: V) -> V:
    """Add a row to a table, which is cleared first when it is full."""
    if len(table) > MAX_ROWS:
        table.clear()
    table[key] = value
    if _has_symbols(key):
        _of_symbols.append((table, key))
    return value


def forget_symbols() -> None:
    """Drop the rows about symbols. A capture that runs in another thread computes its rows once more."""
    while _of_symbols:
        table, key = _of_symbols.pop()
        table.pop(key, None)
    expr.forget_divisions()


def _has_symbols(key: Any) -> bool:
    if isinstance(key, tuple):
        return any(map(_has_symbols, key))
    if isinstance(key, (Size, Real)):
        return True
    val = getattr(key, "val", None)  # the key is a layout
    return val is not None and _has_symbols((val.shape, val.stride) if hasattr(val, "stride") else val.shape)
