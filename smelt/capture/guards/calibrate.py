"""Finds the memory offsets of torch's tensor metadata, and the readers of ambient modes, for the C core.

The calibration runs once, before the first capture, in about 2 ms. It searches for each offset on tensors with known
metadata, and accepts it only if no other offset fits all of them. If an offset is not found, reads go through Python,
which is slower: `describe` for tensors, getters for modes.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from smelt.base import torch_c
from smelt.base.allocated import allocated_words
from smelt.base.default_device import without_default_device
from smelt.base.torch_private import address_of_storage, backward_hooks
from smelt.capture import _native

_IMPL_WORDS = 22  # size of a TensorImpl in supported versions of torch, if the allocator does not report it
_OBJECT_BYTES = torch.Tensor.__basicsize__ // 8 * 8  # the size of every tensor's Python object
_STORAGE_WORDS = 6  # size of a StorageImpl: header, counts, and the pointer to its memory with its deleter
_INLINE_DIMS = 5  # maximum number of dims whose sizes and strides are inside of a TensorImpl
_KIND_BYTES = 5  # dtype (2), device type (1), device index (1), "has a device" (1)

Facts = tuple[torch.dtype, torch.device, bool, int, bool, tuple[int, ...], tuple[int, ...] | None]


@dataclass(frozen=True)
class Calibration:
    """The result of the calibration. `None` and `False` mean that the reads go through Python."""

    tensors: dict[str, int] | None
    dispatch_keys: bool
    native_readers: tuple[str, ...]


@functools.cache
@without_default_device()
def calibrate() -> Calibration:
    """Set up the C core; later calls return the first result."""
    layout = _tensor_layout()
    _native.set_tensor_layout(torch.Tensor, describe, layout)
    return Calibration(layout, *_set_readers())


def describe(tensor: torch.Tensor) -> Facts:
    """(dtype, device, requires_grad, word of dispatch keys, plain, shape, stride or None) of a tensor, read in Python.

    `plain`: whether the TensorImpl stores sizes and strides, instead of a subclass that computes them in Python.
    """
    with torch_c.without_torch_function():
        strided = tensor.layout == torch.strided
        plain = strided and type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        stride = tuple(tensor.stride()) if strided else None
        keys = torch_c.dispatch_key_word(tensor)
        return tensor.dtype, tensor.device, tensor.requires_grad, keys, plain, tuple(tensor.shape), stride


# ------------------------------------------------------------------------------------------------- tensors


def _samples() -> list[torch.Tensor]:
    """Tensors that differ in every property whose offset is searched for."""
    base = torch.empty(2, 3, 7)
    with torch_c.inference_mode(True):
        inference = torch.empty(3)
    dtypes = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.bool)
    return [
        base, base[1], base.transpose(0, 2), base.expand(4, 2, 3, 7), torch.empty(()), torch.empty(0, 11), inference,
        torch.empty(2, 3, 4, 5, 6), torch.empty(2, 1, 3, 2, 2, 4).transpose(1, 4), torch.empty(1, 2, 1, 3, 1, 2, 5, 1),
        torch.nn.Parameter(torch.empty(9, 2)), torch.empty(3, requires_grad=True), torch.empty(4, 4, device="meta"),
        torch.empty(5, device="meta", dtype=torch.int64), torch.empty(3, dtype=torch.complex64).conj(),
        *(torch.empty(13, 2, dtype=dtype) for dtype in dtypes),
    ]  # fmt: skip


def _tensor_layout() -> dict[str, int] | None:
    """The offsets for `_native.set_tensor_layout`; None if one of them was not found or is wrong for a sample."""
    requires_grad = _address("libc10", "_ZNK3c1010TensorImpl13requires_gradEv")
    if not requires_grad or struct.calcsize("P") != 8:
        return None
    samples = _samples()
    bodies = _bodies(samples)
    heads = [ctypes.string_at(id(t), _OBJECT_BYTES) for t in samples]
    try:
        kind = _only(at for at in range(0, len(bodies[0]) - 8, 2) if _is_kind(at, samples, bodies))
        layout = {
            "impl": _word_equal(heads, [torch_c.implementation_address(t) for t in samples]),
            "keys": _word_equal(bodies, [torch_c.dispatch_key_word(t) for t in samples]),
            "dims": _only(
                at
                for at in range(0, len(bodies[0]) - 8 * (2 * _INLINE_DIMS + 1) + 8, 8)
                if all(_is_shape(at, t, body) for t, body in zip(samples, bodies, strict=True))
            ),
            "kind": kind,
            "kind_mask": (1 << 8 * _KIND_BYTES) - 1,
            "requires_grad": requires_grad,
            "storage": 0,
            "storage_offset": 0,
            "data": 0,
            "hooks": 0,
            "late_hooks": 0,
            "gradients": 0,
        }
    except LookupError:
        return None
    layout |= _storage_layout() | _hooks_layout() | _gradients_layout()
    _native.set_tensor_layout(torch.Tensor, describe, layout)
    return layout if _agrees(samples) else None


def _bodies(tensors: list[torch.Tensor]) -> list[bytes]:
    """The bytes of each TensorImpl, cut to the size of the smallest of their allocations."""
    return _memories([torch_c.implementation_address(t) for t in tensors], _IMPL_WORDS)


def _memories(addresses: list[int], words: int) -> list[bytes]:
    """The bytes of objects of one C++ class at these addresses; `words` is their size if the allocator does not report
    it."""
    size = 8 * min(allocated_words(address, words) for address in addresses)
    return [ctypes.string_at(address, size) for address in addresses]


def _storage_layout() -> dict[str, int]:
    """The offsets that lead to a tensor's memory; empty if not found, so that Python checks memory."""
    base = torch.empty(5, 7, 3)
    foreign = torch.frombuffer(bytearray(96), dtype=torch.float32)  # the deleter's context is a separate allocation
    samples = [base, base[1], base[3, 5:], foreign, foreign[17:], torch.empty(11, device="meta")[4:]]
    bodies = _bodies(samples)
    storages = [t.untyped_storage() for t in samples]
    memories = _memories([address_of_storage(storage) for storage in storages], _STORAGE_WORDS)
    try:
        return {
            "storage": _word_equal(bodies, [address_of_storage(storage) for storage in storages]),
            "storage_offset": _word_equal(bodies, [int(t.storage_offset()) for t in samples]),
            "data": _word_equal(memories, [storage.data_ptr() for storage in storages]),
        }
    except LookupError:
        return {}


