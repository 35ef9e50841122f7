"""The counters of `functools.lru_cache`, from which the calls that capture itself makes are subtracted."""

from __future__ import annotations

import ctypes
import functools
from typing import TypeAlias

Cache: TypeAlias = "functools._lru_cache_wrapper[object]"


def subtract_calls(cache: Cache, hits: int = 0, misses: int = 0) -> None:
    """Subtract the calls that a capture made from a cache's counters: the program's own call is counted when it runs.

    The counters are fields of a C object and have no setter, so their offsets in the object are determined with a cache
    whose counters are known. If they cannot be determined, as in another implementation of Python, the counters stay
    unchanged.
    """
    if type(cache) is not functools._lru_cache_wrapper:
        return
    offsets = _offsets()
    if offsets is None:
        return
    for offset, count in zip(offsets, (hits, misses), strict=True):
        ctypes.c_ssize_t.from_address(id(cache) + offset).value -= count


@functools.cache
def _offsets() -> tuple[int, int] | None:
    """The offsets of the hit and miss counters in the cache object, in bytes; None if they cannot be determined."""
    cache = functools.lru_cache(maxsize=None)(_same)
    found = []
    for turn in range(2):
        _call(cache, turn)
        info = cache.cache_info()
        found.append((_offsets_of(cache, info.hits), _offsets_of(cache, info.misses)))
    hits, misses = (first & second for first, second in zip(*found, strict=True))
    return (hits.pop(), misses.pop()) if len(hits) == len(misses) == 1 else None


def _call(cache: Cache, turn: int) -> None:
    """Make calls of the cache after which no other word of the cache object has the value of a counter."""
    for value in range(_MISSES[turn]):
        cache((turn, value))
    for _ in range(_HITS[turn]):
        cache((turn, 0))


def _offsets_of(cache: Cache, value: int) -> set[int]:
    step = ctypes.sizeof(ctypes.c_ssize_t)
    size = type(cache).__basicsize__
    return {at for at in range(0, size, step) if ctypes.c_ssize_t.from_address(id(cache) + at).value == value}


def _same(value: object) -> object:
    return value


_MISSES, _HITS = (37, 5), (101, 11)
