"""Workspaces: views lie where they should, addresses and constants are in the table, threads never share one."""

import pytest
import torch

from smelt.runtime import memory
from smelt.runtime.launch import data_ptr
from smelt.runtime.tuned import WORKSPACES
from smelt.runtime.workspace import ALIGN, Workspaces


def test_views_and_slots():
    kept = torch.arange(3.0)
    pool = Workspaces(
        5, 4096, {3: 1234}, {4: kept}, [(64, torch.float32, (2, 3), (3, 1)), (0, torch.int64, (0,), (1,))]
    )
    workspace = pool.take()
    base = workspace.table.get(0)
    assert base % ALIGN == 0
    assert data_ptr(workspace.views[0]) == base + 64
    assert workspace.views[0].shape == (2, 3) and workspace.views[1].numel() == 0
    assert workspace.table.get(3) == 1234
    assert workspace.table.get(4) == kept.data_ptr()


def test_pool_reuses_and_never_shares():
    pool = Workspaces(1, 128, {}, {}, [], fault=0)
    first = pool.take()
    second = pool.take()
    assert first is not second and first.table.get(0) != second.table.get(0)
    pool.give(first)
    assert pool.take() is first


def test_fault_word_is_reachable():
    pool = Workspaces(2, 0, {}, {}, [], fault=1)
    workspace = pool.take()
    assert workspace.table.get(1) == workspace.fault.buffer_info()[0]


def large(views=()):
    return Workspaces(2, WORKSPACES.borrowed_bytes, {1: 77}, {}, list(views))


@pytest.mark.skipif(not memory.RECYCLING, reason="the heap that counts bytes is off")
def test_a_large_arena_is_borrowed_for_the_call():
    pool, other = large(), large()
    before = memory.report()["live"]
    first, second = pool.take(), other.take()
    assert first.table.get(0) != second.table.get(0) and first.table.get(0) % ALIGN == 0
    assert memory.report()["live"] >= before + 2 * WORKSPACES.borrowed_bytes
    pool.give(first)
    other.give(second)
    assert memory.report()["live"] == before


def test_at_the_same_address_the_workspace_is_ready():
    pool = large([(64, torch.float32, (2, 3), (3, 1))])
    first = pool.take()
    held = first.block
    pool.give(first)
    second = pool.take()  # the first one's block is still held: elsewhere
    assert second is not first and second.table.get(0) != held.data_ptr()
    assert data_ptr(second.views[0]) == second.table.get(0) + 64 and second.table.get(1) == 77
    pool.give(second)
    pool.borrow = lambda: held
    assert pool.take() is first


def test_few_addresses_are_kept():
    pool = large()
    blocks = []
    for _ in range(3 * WORKSPACES.addresses):
        workspace = pool.take()
        blocks.append(workspace.block)
        pool.give(workspace)
        assert 1 <= len(pool.at) <= WORKSPACES.addresses
    assert len({block.data_ptr() for block in blocks}) == 3 * WORKSPACES.addresses


def test_an_arena_of_a_call_that_failed_is_free():
    pool = large()
    before = memory.report()["live"]
    workspace = pool.take()
    del workspace
    assert memory.report()["live"] == before