def _hooks_layout() -> dict[str, int]:
    """The offsets of a tensor's gradient hooks in its Python object; empty if not found."""
    samples = [torch.nn.Parameter(torch.empty(2)) for _ in range(2)]
    for parameter in samples:
        parameter.register_hook(_no_hook)
        parameter.register_post_accumulate_grad_hook(_no_hook)
    heads = [ctypes.string_at(id(parameter), _OBJECT_BYTES) for parameter in samples]
    try:
        return {
            "hooks": _word_equal(heads, [id(backward_hooks(parameter)) for parameter in samples]),
            "late_hooks": _word_equal(heads, [id(parameter._post_accumulate_grad_hooks) for parameter in samples]),
        }
    except (LookupError, AttributeError):
        return {}


def _gradients_layout() -> dict[str, int]:
    """The offset of the pointer to autograd's metadata: a word that is nonzero only for tensors that require gradients,
    and distinct for each of them. Empty if not found."""
    samples = [torch.empty(3, 1), torch.empty(2, requires_grad=True), torch.nn.Parameter(torch.empty(3, 1))]
    without, *leaves = _bodies(samples)
    offsets = [at for at in range(0, len(without), 8) if not _word(without, at)]
    found = [at for at in offsets if len({_word(leaf, at) for leaf in leaves} - {0}) == len(leaves)]
    return {"gradients": found[0]} if len(found) == 1 else {}


def _no_hook(_: torch.Tensor) -> None: ...


