"""Refuses results that are larger than the memory, as eager's allocation would fail at that line.

Compiled code stores few of its values, so it would not allocate such a result, but compute it element by element for
hours. A result of at most `MAX_MEMORY_MULTIPLE` times the memory is still computed: that takes minutes.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from smelt.base.errors import Unsupported
from smelt.graph.ir.meta import TensorMeta
from smelt.graph.ir.storage_view import Layout
from smelt.shapes.size import Size, symbols
from smelt.shapes.unbacked import is_unbacked

MAX_MEMORY_MULTIPLE = 64
"""Maximum number of bytes of a computed value that is not stored, as a multiple of the memory."""
ALWAYS_COMPUTED_BYTES = 2**40
"""Number of bytes below which results are always computed."""


class NoRoom(Unsupported):
    """Raised for a result that is larger than the memory."""

    def __init__(self, val: TensorMeta) -> None:
        self.val = val
        super().__init__(f"a result of {val.nbytes} bytes", why="eager asks for so much memory, and is refused")

    def of_eager(self) -> Exception | None:
        """Returns the error of eager's allocator, or None if it succeeds; the memory is not written."""
        try:
            with _disable_current_modes():
                torch.empty(int(self.val.numel), dtype=self.val.dtype, device=self.val.device)
        except RuntimeError as error:
            return error.with_traceback(None)
        return None


@functools.cache
def most_bytes(device: torch.device) -> int:
    """Returns the bytes of the largest result that may be computed on a device without being stored."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if device.type == "cuda" and torch.cuda.is_available():
        memory = max(memory, torch.cuda.get_device_properties(device).total_memory)
    return max(ALWAYS_COMPUTED_BYTES, MAX_MEMORY_MULTIPLE * memory)


def require_memory(answer: Any) -> None:
    """Check the sizes of an operator's new results.

    Symbolic sizes are checked if they are numbers of the program: for sizes of input tensors memory exists.

    Raises:
        NoRoom: one of the results is too large.
    """
    if isinstance(answer, (list, tuple)):
        for each in answer:
            require_memory(each)
    elif type(answer) is Layout and isinstance(answer.val, TensorMeta):
        val, size = answer.val, answer.val.nbytes
        if isinstance(size, Size):
            if any(symbol.wide for symbol in symbols(size)) and not is_unbacked(size):
                if size > most_bytes(val.device):
                    raise NoRoom(val)
        elif size >= ALWAYS_COMPUTED_BYTES and size > most_bytes(val.device):
            raise NoRoom(val)
