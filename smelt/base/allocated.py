"""The allocated size of a C++ object of torch, so that a search for one of its fields does not read past its end."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable


def allocated_words(address: int, otherwise: int) -> int:
    """Number of machine words of the allocation at `address`, which is the start of an object made by `new`.

    Args:
        otherwise: the result if the C library has no `malloc_usable_size` (macOS).
    """
    usable = _usable_size()
    return (0 if usable is None else usable(address)) // 8 or otherwise


@functools.cache
def _usable_size() -> Callable[[int], int] | None:
    """The function `malloc_usable_size` of the C library; None if the library does not have it."""
    try:
        usable = ctypes.CDLL(None).malloc_usable_size
    except (AttributeError, OSError):
        return None
    usable.restype, usable.argtypes = ctypes.c_size_t, (ctypes.c_void_p,)
    return usable
