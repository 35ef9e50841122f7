"""Workspaces of a GPU, on memory of the CPU: who shares an arena with whom, and when one goes away."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from smelt.abi.device_checks import DeviceChecks
from smelt.abi.faults import CHECK_BYTES, OUT_OF_RANGE, Check
from smelt.runtime import workspace as workspaces
from smelt.runtime.device_arena import Arenas
from smelt.runtime.launch import data_ptr
from smelt.runtime.workspace import Workspaces

DEVICE = torch.device("cuda", 0)


class Device:
    """Streams and recordings as the test says."""

    def __init__(self) -> None:
        self.stream, self.recording = 1, False
        self.blocks: list[weakref.ref[torch.Tensor]] = []
        self.given_back: list[list[int]] = []
        self.arenas = Arenas(lambda: self.stream, lambda: self.recording, self.allocate)

    def allocate(self, size: int) -> torch.Tensor:
        block = torch.zeros(size, dtype=torch.uint8)
        self.blocks.append(weakref.ref(block))
        return block

    def give_back(self) -> None:
        self.given_back.append(self.sizes())

    def sizes(self) -> list[int]:
        """Of the blocks that live."""
        return [block.numel() for reference in self.blocks if (block := reference()) is not None]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    monkeypatch.setattr(workspaces, "device_arenas", lambda _: made.arenas)
    return made


def program(size: int = 4096, **more: Any) -> Workspaces:
    return Workspaces(3, size, {}, {}, [(64, torch.float32, (2, 3), (3, 1))] if size else [], device=DEVICE, **more)


def test_views_slots_and_offsets(device: Device) -> None:
    kept = torch.arange(3.0)
    pool = Workspaces(
        5, 4096, {3: 1234}, {4: kept}, [(64, torch.float32, (2, 3), (3, 1)), (0, torch.int64, (0,), (1,))],
        places={1: 512}, device=DEVICE,
    )  # fmt: skip
    workspace = pool.take()
    assert workspace.arena is not None
    base = workspace.arena.data_ptr()
    assert [workspace.table.get(slot) for slot in (0, 1, 3, 4)] == [base, base + 512, 1234, kept.data_ptr()]
    assert data_ptr(workspace.views[0]) == base + 64 and workspace.views[1].numel() == 0


def test_programs_share_one_arena_that_grows(device: Device) -> None:
    small, large = program(4096), program(8192)
    first = small.take()
    small.give(first)
    again = small.take()
    assert again is first
    small.give(again)
    del first, again
    wide = large.take()
    assert device.sizes() == [8192]  # the smaller one went before the larger one was made
    large.give(wide)
    narrow = small.take()
    assert narrow.table.get(0) == wide.table.get(0)
    small.give(narrow)
    assert large.take() is wide and device.sizes() == [8192]


def test_an_arena_in_use_is_not_shared(device: Device) -> None:
    one, two = program(), program()
    first, second, third = one.take(), one.take(), two.take()
    assert len({workspace.table.get(0) for workspace in (first, second, third)}) == 3
    two.give(third)
    one.give(second)
    one.give(first)
    assert one.take() is first


def test_streams_have_their_own(device: Device) -> None:
    pool = program()
    first = pool.take()
    device.stream = 2  # of another thread, say: where it was taken counts
    pool.give(first)
    second = pool.take()
    assert second.table.get(0) != first.table.get(0)
    pool.give(second)
    device.stream = 1
    assert pool.take() is first


def test_a_recording_has_its_own_each_time(device: Device) -> None:
    pool = program()
    plain = pool.take()
    pool.give(plain)
    device.recording = True
    first = pool.take()
    assert first is not plain
    pool.give(first)
    second = pool.take()
    assert second is not first
    pool.give(second)
    del first, second
    assert device.sizes() == [4096]  # what was recorded is in the recording's pool
    device.recording = False
    assert pool.take() is plain


def test_recordings_share_an_arena(device: Device) -> None:
    small, large = program(4096), program(8192)
    for pool in (small, large):
        pool.give(pool.take())
    with device.arenas.lend(device.give_back) as shared:
        assert shared is not None and device.sizes() == [8192]  # plain calls have none until they need it
        assert device.given_back == [[]]  # theirs are gone by then, and the new one is not yet there
        block = shared.block
        device.recording = True
        first, inside = large.take(), small.take()
        assert first.table.get(0) == block.data_ptr() != inside.table.get(0)
        small.give(inside)
        large.give(first)
        again = small.take()  # part of the same recording
        assert again.table.get(0) == block.data_ptr()
        small.give(again)
        with ThreadPoolExecutor(1) as threads:  # who records a graph of his own, which is replayed whenever he likes
            other = threads.submit(small.take).result()
        assert other.table.get(0) != block.data_ptr()
        device.recording = False
    with device.arenas.lend(device.give_back) as same:
        assert same is shared
    device.recording = True
    alone = small.take()
    assert alone.table.get(0) != block.data_ptr()  # no recording of ours
    small.give(alone)
    device.recording = False
    huge = program(1 << 16)
    huge.give(huge.take())
    with device.arenas.lend(device.give_back) as larger:
        assert larger is not None and larger.block.numel() == 1 << 16
    del first, inside, again, other, alone, huge, same
    assert device.sizes() == [8192, 1 << 16]
    del block, shared, larger
    assert device.sizes() == []  # it lives as long as recordings keep it
    with device.arenas.lend(device.give_back) as none:
        assert none is None


def test_buffers_for_inputs_are_at_the_end_of_the_arena_of_recordings(device: Device) -> None:
    arenas, pool, tensor = device.arenas, program(4096), torch.zeros(6, 100).t()[10:]
    assert arenas.at_end_of_arena(tensor, 0) is None  # nothing is recorded
    arenas.most = 0
    pool.give(pool.take())
    assert arenas.most == 4096
    program(1 << 14).take()
    assert arenas.most == 1 << 14
    large = program(1 << 14)
    large.give(large.take())
    with arenas.lend(device.give_back) as shared:
        assert shared is not None
        base = shared.block.data_ptr()
        first, second = (
            arenas.at_end_of_arena(tensor, 4096),
            arenas.at_end_of_arena(torch.zeros(3, dtype=torch.int64), 4096),
        )
        assert first is not None and second is not None
        assert first.stride() == tensor.stride() and first.dtype is torch.float32 and first.shape == tensor.shape
        assert second.data_ptr() == base + (1 << 14) - 2560 - 512 and (first.data_ptr() - base) % 512 == 0
        assert arenas.at_end_of_arena(torch.zeros(2400), 4096) is None  # they would lie over the program's arena
        assert arenas.at_end_of_arena(torch.zeros(0, 5), 4096) is None
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(arenas.at_end_of_arena, torch.zeros(3), 0).result() is None
        device.recording = True
        inside = pool.take()
        assert inside.table.get(0) == base
        pool.give(inside)
        assert large.take().table.get(0) != base  # it would write over the buffers
        device.recording = False


def test_calls_without_a_recording_borrow_the_arena_of_recordings(device: Device) -> None:
    pool, other, large = program(), program(), program(1 << 16)
    pool.give(pool.take())
    with device.arenas.lend(device.give_back) as shared:
        pass
    assert shared is not None
    replaying = device.arenas.replaying = threading.Lock()
    assert pool.take().table.get(0) != shared.block.data_ptr()  # nothing was replayed yet: on which stream will it be?
    device.arenas.last_replay = lambda: 1
    first = pool.take()
    assert first.table.get(0) == shared.block.data_ptr() and replaying.locked()
    inside = other.take()  # a call within, or another thread's
    assert inside.table.get(0) != shared.block.data_ptr()
    other.give(inside)
    pool.give(first)
    assert not replaying.locked() and pool.take() is first  # and stays taken
    pool.give(first)
    assert large.take().table.get(0) != shared.block.data_ptr()
    device.stream = 2  # its kernels may come before the last replay's
    assert pool.take().table.get(0) != shared.block.data_ptr()
    device.stream = 1
    with replaying:
        assert pool.take().table.get(0) != shared.block.data_ptr()
    del first
    failed = pool.take()
    assert replaying.locked()
    del failed
    assert not replaying.locked()
    del shared, pool
    gc.collect()
    assert device.arenas.shared() is None


def test_a_call_that_fails_loses_its_arena_at_once(device: Device) -> None:
    pool = program()
    gc.disable()
    try:
        workspace = pool.take()
        del workspace
        assert device.sizes() == []
    finally:
        gc.enable()
    pool.give(pool.take())
    assert device.sizes() == [4096]


def test_a_program_that_goes_leaves_nothing_on_the_arena(device: Device) -> None:
    pool, other = program(), program()
    pool.give(pool.take())
    other.give(other.take())
    (arena,) = device.arenas.free[1]
    assert len(arena.workspaces) == 2
    del pool
    gc.collect()
    assert list(arena.workspaces) == [other.number]


def test_release(device: Device) -> None:
    pool = program()
    pool.give(pool.take())
    device.arenas.release()
    assert device.sizes() == []
    pool.give(pool.take())


def test_without_an_arena(device: Device) -> None:
    pool = program(0)
    first, second = pool.take(), pool.take()
    assert first is not second and not device.blocks
    pool.give(first)
    assert pool.take() is first


def test_each_program_has_its_own_fault_slots(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    made = DeviceChecks(lambda words: torch.zeros(words, dtype=torch.int64))
    monkeypatch.setattr(workspaces, "device_checks", lambda: made)
    launches = [("k", (Check(OUT_OF_RANGE, "gather"),)), ("l", (Check(OUT_OF_RANGE, "index"),))]
    one, two = program(fault=2, checks=launches), program(0, fault=2, checks=launches[1:])
    first, again, second = one.take(), one.take(), two.take()
    assert first.table.get(2) == again.table.get(2) and second.table.get(2) == first.table.get(2) + 2 * CHECK_BYTES
    del one, first, again
    gc.collect()
    assert program(0, fault=2, checks=launches).take().table.get(2) == second.table.get(2) + CHECK_BYTES


def test_a_fault_on_the_cpu_is_raised_once() -> None:
    pool = Workspaces(2, 0, {}, {}, [], fault=1)
    workspace = pool.take()
    workspace.fault[0] = 1
    with pytest.raises(IndexError):
        pool.refuse(workspace)
    assert not workspace.fault[0]
