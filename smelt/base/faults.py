"""What kernels tell of values that eager refuses: bits of a word in memory, and the errors that they stand for."""

from __future__ import annotations

OUT_OF_RANGE, DIVIDED_BY_ZERO = 1, 2
"""The bits: an index out of range, a whole number over 0."""


def fault_error(word: int) -> Exception:
    """The error that eager raises for such values."""
    if word & OUT_OF_RANGE:
        return IndexError("index out of range in a compiled graph")
    return RuntimeError("ZeroDivisionError")
