"""Allocates the tensors that programs return from a heap that recycles memory (native/heap.c, native/fresh.c).

Outputs, saved activations and gradients must be fresh tensors, because users and autograd keep them. malloc returns
blocks of that size to the system when they are freed, so each step of training touches new pages: an eager step of
BERT-base (batch 4x64) takes 70,000 page faults, 1.75 us each under virtualisation. In this heap a freed block (the last
reference to its storage was dropped, on any thread) is reused, merged with its free neighbours; pages are returned to
the system when less memory is needed (docs/decisions, "Outputs are recycled"). The functions of `fresh` take a third of
the time of `torch.empty_strided`.

A storage can be resized like one of torch's own allocator, which then allocates the new memory; see `offer_resizing`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from smelt.base import torch_c
from smelt.base.malloc import RECYCLED
from smelt.runtime import _native
from smelt.runtime.native_layout import words_of_storage

Maker = Callable[[], torch.Tensor]

_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6  # DLPack's type codes
_CODES: dict[torch.dtype, int] = {
    torch.int8: _INT, torch.int16: _INT, torch.int32: _INT, torch.int64: _INT,
    torch.uint8: _UINT, torch.uint16: _UINT, torch.uint32: _UINT, torch.uint64: _UINT,
    torch.float16: _FLOAT, torch.float32: _FLOAT, torch.float64: _FLOAT, torch.bfloat16: _BFLOAT,
    torch.complex64: _COMPLEX, torch.complex128: _COMPLEX, torch.bool: _BOOL,
}  # fmt: skip
_MAX_RANK = 16
_BITS = {
    torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64,
    torch.float16: torch.int16, torch.bfloat16: torch.int16,
}  # fmt: skip
"""Types as which tensors are copied, instead of types that torch copies one tensor at a time or through float32 (which
changes NaNs).
"""


def fresh(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device | None = None) -> Maker:
    """Returns a function without arguments that makes uninitialised tensors with this shape, stride and dtype.

    Args:
        shape, stride: shape and strides in elements; elements must not overlap.
        device: None for the CPU. Tensors of a GPU come from PyTorch's allocator, which recycles memory itself.
    """
    shape, stride = tuple(shape), tuple(stride)
    if device is not None and device.type != "cpu":
        return functools.partial(torch_c.empty_strided, shape, stride, dtype=dtype, device=device)
    code = _CODES.get(dtype)
    if not RECYCLING or code is None or len(shape) > _MAX_RANK or 0 in shape:
        return lambda: torch_c.empty_strided(shape, stride, dtype=dtype)
    otherwise = functools.partial(torch_c.empty_strided, shape, stride, dtype=dtype, device="cpu")
    return _native.Fresh(shape, stride, code, dtype.itemsize * 8, otherwise)


def type_code(dtype: torch.dtype) -> int | None:
    """Returns DLPack's code of the dtype; None if tensors of it are not exchanged."""
    return _CODES.get(dtype)


_makers: dict[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], Maker] = {}


def empty_strided(
    shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: torch.device | None = None
) -> torch.Tensor:
    """Returns the tensor of `fresh(shape, stride, dtype, device)()`, with a cache of makers for callers that cannot
    keep one.
    """
    if device is not None and device.type != "cpu":
        return torch_c.empty_strided(shape, stride, dtype=dtype, device=device)
    maker = _makers.get((shape, stride, dtype))
    if maker is None:
        maker = _makers[shape, stride, dtype] = fresh(shape, stride, dtype)
    return maker()


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy each source to its target of the same shape and type, bit for bit, with few launches."""
    torch._foreach_copy_([_bits(t) for t in targets], [_bits(t) for t in sources])


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor viewed as integers of its size, if torch would not copy its type unchanged and together with
    others.
    """
    if tensor.dtype in _BITS:
        return tensor.view(_BITS[tensor.dtype])
    return tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 and tensor.dtype.is_floating_point else tensor


def trim() -> None:
    """Return the memory of freed outputs to the system."""
    _native.heap_trim()


RECYCLED.append(trim)


def recycle(wanted: bool) -> None:
    """Choose whether new makers use the heap (the default) or PyTorch's allocator, whose allocations a profiler
    sees.
    """
    global RECYCLING
    RECYCLING = wanted and _works()


def report() -> dict[str, int]:
    """Returns the bytes `live` (in use), `peak` (since the heap's last check), `resident` (kept mapped), and the number
    of `trims`.
    """
    return _native.heap_report()


