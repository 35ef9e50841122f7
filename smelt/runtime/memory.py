"""Where the tensors that programs return come from: a heap that recycles their memory (native/heap.c, native/fresh.c).

Outputs, saved activations and gradients must be fresh tensors, because users and autograd keep them. malloc returns
blocks of that size to the system when they are freed, so each step of training touches new pages: an eager step of
BERT-base (batch 4x64) takes 70,000 page faults, 1.75 us each under virtualisation. Here a freed block (the last
reference to its storage is gone, on any thread) is used again, merged with its free neighbours; pages go back to the
system when the need shrinks (docs/decisions, "Outputs are recycled"). A maker costs a third of `torch.empty_strided`.

What differs from a tensor of torch's own allocator: its storage cannot be grown by `resize_`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from smelt.base import torch_c
from smelt.runtime import _native

Maker = Callable[[], torch.Tensor]

_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6  # DLPack's type codes
_CODES: dict[torch.dtype, int] = {
    torch.int8: _INT, torch.int16: _INT, torch.int32: _INT, torch.int64: _INT,
    torch.uint8: _UINT, torch.uint16: _UINT, torch.uint32: _UINT, torch.uint64: _UINT,
    torch.float16: _FLOAT, torch.float32: _FLOAT, torch.float64: _FLOAT, torch.bfloat16: _BFLOAT,
    torch.complex64: _COMPLEX, torch.complex128: _COMPLEX, torch.bool: _BOOL,
}  # fmt: skip
_MAX_RANK = 16


def fresh(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device | None = None) -> Maker:
    """A function without arguments that makes uninitialised tensors of this kind.

    Args:
        shape, stride: in elements; strides must not overlap elements.
        device: None for the CPU. A GPU's come from PyTorch's allocator, which recycles by itself.
    """
    shape, stride = tuple(shape), tuple(stride)
    if device is not None and device.type != "cpu":
        return functools.partial(torch_c.empty_strided, shape, stride, dtype=dtype, device=device)
    code = _CODES.get(dtype)
    if not RECYCLING or code is None or len(shape) > _MAX_RANK or 0 in shape:
        return lambda: torch_c.empty_strided(shape, stride, dtype=dtype)
    return _native.Fresh(shape, stride, code, dtype.itemsize * 8)


def type_code(dtype: torch.dtype) -> int | None:
    """DLPack's code of the dtype; None if tensors of it are not exchanged."""
    return _CODES.get(dtype)


_makers: dict[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], Maker] = {}


def empty_strided(
    shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: torch.device | None = None
) -> torch.Tensor:
    """`fresh(shape, stride, dtype, device)()` with the maker remembered: for callers that cannot keep one."""
    if device is not None and device.type != "cpu":
        return torch_c.empty_strided(shape, stride, dtype=dtype, device=device)
    maker = _makers.get((shape, stride, dtype))
    if maker is None:
        maker = _makers[shape, stride, dtype] = fresh(shape, stride, dtype)
    return maker()


def trim() -> None:
    """Give the memory of freed outputs back to the system."""
    _native.heap_trim()


def recycle(wanted: bool) -> None:
    """Whether makers made from now on use the heap (the default), or PyTorch's allocator, which a profiler sees."""
    global RECYCLING
    RECYCLING = wanted and _works()


def report() -> dict[str, int]:
    """Bytes `live` (in use), `peak` (most in use since the last check), `resident` (kept); the number of `trims`."""
    return _native.heap_report()


def _works() -> bool:
    """Whether torch wraps and frees a block of the heap as expected."""
    if not _native.fresh_init(torch.Tensor):
        return False
    before = report()["live"]
    tensor = _native.Fresh((3, 5), (1, 3), _FLOAT, 32)()
    good = tensor.dtype is torch.float32 and tensor.stride() == (1, 3) and tuple(tensor.shape) == (3, 5)
    good = good and type(tensor) is torch.Tensor and not tensor.requires_grad and report()["live"] > before
    del tensor
    return good and report()["live"] == before


RECYCLING: bool = _works()
"""False on a torch without DLPack's exchange table: then makers call `torch.empty_strided`."""