def _agrees(samples: list[torch.Tensor]) -> bool:
    """Whether the spec of each sample, with raw reads, matches exactly the samples that have equal metadata in
    Python."""
    specs = [_native.TensorSpec(t) for t in samples]
    facts = [(type(t), *describe(t)) for t in samples]
    return all(
        spec.raw and spec.matches(t) == (mine == other)
        for spec, mine in zip(specs, facts, strict=True)
        for t, other in zip(samples, facts, strict=True)
    )


def _only(offsets: Iterable[int]) -> int:
    found = list(offsets)
    if len(found) != 1:
        raise LookupError(found)
    return found[0]


def _word(memory: bytes, at: int) -> int:
    return int.from_bytes(memory[at : at + 8], "little")


def _word_equal(memories: list[bytes], values: list[int]) -> int:
    """The byte offset of the only word that has the known value in every memory."""
    return _only(
        at
        for at in range(0, len(memories[0]), 8)
        if all(_word(memory, at) == value for memory, value in zip(memories, values, strict=True))
    )


def _is_shape(at: int, tensor: torch.Tensor, body: bytes) -> bool:
    """Whether the number of dims is at offset `at`, followed by sizes and strides (or by a pointer to them)."""
    ndim = tensor.dim()
    if _word(body, at) != ndim:
        return False
    inline = ndim <= _INLINE_DIMS
    if inline:
        memory, second = body[at + 8 :], _INLINE_DIMS
    else:
        memory, second = _pointed(_word(body, at + 8), 16 * ndim), ndim
    numbers = struct.unpack_from(f"<{len(memory) // 8}q", memory)
    return numbers[:ndim] == tuple(tensor.shape) and numbers[second : second + ndim] == tensor.stride()


def _pointed(address: int, size: int) -> bytes:
    """The sizes and strides of a tensor with many dims, in the allocation at this address."""
    return ctypes.string_at(address, size)


def _is_kind(at: int, samples: list[torch.Tensor], bodies: list[bytes]) -> bool:
    """Whether the two bytes at offset `at` map one-to-one to the samples' dtypes, and the next three to their
    devices."""
    dtypes = _one_to_one((t.dtype, body[at : at + 2]) for t, body in zip(samples, bodies, strict=True))
    return dtypes and _one_to_one(
        (t.device, body[at + 2 : at + _KIND_BYTES]) for t, body in zip(samples, bodies, strict=True)
    )


def _one_to_one(pairs: Iterable[tuple[Hashable, Hashable]]) -> bool:
    distinct = set(pairs)
    return len(distinct) == len({left for left, _ in distinct}) == len({right for _, right in distinct})


# ------------------------------------------------------------------------------------------------- ambient modes


@functools.cache
def _library(name: str) -> ctypes.CDLL | None:
    path = Path(torch.__file__).parent / "lib" / f"{name}.so"
    return ctypes.CDLL(str(path)) if path.exists() else None


def _address(library: str, symbol: str) -> int:
    """The address of an exported function of one of torch's libraries; 0 if it does not exist."""
    try:
        return ctypes.cast(getattr(_library(library), symbol), ctypes.c_void_p).value or 0
    except AttributeError:
        return 0


@dataclass(frozen=True)
class _Reader:
    """One ambient mode, with the Python function that reads it, and the C++ function, if any, that C calls instead."""

    name: str
    function: Callable[[], Any]
    library: str = ""
    symbol: str = ""
    argument: int = 0
    result_bytes: int = 1

    def native(self) -> tuple[str, Callable[[], Any], int, int, int]:
        address = _address(self.library, self.symbol) if self.symbol else 0
        return self.name, self.function, address, self.argument, self.result_bytes

    def plain(self) -> tuple[str, Callable[[], Any], int, int, int]:
        return self.name, self.function, 0, 0, 1


