"""Workspaces: views lie where they should, addresses and constants are in the table, threads never share one."""

import torch

from smelt.runtime.launch import data_ptr
from smelt.runtime.workspace import ALIGN, LARGE, Workspaces


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


def test_a_program_that_begins_takes_the_idle_arenas_of_others():
    first, second, small = (Workspaces(2, size, {}, {}, []) for size in (LARGE, LARGE, 64))
    for pool in (small, first):
        pool.give(pool.take())
    assert first.free and small.free
    second.give(second.take())
    assert not first.free and second.free and small.free
    first.give(first.take())
    assert first.free and second.free
