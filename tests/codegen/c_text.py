"""Evaluates generated C: whole numbers that divide towards zero."""

from __future__ import annotations

import re
from collections.abc import Mapping


class C(int):
    """A whole number that divides as in C: towards zero."""

    def __add__(self, other: int) -> C:
        return C(int(self) + other)

    __radd__ = __add__

    def __sub__(self, other: int) -> C:
        return C(int(self) - other)

    def __mul__(self, other: int) -> C:
        return C(int(self) * other)

    __rmul__ = __mul__

    def __neg__(self) -> C:
        return C(-int(self))

    def __truediv__(self, other: int) -> C:
        whole = abs(int(self)) // abs(int(other))
        return C(whole if (self < 0) == (other < 0) else -whole)

    def __mod__(self, other: int) -> C:
        return C(int(self) - int(self / other) * int(other))


def value_of(text: str, names: Mapping[str, int]) -> int:
    """What a C expression over whole numbers gives."""
    text = re.sub(r"\b(\d+)\b", r"C(\1)", text.replace("(int64_t)", ""))
    return int(eval(text, {"C": C, **{name: C(n) for name, n in names.items()}}))
