"""How large an object of torch's is: what looks for its fields must not read past its end."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable


def allocated_words(address: int, otherwise: int) -> int:
    """How many machine words belong to what lies at the address, the begin of an object made by `new`.

    Args:
        otherwise: where the allocator does not tell (macOS).
    """
    usable = _usable_size()
    return (0 if usable is None else usable(address)) // 8 or otherwise


@functools.cache
def _usable_size() -> Callable[[int], int] | None:
    """The allocator's function that tells; None where it has none."""
    try:
        usable = ctypes.CDLL(None).malloc_usable_size
    except (AttributeError, OSError):
        return None
    usable.restype, usable.argtypes = ctypes.c_size_t, (ctypes.c_void_p,)
    return usable
