"""The memory that one running call of a program uses: its pointer table, its arena and ready-made views of the arena.

Workspaces are kept between calls, so a warm call allocates nothing for intermediates and touches no new pages. Two
threads in the same program get two workspaces.
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from smelt.runtime.launch import Table

ALIGN = 64

LARGE = 1 << 20
"""Bytes of an arena that is worth giving up."""


class Workspace:
    """One table, one arena (slot 0), views of it as tensors."""

    __slots__ = ("table", "arena", "views", "fault")

    def __init__(self, table: Table, arena: torch.Tensor | None, views: tuple[torch.Tensor, ...]) -> None:
        self.table, self.arena, self.views = table, arena, views
        self.fault = array("q", [0])


class Workspaces:
    """The pool of a program. `take()` and `give(workspace)` are safe from any thread (list operations are atomic).

    Args:
        slots: size of the table.
        arena: bytes of the arena.
        addresses: slot -> raw address (kernels), or a number that kernels take.
        constants: slot -> tensor that lives as long as the program.
        views: (byte offset, dtype, shape, stride in elements) of arena tensors.
        places: slot -> byte offset in the arena, of pointers into it.
        fault: slot of the word that kernels set when an index is out of range, 0 for none. A workspace whose word is
            set is not given back.
    """

    def __init__(
        self,
        slots: int,
        arena: int,
        addresses: Mapping[int, int],
        constants: Mapping[int, torch.Tensor],
        views: Sequence[tuple[int, torch.dtype, Sequence[int], Sequence[int]]],
        places: Mapping[int, int] | None = None,
        fault: int = 0,
    ) -> None:
        self.fault, self.places = fault, dict(places or {})
        self.slots, self.bytes = slots, arena
        self.addresses, self.constants, self.views = dict(addresses), dict(constants), list(views)
        self.free: list[Workspace] = []
        self.give = self.free.append
        self._first = True
        _pools.add(self)

    def take(self) -> Workspace:
        """A workspace that nobody else uses."""
        try:
            return self.free.pop()
        except IndexError:
            return self._make()

    def _make(self) -> Workspace:
        if self._first and self.bytes >= LARGE:
            self._make_room()
        self._first = False
        table: Any = Table(self.slots)
        arena = None
        if self.bytes:
            block = torch.empty(self.bytes + ALIGN, dtype=torch.uint8)
            start = -block.data_ptr() % ALIGN
            arena = block[start : start + self.bytes]
            table.bind(0, arena)
            for slot, offset in self.places.items():
                table.set(slot, arena.data_ptr() + offset)
        for slot, address in self.addresses.items():
            table.set(slot, address)
        for slot, tensor in self.constants.items():
            table.bind(slot, tensor)
        workspace = Workspace(table, arena, tuple(_view(arena, *view) for view in self.views))
        if self.fault:
            table.set(self.fault, workspace.fault.buffer_info()[0])
        return workspace

    def _make_room(self) -> None:
        """A program runs for the first time: idle arenas of others may belong to versions that nobody calls any more.

        Those that are called again make theirs anew, once.
        """
        for pool in list(_pools):
            if pool is not self and pool.bytes >= LARGE:
                pool.free.clear()


_pools: weakref.WeakSet[Workspaces] = weakref.WeakSet()


def _view(
    arena: torch.Tensor | None, offset: int, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int]
) -> torch.Tensor:
    assert arena is not None
    if 0 in shape:
        return torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype)
    last = sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    raw = arena[offset : offset + (last + 1) * dtype.itemsize].view(dtype)
    return raw.as_strided(tuple(shape), tuple(stride))
