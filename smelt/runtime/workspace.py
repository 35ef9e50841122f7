"""The memory of one running call of a program: its pointer table, its arena and prepared views of the arena.

Workspaces are kept between calls. On the CPU a small arena is kept with its workspace; a large one is borrowed from the
heap of outputs for each call, so that saved activations, gradients and the next program's arena reuse the memory. The
heap mostly returns the same address as before, for which table and views are prepared. Two threads in the same program
get two workspaces. On a GPU, programs share their arenas (device_arena.py).
"""

from __future__ import annotations

import ctypes
import itertools
import weakref
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from smelt.abi.arena import extent
from smelt.abi.device_checks import device_checks
from smelt.abi.faults import Checks, fault_error
from smelt.runtime.device_arena import Arena, Arenas, device_arenas
from smelt.runtime.launch import Table
from smelt.runtime.memory import fresh
from smelt.runtime.tuned import WORKSPACES

ALIGN = 64


class Workspace:
    """One table, one arena (slot 0), views of the arena as tensors, and on a CPU the fault word.

    Attributes:
        home: the shared arena on a GPU, else None.
        block: the memory of a borrowed arena, while it is borrowed. Table and views do not keep it alive.
        address: the address of that memory.
    """

    __slots__ = ("table", "arena", "views", "fault", "home", "block", "address")

    def __init__(self, table: Table, arena: torch.Tensor | None, views: tuple[torch.Tensor, ...], fault: Any) -> None:
        self.table, self.arena, self.views, self.fault = table, arena, views, fault
        self.home: Arena | None = None
        self.block: torch.Tensor | None = None
        self.address = 0


class Workspaces:
    """The workspaces of a program. `take()` and `give(workspace)` are safe from any thread (list operations are
    atomic).

    Args:
        slots: number of slots of the table.
        arena: number of bytes of the arena.
        addresses: by slot, the raw address of a kernel, or a number that kernels take.
        constants: by slot, a tensor that lives as long as the program.
        views: (byte offset, dtype, shape, stride in elements) of arena tensors.
        places: by slot, the byte offset in the arena, for slots that point into it (generated host programs use this
            name).
        fault: slot of the fault word, which kernels set when an index is out of range; 0: none. A workspace whose word
            is set is not reused. On a GPU, kernels write the number of a failed check to this slot's address, and trap
            (see device_checks.py).
        device: the device of the arena.
        checks: checks of launches on a GPU, in the order of their words at the address in the fault slot.
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
        device: torch.device | None = None,
        checks: Sequence[Checks] = (),
    ) -> None:
        self.fault, self.arena_offsets, self.checks = fault, dict(places or {}), checks
        self.check_words = 0
        self.slots, self.bytes = slots, arena
        self.addresses, self.constants, self.views = dict(addresses), dict(constants), list(views)
        self.free: list[Workspace] = []
        self.give: Callable[[Workspace], None] = self.free.append
        self.arenas: Arenas | None = None
        self.borrow: Callable[[], torch.Tensor] | None = None
        self.at: dict[int, Workspace] = {}
        if device is None or device.type == "cpu":
            if arena >= WORKSPACES.borrowed_bytes:
                self.borrow = fresh((arena,), (1,), torch.uint8)
                self.give = self._return
        else:
            self.arenas = device_arenas(device)
            self.number = next(_numbers)
            weakref.finalize(self, self.arenas.forget, self.number)
            if arena:
                self.give = self._give_back

    def take(self) -> Workspace:
        """Returns an unused workspace."""
        if self.borrow is not None:
            block = self.borrow()
            address = block.data_ptr()
            workspace = self.at.pop(address, None) or self._make(_borrowed(address, self.bytes))
            workspace.block, workspace.address = block, address
            return workspace
        if self.arenas is not None and self.bytes:
            return self._take_on_device(self.arenas)
        try:
            return self.free.pop()
        except IndexError:
            return self._make(self._new_arena() if self.bytes else None)

    def release(self, workspace: Workspace) -> None:
        """Release the arena before the call ends; the rest of the workspace stays in use."""
        workspace.block = None

    def _return(self, workspace: Workspace) -> None:
        workspace.block = None
        if len(self.at) >= WORKSPACES.addresses:
            self.at.clear()  # drop all workspaces: more addresses are rare, so no order of use is kept
        self.at[workspace.address] = workspace

    def _take_on_device(self, arenas: Arenas) -> Workspace:
        home = arenas.take(self.bytes)
        workspace = home.workspaces.pop(self.number, None) or self._make(home.block)
        workspace.home = home
        return workspace

    def _give_back(self, workspace: Workspace) -> None:
        home, workspace.home = workspace.home, None
        assert self.arenas is not None and home is not None
        home.workspaces[self.number] = workspace
        self.arenas.give(home)

    def refuse(self, workspace: Workspace) -> None:
        """Raise the error that the fault word of kernels on a CPU describes, and reset the word.

        Raises:
            IndexError: an index was out of range.
            RuntimeError: an integer was divided by 0.
        """
        word, workspace.fault[0] = workspace.fault[0], 0
        raise fault_error(word)

    def _new_arena(self) -> torch.Tensor:
        block = torch.empty(self.bytes + ALIGN, dtype=torch.uint8, device="cpu")
        start = -block.data_ptr() % ALIGN
        return block[start : start + self.bytes]

    def _make(self, arena: torch.Tensor | None) -> Workspace:
        table: Any = Table(self.slots)
        if arena is not None:
            table.bind(0, arena)
            for slot, offset in self.arena_offsets.items():
                table.set(slot, arena.data_ptr() + offset)
        for slot, address in self.addresses.items():
            table.set(slot, address)
        for slot, tensor in self.constants.items():
            table.bind(slot, tensor)
        fault: Any = None
        if self.fault and self.arenas is None:
            fault, address = _host_word()
            table.set(self.fault, address)
        elif self.fault:
            self.check_words = self.check_words or device_checks().reserve(self.checks)
            table.set(self.fault, self.check_words)
        return Workspace(table, arena, tuple(_view(arena, *view) for view in self.views), fault)


_numbers = itertools.count()


def _host_word() -> tuple[Any, int]:
    word = array("q", [0])
    return word, word.buffer_info()[0]


def _borrowed(address: int, size: int) -> torch.Tensor:
    """Returns the memory at an address as a tensor of bytes that does not own it."""
    return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=torch.uint8)


def _view(
    arena: torch.Tensor | None, offset: int, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int]
) -> torch.Tensor:
    assert arena is not None
    if 0 in shape:
        return torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype, device=arena.device)
    raw = arena[offset : offset + extent(shape, stride) * dtype.itemsize].view(dtype)
    return raw.as_strided(tuple(shape), tuple(stride))
