"""Unbacked numbers, known only from values of tensors: results of `.item()`, the count of true elements of a mask.

A graph continues with such a number as a symbol without an example. So no comparison of it may be decided by an
example: it is proved (from bounds given by `torch._check`), or it is refused, and the graph ends where the number was
read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from smelt.base.errors import Unsupported
from smelt.shapes.size import IntLike, Size, Symbol, lowest, symbols


@dataclass(frozen=True)
class Origin:
    """The position where a number is read.

    Attributes:
        step: the step of the capture at which the graph can end.
        at: the user's line as text.
    """

    step: int
    at: str


class DataDependent(Unsupported):
    """Raised for a comparison of an unbacked number that its bounds do not decide.

    Attributes:
        step: the step at which the graph has to end instead.
        names: the names of the numbers.
    """

    step = 0
    names: frozenset[str] = frozenset()


def numbers_in(value: Any) -> Iterator[Any]:
    """Yields the unbacked symbols and leaves in a Size or Real; repeats are possible."""
    if isinstance(value, Size):
        yield from (s for s in symbols(value) if s.origin is not None)
    elif hasattr(value, "compute"):
        if value.compute is None and value.origin is not None:
            yield value
        for arg in value.args:
            yield from numbers_in(arg)


def is_unbacked(*values: Any) -> bool:
    """Whether one of these values is known only when the compiled code runs."""
    return any(True for value in values for _ in numbers_in(value))


def data_dependent(comparison: str, among: Iterable[Any], at: str, hint: str) -> DataDependent:
    """Returns the error for a comparison that cannot be decided.

    Args:
        comparison: the comparison, as Python source over the names of symbols.
        among: the unbacked numbers in it; the graph ends where the last of them was read.
    """
    found = {number.name: number.origin for number in among}
    read = "; ".join(f"{name} is read at {origin.at}" for name, origin in found.items())
    error = DataDependent(
        f"{comparison} is asked of a data-dependent number",
        at=at or None,
        why=f"{f'{at} asks, and ' if at else ''}{read}",
        hint=hint,
    )
    error.step = max(origin.step for origin in found.values())
    error.names = frozenset(found)
    return error


def usually(value: IntLike, least: int, smallest: int = 1) -> bool:
    """Whether `value >= least` if every unbacked size is at least `smallest`. Adds no assumption."""
    numbers = [s for s in numbers_in(value) if 0 <= s.low < smallest]
    if not numbers:
        return False
    with at_least(smallest, numbers):
        low = lowest(value)
    return low is not None and low >= least


@contextmanager
def at_least(smallest: int, numbers: Collection[Symbol]) -> Iterator[None]:
    """A context in which these symbols are at least `smallest`."""
    before = [s.low for s in numbers]
    for symbol in numbers:
        symbol.low = max(symbol.low, smallest)
        symbol.owner.tightened += 1  # invalidates cached bounds
    try:
        yield
    finally:
        for symbol, low in zip(numbers, before, strict=True):
            symbol.low = low
            symbol.owner.tightened += 1


def may_be_empty(symbol: Symbol) -> bool:
    """Whether an unbacked size may be 0."""
    return symbol.origin is not None and symbol.low == 0


LOWEST = -(2**63)
"""Lowest value of a number that is read from a tensor."""
