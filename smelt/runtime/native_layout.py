"""Finds the offset of the data pointer in a tensor, for the native launcher, from tensors whose pointers are known.

The search runs once at import of `smelt.runtime.launch` (about 0.2 ms). Nothing is assumed about torch's layout: each
offset is searched for, then the whole reader is checked against `Tensor.data_ptr()` on tensors of many kinds. Any
disagreement leaves the documented slow path in place (one `data_ptr()` call per tensor, about 60 ns).
"""

from __future__ import annotations

import numpy as np
import torch

from smelt.base.allocated import allocated_words
from smelt.base.default_device import without_default_device
from smelt.base.torch_c import dispatch_key_word, implementation_address, inference_mode
from smelt.base.torch_private import address_of_storage
from smelt.runtime import _native

# number of words of a TensorImpl in supported versions of torch, if the allocator does not report its size
_IMPLEMENTATION_WORDS = 22
_STORAGE_WORDS = 7
_OBJECT_WORDS = torch.Tensor.__basicsize__ // 8
_MAX_KEYS = 8  # equal to the limit in native/tensor.c


_layout: tuple[tuple[int, ...], tuple[int, ...], int] | None = None


@without_default_device()
def calibrate() -> bool:
    """Find, set and check the layout; returns True if the fast path is enabled."""
    try:
        if _set(_search()) and _agrees(_samples(torch.device("cpu"))):
            return True
    except LookupError:
        pass
    _set(None)
    return False


def admit(device: torch.device) -> bool:
    """Enable the fast path for dense tensors of this device, which must be initialised; returns True on success."""
    before = _layout
    if before is None:
        return False
    words, keys, cow = before
    samples = _samples(device)
    added = {dispatch_key_word(tensor) for tensor in samples} - set(keys)
    if _set((words, (*keys, *added), cow)) and _agrees(samples):
        return True
    _set(before)
    return False


def _set(layout: tuple[tuple[int, ...], tuple[int, ...], int] | None) -> bool:
    global _layout
    words, keys, cow = layout or (None, (), 0)
    if len(keys) > _MAX_KEYS:
        return False
    _native.set_layout(words, cow, keys, torch.Tensor, torch.nn.Parameter, slow_data_ptr)
    _layout = layout
    return True


def slow_data_ptr(tensor: object) -> int:
    """Returns the data pointer of any dense tensor.

    Raises:
        TypeError: the object is not a tensor, or is a meta tensor or a lazy conjugate or negative view (whose memory
            has other values).
        RuntimeError: the tensor's memory was freed, for example by `untyped_storage().resize_(0)`.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a tensor, got {type(tensor).__name__}")
    if tensor.is_conj() or tensor.is_neg():
        raise TypeError("a lazy conjugate or negative view: call resolve_conj() or resolve_neg() first")
    if tensor.is_meta:
        raise TypeError("a meta tensor has no data")
    address = tensor.data_ptr()
    if address <= tensor.storage_offset() * tensor.itemsize and tensor.numel():
        raise RuntimeError(
            f"a tensor of {list(tensor.shape)} has no memory: its storage was freed or resized to nothing"
        )
    return address


def _search() -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Returns (word offsets), (plain dispatch key words), address of the copy-on-write deleter; raises LookupError if
    not found.
    """
    tensor = torch.empty(7, 5)
    moved = torch.empty(129)[113:]
    implementation = _find(_native.peek(tensor, _OBJECT_WORDS), implementation_address(tensor))
    body = _body(tensor)
    storage_address = address_of_storage(tensor.untyped_storage())
    storage_word = _find(body, storage_address)
    key = _find(body, dispatch_key_word(tensor))
    offset = _find(_body(moved), 113)
    if body[offset] != 0:
        raise LookupError("storage offset")
    storage = words_of_storage(tensor)
    data = _find(storage, tensor.data_ptr())
    deleter, cow = _search_deleter(data)
    with inference_mode(True):
        inference = torch.empty(3)
    keys = {dispatch_key_word(tensor), dispatch_key_word(inference)}
    return (implementation, key, storage_word, offset, data, deleter), tuple(keys), cow


def _body(tensor: torch.Tensor) -> list[int]:
    """Returns the words of a TensorImpl."""
    address = implementation_address(tensor)
    return _native.peek_at(address, allocated_words(address, _IMPLEMENTATION_WORDS))


def words_of_storage(tensor: torch.Tensor) -> list[int]:
    """Returns the words of a tensor's StorageImpl."""
    address = address_of_storage(tensor.untyped_storage())
    return _native.peek_at(address, allocated_words(address, _STORAGE_WORDS))


def _search_deleter(data: int) -> tuple[int, int]:
    """Returns the index and the value of the storage word that marks a copy-on-write storage: equal in plain storages,
    different in a lazy clone.
    """
    plain = [torch.empty(size) for size in (3, 50, 4000)]
    # making a lazy clone also converts its source
    lazy = [torch.ops.aten._lazy_clone(torch.empty(size)) for size in (5, 60)]
    words = [words_of_storage(t) for t in (*plain, *lazy)]
    for word in range(data + 1, min(map(len, words))):
        column = [row[word] for row in words]
        if len(set(column[:3])) == 1 and column[3] == column[4] != column[0]:
            return word, column[3]
    raise LookupError("copy-on-write deleter")


def _find(words: list[int], value: int) -> int:
    return words.index(value) if value in words else _missing(value)


def _missing(value: int) -> int:
    raise LookupError(hex(value))


def _samples(device: torch.device) -> list[torch.Tensor]:
    """Returns tensors of the kinds that programs use, without lazy views, which have different dispatch keys."""
    with inference_mode(True):
        inference = torch.ones(9, device=device)
    with inference_mode(False):
        base = torch.arange(240.0, device=device).reshape(2, 8, 15)
        return [
            base, base[1], base.transpose(0, 2), base.to(torch.bfloat16), base.to(torch.int64), base > 3,
            torch.nn.Parameter(base.clone()), (base.clone().requires_grad_() * 2), torch.ones((), device=device),
            torch.empty(0, device=device), torch.ones(4, dtype=torch.complex64, device=device), inference,
            base.expand(3, 2, 8, 15), torch.from_numpy(np.arange(12.0)),
        ]  # fmt: skip


def _agrees(tensors: list[torch.Tensor]) -> bool:
    return all(_native.data_ptr(tensor) == tensor.data_ptr() for tensor in tensors)