def _works() -> bool:
    """Whether torch wraps and frees a block of the heap as expected."""
    if not _native.fresh_init(torch.Tensor):
        return False
    before = report()["live"]
    tensor = _native.Fresh((3, 5), (1, 3), _FLOAT, 32, None)()
    good = tensor.dtype is torch.float32 and tensor.stride() == (1, 3) and tuple(tensor.shape) == (3, 5)
    good = good and type(tensor) is torch.Tensor and not tensor.requires_grad and report()["live"] > before
    del tensor
    return good and report()["live"] == before


def offer_resizing() -> bool:
    """Make `resize_` work on tensors of the heap; returns False if that failed. Without this, torch refuses it for
    exchanged memory.

    No layout of torch is assumed: a search finds the fields that torch's own storages have in common and the heap's
    storages lack, and the result is tried on a tensor. Call it after data pointers are read without a Python call.
    """
    if not RECYCLING:
        return False
    sizes = (3, 50, 4000)
    plain = [torch_c.empty_strided((n,), (1,), dtype=torch.float32, device="cpu") for n in sizes]
    own = [_native.Fresh((n,), (1,), _FLOAT, 32, None)() for n in sizes]
    rows = [[words_of_storage(t) for t in each] for each in (plain, own)]
    count = min(len(row) for each in rows for row in each)
    found = _search_marks([[row[:count] for row in each] for each in rows], _cleared_by_export(plain[-1]))
    if found is None:
        return False
    _native.fresh_resizable(*found)
    if _can_be_resized():
        return True
    _native.fresh_resizable(0, 0, 0)
    return False


def _cleared_by_export(tensor: torch.Tensor) -> set[int] | None:
    """Returns the offsets of bytes in a storage that change from 1 to 0 when NumPy gets its memory, as the resizable
    flag does; None without NumPy.

    Padding between fields has arbitrary values and may look like a flag by chance.
    """
    before = words_of_storage(tensor)
    try:
        tensor.numpy()
    except RuntimeError:
        return None
    changed = zip(before, words_of_storage(tensor), strict=True)
    bits = {8 * word + byte: (a ^ b) >> 8 * byte & 255 for word, (a, b) in enumerate(changed) for byte in range(8)}
    return {at for at, bit in bits.items() if bit == 1}


def _search_marks(rows: list[list[list[int]]], cleared: set[int] | None) -> tuple[int, int, int] | None:
    """Returns (word of the allocator, byte of the flag, the allocator), found after the size: set only in torch's own
    storages. None if not found.
    """
    theirs, ours = ([*zip(*each, strict=True)] for each in rows)
    first = 1 + next((word for word, values in enumerate(theirs) if values == (12, 200, 16000)), len(theirs))
    words = range(first, len(theirs))
    allocators = [w for w in words if len({*theirs[w]}) == 1 and theirs[w][0] > 1 << 20 and not any(ours[w])]
    flags = _search_flags(theirs, ours, words, cleared)
    if len(flags) != 1 or len(allocators) != 1:
        return None
    return allocators[0], flags[0], theirs[allocators[0]][0]


def _search_flags(
    theirs: list[tuple[int, ...]], ours: list[tuple[int, ...]], words: range, cleared: set[int] | None
) -> list[int]:
    among = [8 * word + byte for word in words for byte in range(8)]

    def always(values: tuple[int, ...], at: int, wanted: int) -> bool:
        return all(value >> 8 * (at % 8) & 255 == wanted for value in values)

    found = [at for at in among if always(theirs[at // 8], at, 1) and always(ours[at // 8], at, 0)]
    return found if cleared is None else [at for at in found if at in cleared]


def _can_be_resized() -> bool:
    before = report()["live"]
    tensor = _native.Fresh((3, 5), (5, 1), _FLOAT, 32, None)()
    if not tensor.untyped_storage().resizable():
        return False
    tensor.fill_(2.0)
    tensor.resize_(40, 10)
    good = tensor.view(-1)[:15].eq(2.0).all().item() and report()["live"] == before
    tensor.untyped_storage().resize_(0)
    return bool(good) and tensor.untyped_storage().nbytes() == 0


RECYCLING: bool = _works()
"""Whether makers use the heap; False on a torch without DLPack's exchange table, where they call `empty_strided`."""
