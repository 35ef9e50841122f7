"""Check for infinite iterators that C code would exhaust in an arm of a branch on a tensor's value.

Both arms are captured, including one that the program may never run, and C code must not loop endlessly there.
"""

from __future__ import annotations

import collections
import itertools
import operator
from collections.abc import Callable

from smelt.capture.core.breaks import Break
from smelt.capture.core.interface import Args

_EXHAUSTING = frozenset(
    {list, tuple, set, frozenset, dict, collections.deque, sum, sorted, min, max}
    | {list.extend, set.update, dict.update, dict.fromkeys, str.join, bytes.join, collections.deque.extend}
)


def refuse_endless(fn: Callable[..., object], args: Args) -> None:
    """Check the arguments that C code is about to exhaust in an arm of a branch.

    Raises:
        Break: one of them is infinite.
    """
    if any(map(_is_endless, args)) and _exhausts(fn):
        raise Break(f"{fn.__name__}() of an iterator without end", "it is in one arm of a branch")


def _exhausts(fn: Callable[..., object]) -> bool:
    owner = getattr(fn, "__self__", None)
    return fn in _EXHAUSTING or getattr(type(owner), fn.__name__, None) in _EXHAUSTING


def _is_endless(value: object) -> bool:
    kind = type(value)
    if kind is itertools.count or kind is itertools.cycle:
        return True
    if kind is itertools.repeat:
        return operator.length_hint(value, -1) < 0
    if kind is map or kind is zip:
        given = value.__reduce__()[1][kind is map :]
        return bool(given) and all(map(_is_endless, given))
    return (kind is filter or kind is enumerate) and _is_endless(value.__reduce__()[1][kind is filter])
