"""Makes access to the address of a tensor without memory raise an error, also in C++, instead of returning 0.

torch raises an error for a tensor that has elements but no memory. A tensor of symbolic sizes is made from an empty
tensor, and PyTorch does not update the field with its number of elements: C++ code that calls `const_data_ptr`
(recurrent layers read `batch_sizes`, for instance) gets the address 0 and crashes the process. This module sets the
field to 1. Other code does not read it: the number of elements of such a tensor is computed from its symbolic sizes.
"""

from __future__ import annotations

import ctypes
import functools

import torch

from smelt.base.allocated import allocated_words
from smelt.base.default_device import without_default_device
from smelt.base.torch_c import implementation_address, refuse_writes

_WORDS = 22  # size of a TensorImpl in the supported versions of torch, if the allocator does not report it


def refuse_address(tensor: torch.Tensor, symbolic: bool) -> None:
    """Make reads and writes of the tensor's memory raise an error that `wants_memory` recognizes."""
    refuse_writes(tensor)
    offset = _count_offset() if symbolic else None
    if offset is not None:
        number = ctypes.c_int64.from_address(implementation_address(tensor) + offset)
        if number.value == 0:
            number.value = 1


@functools.cache
@without_default_device()
def _count_offset() -> int | None:
    """Byte offset of the field with the number of elements in a TensorImpl; None if it is not found."""
    tensors = [torch.empty(3, 2647), torch.empty(7, 11, 13), torch.empty(0, 5), torch.empty(2, 0, 9), torch.empty(())]
    addresses = [implementation_address(tensor) for tensor in tensors]
    words = min(allocated_words(address, _WORDS) for address in addresses)
    rows = [(ctypes.c_int64 * words).from_address(address) for address in addresses]
    found = [at for at in range(words) if all(row[at] == t.numel() for row, t in zip(rows, tensors, strict=True))]
    return 8 * found[0] if len(found) == 1 else None
