"""The recycling heap: blocks come back, do not overlap, survive threads, and pages are given back when need shrinks."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading

import pytest
import torch

from smelt.runtime import _native, launch, memory
from smelt.runtime.memory import fresh, report, trim

MB = 1 << 20


def test_recycling_is_on() -> None:
    assert memory.RECYCLING


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8]
)
def test_kind_of_tensor(dtype: torch.dtype) -> None:
    for shape, stride in (((3, 4), (4, 1)), ((2, 3, 4), (1, 8, 2)), ((), ()), ((0, 3), (3, 1)), ((5,), (1,))):
        tensor = fresh(shape, stride, dtype)()
        assert (tuple(tensor.shape), tensor.stride(), tensor.dtype) == (shape, stride, dtype)
        assert type(tensor) is torch.Tensor and tensor.is_leaf and not tensor.requires_grad
        assert tensor.data_ptr() % 64 == 0
        tensor.zero_()
        assert torch.equal(tensor, torch.zeros_like(tensor))


def test_kind_without_a_dlpack_code_still_works() -> None:
    tensor = fresh((4,), (1,), torch.float8_e4m3fn)()
    assert tensor.dtype is torch.float8_e4m3fn


def test_freed_memory_is_used_again() -> None:
    make = fresh((1000, 1000), (1000, 1), torch.float32)
    first = make()
    address = first.data_ptr()
    kept = first[10:20]
    del first
    second = make()
    assert second.data_ptr() != address  # a view still uses the block
    del kept
    third = make()
    assert third.data_ptr() == address


def test_gradients_and_saved_tensors_keep_their_block() -> None:
    make = fresh((64,), (1,), torch.float32)
    x = make().fill_(3.0).requires_grad_()
    y = (x * x).sum()
    y.backward()
    assert torch.equal(x.grad, torch.full((64,), 6.0))


def test_live_blocks_never_overlap() -> None:
    generator = random.Random(0)
    gc.collect()  # what other tests left
    before = report()["live"]
    alive: dict[int, tuple[torch.Tensor, int]] = {}
    for turn in range(3000):
        if alive and generator.random() < 0.48:
            tensor, value = alive.pop(generator.choice(list(alive)))
            assert bool((tensor == value).all())
        else:
            size = int(2 ** generator.uniform(0, 16))
            tensor = fresh((size,), (1,), torch.int32)()
            tensor.fill_(turn)
            alive[turn] = (tensor, turn)
    for tensor, value in alive.values():
        assert bool((tensor == value).all())
    alive.clear()
    del tensor
    gc.collect()
    assert report()["live"] == before


def test_neighbours_merge() -> None:
    trim()
    quarter, whole = fresh((MB,), (1,), torch.uint8), fresh((4 * MB,), (1,), torch.uint8)
    parts = [quarter() for _ in range(6)]
    guard = quarter()
    resident = report()["resident"]
    del parts[1:5]
    big = whole()  # does not fit in four blocks less their headers, so it may extend; five are enough
    del big, parts
    big = whole()
    assert report()["resident"] <= resident + 5 * MB
    assert big.numel() == 4 * MB and guard.numel() == MB


def test_threads() -> None:
    failures: list[int] = []

    def work(seed: int) -> None:
        make = fresh((5000 + seed,), (1,), torch.int64)
        for turn in range(300):
            tensors = [make().fill_(seed * 1000 + turn) for _ in range(4)]
            if not all(bool((t == seed * 1000 + turn).all()) for t in tensors):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_pages_go_back_when_the_need_shrinks() -> None:
    trim()
    large, small = fresh((300 * MB,), (1,), torch.uint8), fresh((MB,), (1,), torch.uint8)
    guard = small()  # above it the heap would dissolve into unused range
    tensor = large()
    del tensor
    assert report()["resident"] >= 300 * MB
    trims = report()["trims"]
    for _ in range(3000):
        small()
    assert report()["trims"] > trims
    assert report()["resident"] < 100 * MB
    assert guard.numel() == MB


def test_trim_keeps_live_data() -> None:
    make = fresh((MB,), (1,), torch.uint8)
    tensors = [make().fill_(i) for i in range(8)]
    del tensors[::2]
    trim()
    assert [int(t[0]) for t in tensors] == [1, 3, 5, 7] and all(bool((t == t[0]).all()) for t in tensors)
    again = make().fill_(9)
    assert bool((again == 9).all())


def test_bad_arguments() -> None:
    with pytest.raises(ValueError):
        _native.Fresh((2, 3), (1,), 2, 32, None)
    with pytest.raises(ValueError):
        _native.Fresh((1,) * 20, (1,) * 20, 2, 32, None)
    with pytest.raises(TypeError):
        _native.Fresh((2,), (1,), 2, 32, None)(3)


def test_remembered_makers() -> None:
    first = memory.empty_strided((4, 5), (5, 1), torch.float32)
    second = memory.empty_strided((4, 5), (5, 1), dtype=torch.float32)
    assert first.data_ptr() != second.data_ptr() and second.stride() == (5, 1)


def test_tensors_of_another_device() -> None:
    meta = torch.device("meta")
    kind = ((2, 3), (1, 2), torch.float16, meta)
    for tensor in (fresh(*kind)(), memory.empty_strided(*kind)):
        assert (tensor.device, tensor.dtype, tensor.stride()) == (meta, torch.float16, (1, 2))
    assert memory.empty_strided((3,), (1,), torch.float32, torch.device("cpu")).device.type == "cpu"


def test_addresses_are_taken_as_they_are_used() -> None:
    """A limit on address space leaves nearly all of it to the program."""
    code = """
import re, torch, smelt
size = lambda: int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024
before = size()
f = smelt.compile(lambda x: (x * 2).relu())
for _ in range(3):
    f(torch.randn(1000, 1000, requires_grad=True)).sum().backward()
print(size() - before)
"""
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # a CUDA context takes gigabytes of them
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert int(done.stdout) < 1000


@pytest.mark.skipif(not launch.RESIZABLE, reason="this torch makes storages in another way")
@pytest.mark.parametrize("size", [1, 5, 5000, 100_000])
def test_results_can_be_resized(size: int) -> None:
    before = memory.report()["live"]
    made = [memory.empty_strided((size,), (1,), torch.float32).fill_(2.0) for _ in range(4)]
    grown, shrunk, freed, out = made
    grown.resize_(3 * size)
    assert grown[:size].eq(2.0).all() and grown.untyped_storage().nbytes() == 12 * size
    grown[size:] = 1.0
    shrunk.resize_(1)
    assert shrunk.tolist() == [2.0]
    freed.untyped_storage().resize_(0)
    assert freed.untyped_storage().nbytes() == 0
    torch.add(torch.ones(2 * size), 1, out=out.resize_(0))
    assert out.tolist() == [2.0] * (2 * size)
    del made, grown, shrunk, freed, out
    gc.collect()
    assert memory.report()["live"] == before


def test_padding_that_looks_like_a_flag_is_distinguished() -> None:
    theirs = [[size, 1 << 40, 0x01_00000000, 0x100] for size in (12, 200, 16000)]  # word 2: what lay in the padding
    ours = [[size, 0, 0x65_00000000, 0] for size in (12, 200, 16000)]
    assert memory._search_marks([theirs, ours], None) is None
    assert memory._search_marks([theirs, ours], {8 * 3 + 1}) == (1, 8 * 3 + 1, 1 << 40)


def test_export_to_numpy_clears_one_byte() -> None:
    tensor = torch.empty(4000)
    cleared = memory._cleared_by_export(tensor)
    assert cleared is not None and len(cleared) == 1 and not tensor.untyped_storage().resizable()
