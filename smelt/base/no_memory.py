"""Tensors without memory whose address cannot be taken: access raises, also in C++, instead of returning 0.

torch raises for a tensor whose number of elements is not 0 and whose memory is not there. A tensor of symbolic sizes is
made of an empty one, whose number of elements PyTorch never writes again: C++ code that reads through `const_data_ptr`
(recurrent layers read `batch_sizes`, for instance) is given 0 and ends the process. So the number is set here. Nothing
reads it otherwise: the size of such a tensor is asked of its symbolic sizes.
"""

from __future__ import annotations

import ctypes
import functools

import torch

from smelt.base.allocated import allocated_words
from smelt.base.default_device import without_default_device
from smelt.base.torch_c import implementation_address, refuse_writes

_WORDS = 22  # of a TensorImpl in the torch of the supported range, where the allocator does not tell


def refuse_address(tensor: torch.Tensor, symbolic: bool) -> None:
    """Have reads and writes of the tensor's memory raise an error that `wants_memory` knows."""
    refuse_writes(tensor)
    offset = _count_offset() if symbolic else None
    if offset is not None:
        number = ctypes.c_int64.from_address(implementation_address(tensor) + offset)
        if number.value == 0:
            number.value = 1


@functools.cache
@without_default_device()
def _count_offset() -> int | None:
    """The byte offset of the number of elements in a TensorImpl; None where that is not found."""
    tensors = [torch.empty(3, 2647), torch.empty(7, 11, 13), torch.empty(0, 5), torch.empty(2, 0, 9), torch.empty(())]
    addresses = [implementation_address(tensor) for tensor in tensors]
    words = min(allocated_words(address, _WORDS) for address in addresses)
    rows = [(ctypes.c_int64 * words).from_address(address) for address in addresses]
    found = [at for at in range(words) if all(row[at] == t.numel() for row, t in zip(rows, tensors, strict=True))]
    return 8 * found[0] if len(found) == 1 else None
