"""What residual code calls to make values of the frame again.

It imports nothing of capture: a process that loads an artefact runs this, and captures nothing.
"""

from __future__ import annotations

import collections
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol


def ordered_fill(target: collections.OrderedDict[object, object], pairs: dict[object, object]) -> None:
    """Fill an ordered dict, or one of a class of the program, whose own methods are not called."""
    store = collections.OrderedDict.__setitem__
    for key, value in pairs.items():
        store(target, key, value)


def exhausted() -> Iterator[object]:
    """A generator that has nothing left."""
    nothing: tuple[object, ...] = ()
    out = (item for item in nothing)
    next(out, None)
    return out


class SetsState(Protocol):
    """An iterator of C code whose position can be set."""

    def __setstate__(self, state: object) -> None: ...


def set_state(value: SetsState, state: object) -> None:
    """Put an iterator of C code at its position; Python 3.12 warns of that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        value.__setstate__(state)


def used_up(view: Callable[[dict[object, object]], Iterable[object]] | None) -> Iterator[object]:
    """An iterator over this view of some dict, or over a set, that has nothing left."""
    out = iter(set() if view is None else view({}))
    next(out, None)
    return out


def remake_match(pattern: re.Pattern[str], string: str, start: int, end: int, spans: object) -> re.Match[str] | None:
    """The match of all groups at these positions, in a text or in bytes."""
    for way in (pattern.match, pattern.fullmatch):
        found = way(string, start, end)
        if found is not None and found.regs == spans:
            return found
    return next((found for found in pattern.finditer(string, start, end) if found.regs == spans), None)
