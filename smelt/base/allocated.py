"""The allocated size of a C++ object of torch's: a search for its fields must not read past its end."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable


def allocated_words(address: int, otherwise: int) -> int:
    """Machine words of the allocation at an address, the start of an object made by `new`.

    Args:
        otherwise: the result where the allocator has no such function (macOS).
    """
    usable = _usable_size()
    return (0 if usable is None else usable(address)) // 8 or otherwise


@functools.cache
def _usable_size() -> Callable[[int], int] | None:
    """`malloc_usable_size` of the C library; None where it has none."""
    try:
        usable = ctypes.CDLL(None).malloc_usable_size
    except (AttributeError, OSError):
        return None
    usable.restype, usable.argtypes = ctypes.c_size_t, (ctypes.c_void_p,)
    return usable
