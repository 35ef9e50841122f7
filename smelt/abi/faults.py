"""Errors about values that eager refuses (an index out of range): the bits that kernels set, and their messages."""

from __future__ import annotations

from dataclasses import dataclass

OUT_OF_RANGE, DIVIDED_BY_ZERO = 1, 2
"""The first two bits: an index out of range, an integer division by 0."""

NOT_IN_UNIT, TARGET_NOT_IN_UNIT, NO_PROBABILITY, NEGATIVE_DEVIATION = (1 << bit for bit in range(2, 6))
NO_WEIGHTS, ALL_WEIGHTS_ZERO, TOO_FEW, NEGATIVE_REPEATS = (1 << bit for bit in range(6, 10))
"""The other bits: checks of operands' values that operators make."""

_ERRORS: dict[int, tuple[type[Exception], str]] = {
    OUT_OF_RANGE: (IndexError, "index out of range in a compiled graph"),
    DIVIDED_BY_ZERO: (RuntimeError, "ZeroDivisionError"),
    NOT_IN_UNIT: (RuntimeError, "all elements of input should be between 0 and 1"),
    TARGET_NOT_IN_UNIT: (RuntimeError, "all elements of target should be between 0 and 1"),
    NO_PROBABILITY: (RuntimeError, "Expected p_in >= 0 && p_in <= 1 to be true, but got false."),
    NEGATIVE_DEVIATION: (RuntimeError, "normal expects all elements of std >= 0.0"),
    NO_WEIGHTS: (RuntimeError, "probability tensor contains either `inf`, `nan` or element < 0"),
    ALL_WEIGHTS_ZERO: (RuntimeError, "invalid multinomial distribution (sum of probabilities <= 0)"),
    TOO_FEW: (RuntimeError, "masked_scatter: Number of elements of source < number of ones in mask"),
    NEGATIVE_REPEATS: (RuntimeError, "repeats can not be negative"),
}


@dataclass(frozen=True)
class Check:
    """A check of values in a GPU kernel; the kernel traps if it fails.

    Attributes:
        fault: the bit of the error that it reports.
        node: the value that is computed.
        wraps: for an index: whether negative indices count from the end, so that the size was added to them before the
            check.
        operator, line: operator and line of the user's program; empty if not known.
        reports_index: whether the kernel reports the index; a check for an unused result only finds that some index is
            wrong.
    """

    fault: int
    node: str
    wraps: bool = False
    operator: str = ""
    line: str = ""
    reports_index: bool = True

    def message(self, value: int, size: int) -> str:
        """Returns the error's text; for an index with its value and the size of the dimension."""
        if self.fault != OUT_OF_RANGE:
            return str(fault_error(self.fault))
        if not self.reports_index:
            return "an index is out of range"
        index = value - size if self.wraps and value < 0 else value
        return f"index {index} is out of range for a dimension of size {size}"


CHECK_BYTES = 32
"""Number of bytes of a launch's report of a failed check: the check's number in the kernel (from 1), the index, the
size, padding.
"""

Checks = tuple[str, tuple[Check, ...]]
"""A kernel's name and its checks."""


def fault_error(word: int) -> Exception:
    """Returns the error that eager raises for such values; with several bits set, the error of the lowest."""
    error, text = _ERRORS.get(word & -word, _ERRORS[DIVIDED_BY_ZERO])
    return error(text)
