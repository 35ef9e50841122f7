"""Results that are larger than any memory at hand: eager asks for it and is refused, at that line.

Compiled code stores few of its values, so it would not ask: it would compute such a one element by element, for hours.
A result that would fit into a machine some times as large is computed all the same: that takes minutes.
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

TIMES = 64
"""How much larger than the memory a value may be that nobody stores."""
SMALL = 2**40
"""Bytes that are no question."""


class NoRoom(Unsupported):
    """A result that no memory holds."""

    def __init__(self, val: TensorMeta) -> None:
        self.val = val
        super().__init__(f"a result of {val.nbytes} bytes", why="eager asks for so much memory, and is refused")

    def of_eager(self) -> Exception | None:
        """What eager's allocator says, if it refuses; nothing is written to what it gives."""
        try:
            with _disable_current_modes():
                torch.empty(int(self.val.numel), dtype=self.val.dtype, device=self.val.device)
        except RuntimeError as error:
            return error.with_traceback(None)
        return None


@functools.cache
def most_bytes(device: torch.device) -> int:
    """The bytes of the largest result that is computed on a device without being stored."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if device.type == "cuda" and torch.cuda.is_available():
        memory = max(memory, torch.cuda.get_device_properties(device).total_memory)
    return max(SMALL, TIMES * memory)


def expect_room(answer: Any) -> None:
    """Look at the results of an operator that makes new ones.

    Sizes that change are looked at where they are numbers of the program: those of tensors have memory behind them.

    Raises:
        NoRoom: one of them is too large.
    """
    if isinstance(answer, (list, tuple)):
        for each in answer:
            expect_room(each)
    elif type(answer) is Layout and isinstance(answer.val, TensorMeta):
        val, size = answer.val, answer.val.nbytes
        if isinstance(size, Size):
            if any(symbol.wide for symbol in symbols(size)) and not is_unbacked(size):
                if size > most_bytes(val.device):
                    raise NoRoom(val)
        elif size >= SMALL and size > most_bytes(val.device):
            raise NoRoom(val)
