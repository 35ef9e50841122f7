"""The memory of tensors, read by whoever asks for its address: the graph ends there, the real tensor is asked."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy
import pytest
import torch

import smelt
from smelt.graph.trace.trace import TraceTensor, trace_like


def by_address(y: torch.Tensor) -> float:
    return float((ctypes.c_float * y.numel()).from_address(y.data_ptr())[1])


def by_storage(y: torch.Tensor) -> float:
    start = y.untyped_storage().data_ptr() + 4 * y.storage_offset()
    return float(ctypes.c_float.from_address(start + 4).value)


READS: dict[str, Callable[[torch.Tensor], float]] = {
    "address": by_address,
    "storage": by_storage,
    "numpy": lambda y: float(numpy.asarray(y)[1]),
    "DLPack": lambda y: float(torch.from_dlpack(y)[1]),
    "capsule": lambda y: float(torch.utils.dlpack.from_dlpack(y.__dlpack__())[1]),
    "numpy by DLPack": lambda y: float(numpy.from_dlpack(y)[1]),
}


@pytest.mark.parametrize("name", READS)
def test_reads_by_address(name: str):
    read = READS[name]

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, float]:
        y = (x * 2)[1:]
        return y + 1, read(y)

    run = smelt.compile(fn)
    for start in (0, 5):
        x = torch.arange(start, start + 4.0)
        (got, value), (want, expected) = run(x), fn(x)
        assert torch.equal(got, want) and value == expected == 2 * (start + 2)


class Pair(ctypes.Structure):
    _fields_ = [("first", ctypes.c_int), ("second", ctypes.c_int)]  # noqa: RUF012


NUMBERS = (ctypes.c_int * 4)(1, 2, 3, 4)
WINDOWS: dict[str, Callable[[], object]] = {
    "from an address": lambda: (ctypes.c_int * 4).from_address(ctypes.addressof(NUMBERS))[0],
    "an item": lambda: NUMBERS[0],
    "a pointer": lambda: ctypes.cast(ctypes.addressof(NUMBERS), ctypes.POINTER(ctypes.c_int)).contents.value,
    "a list": lambda: list(NUMBERS),
    "a loop": lambda: [n for n in NUMBERS],  # noqa: C416
    "a sum": lambda: sum(NUMBERS),
    "bytes": lambda: bytes(NUMBERS),
    "a field": lambda: Pair.from_buffer(NUMBERS).first,
    "a field of another": lambda: PAIR.first,
    "numpy": lambda: float(numpy.ctypeslib.as_array(NUMBERS)[0]),
}
PAIR = Pair.from_buffer(NUMBERS)


@pytest.mark.parametrize("name", WINDOWS)
def test_memory_read_through_ctypes_is_read_at_each_call(name: str):
    read = WINDOWS[name]
    run = smelt.compile(lambda x: (x + 1, read()))
    for value in (1, 7, 9):
        NUMBERS[0] = value
        assert run(torch.zeros(1))[1] == read()


def test_a_stand_in_gives_no_address():
    """Not 0, which C code would read from: an error, from which capture learns that the graph ends."""
    x = trace_like(torch.zeros(4), requires_grad=False)
    assert type(x) is TraceTensor
    with pytest.raises(RuntimeError, match="values"):
        x.data_ptr()
    with pytest.raises(RuntimeError, match="data pointer"):
        torch.Tensor.data_ptr(x)
    with pytest.raises(RuntimeError):
        numpy.from_dlpack(x)
