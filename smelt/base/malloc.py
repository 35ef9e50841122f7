"""Returns freed memory of the C library's heap to the system after a compilation.

glibc keeps freed memory that is not at the top of its heap. The many small objects of the compiler leave tens of MiB of
such memory, which would stay resident in addition to the memory of the program.
"""

from __future__ import annotations

import ctypes
import gc
import resource
from collections.abc import Callable
from typing import Any

import torch

MIN_TRIMMED_BYTES = 8 << 20
"""Minimum number of freed bytes for which the heap is trimmed."""


class _Counts(ctypes.Structure):
    """`struct mallinfo2` (malloc.h); `fordblks` is the number of free bytes in all arenas."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def _function(name: str, result: Any, *arguments: Any) -> Callable[..., Any] | None:
    found = getattr(ctypes.CDLL(None), name, None)
    if found is not None:
        found.restype, found.argtypes = result, arguments
    return found


_count = _function("mallinfo2", _Counts)
_trim = _function("malloc_trim", ctypes.c_int, ctypes.c_size_t)


def freed() -> int:
    """Number of free bytes of the heap; 0 if the C library has no `mallinfo2` (glibc before 2.33, others)."""
    return 0 if _count is None else int(_count().fordblks)


def resident() -> int:
    """Resident bytes of the process; 0 on systems other than Linux."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        return 0


class _Releasing:
    """Releases memory only if the process has grown since the last release: `fordblks` also counts released memory.

    Attributes:
        after: resident bytes of the process after the last release.
    """

    def __init__(self) -> None:
        self.after = 0

    def __call__(self) -> None:
        """Return free heap memory to the system, if it is at least MIN_TRIMMED_BYTES."""
        now = resident()
        grown = now >= self.after + MIN_TRIMMED_BYTES
        if _trim is not None and grown and freed() >= MIN_TRIMMED_BYTES:  # `freed` walks over all free pieces: ms
            _trim(0)
            self.after = resident()
        self.after = min(self.after, now)


_PAGE = resource.getpagesize()
release_freed = _Releasing()


RECYCLED: list[Callable[[], None]] = []
"""Functions that release memory which smelt keeps for reuse."""


def give_back() -> None:
    """Return all unused memory to the system and to the GPU driver; called when an allocation has failed."""
    gc.collect()
    for release in RECYCLED:
        release()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if _trim is not None:
        _trim(0)