_AUTOCAST = "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE"
_AUTOCAST_DTYPE = "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE"
_READERS = (
    _Reader("grad mode", torch.is_grad_enabled, "libc10", "_ZN3c108GradMode10is_enabledEv"),
    _Reader("inference mode", torch.is_inference_mode_enabled, "libc10", "_ZN3c1013InferenceMode10is_enabledEv"),
    _Reader("autocast on cpu", lambda: torch.is_autocast_enabled("cpu"), "libtorch_cpu", _AUTOCAST, 0),
    _Reader("autocast on cuda", lambda: torch.is_autocast_enabled("cuda"), "libtorch_cpu", _AUTOCAST, 1),
    _Reader("autocast dtype on cpu", lambda: torch.get_autocast_dtype("cpu"), "libtorch_cpu", _AUTOCAST_DTYPE, 0),
    _Reader("autocast dtype on cuda", lambda: torch.get_autocast_dtype("cuda"), "libtorch_cpu", _AUTOCAST_DTYPE, 1),
    _Reader("default dtype", torch.get_default_dtype, "libc10", "_ZN3c1031get_default_dtype_as_scalartypeEv"),
    _Reader("deterministic algorithms", torch_c.deterministic_algorithms),
    _Reader("filled memory", torch_c.fills_new_memory),
    _Reader(
        "torch function modes", torch_c.torch_function_modes,
        "libtorch_cpu", "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv", 0, 8,
    ),
    _Reader("forward-mode derivatives", torch_c.forward_ad_level),
    _Reader("torch function enabled", torch_c.torch_function_enabled),
    _Reader(
        "dispatch modes", torch_c.dispatch_modes, "libc10", "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv", 0, 8
    ),
    _Reader("warn always", torch_c.warns_always, "libc10", "_ZN3c1012WarningUtils14get_warnAlwaysEv"),
)  # fmt: skip
"""The readers of all ambient modes. Arguments for devices are numbers of c10::DeviceType (0 CPU, 1 CUDA)."""

_TRANSFORM = _Reader("torch.func transform", lambda: torch_c.transform_on_top() is not None)
"""The reader for the transform mode, needed only if the dispatch keys, which include this mode, are not readable."""


def _set_readers() -> tuple[bool, tuple[str, ...]]:
    """Install the verified readers; returns (whether the dispatch keys are readable, names of the modes that C
    reads)."""
    library = _library("libc10")
    readable = _native.set_state_readers((), library._name if library is not None else None) and _keys_agree()
    path = library._name if library is not None and readable else None
    native = {reader.name for reader in _READERS if reader.native()[2]} - _disagreeing()
    chosen = [reader.native() if reader.name in native else reader.plain() for reader in _READERS]
    if not readable:
        chosen.append(_TRANSFORM.plain())
    _native.set_state_readers(tuple(chosen), path)
    return readable, tuple(sorted(native))


_MODES: tuple[Callable[[], Any], ...] = (
    torch.enable_grad,
    torch.no_grad,
    torch.inference_mode,
    lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    lambda: torch.autocast("cpu", dtype=torch.float16),
)
"""Context managers under which C's and Python's reads are compared; they change no process-wide settings."""


def _keys_agree() -> bool:
    """Whether the raw words of dispatch keys, xor those that Python reads, are the same constants in every mode: torch
    stores them as differences from defaults."""
    constants = set()
    for mode in _MODES:
        with mode():
            words = struct.unpack("<QQ", _native.state()[-1])
            constants.add(tuple(a ^ b for a, b in zip(words, torch_c.local_dispatch_keys(), strict=True)))
    return len(constants) == 1


def _disagreeing() -> set[str]:
    """Names of the readers whose results in C and in Python do not map one-to-one over the modes."""
    readers = [reader for reader in _READERS if reader.native()[2]]
    _native.set_state_readers(tuple(reader.native() for reader in readers), None)
    pairs: dict[str, set[tuple[Any, Any]]] = {reader.name: set() for reader in readers}
    for mode in _MODES:
        with mode():
            for reader, answer in zip(readers, _native.state(), strict=True):
                pairs[reader.name].add((answer, reader.function()))
    return {name for name, answers in pairs.items() if not _one_to_one(answers)}
