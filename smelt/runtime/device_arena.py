"""Memory of intermediates on a GPU: one arena for each device and stream, shared by all programs that run there.

Kernels of one stream run in order, so the next program may use the arena while kernels of the last one are still
queued. Its size is the maximum that a program needs. Threads that share a stream interleave their kernels, so an arena
belongs to one call at a time, and a call that finds no free arena makes another. Recorded CUDA graphs keep addresses:
all recordings of a device, whose replays are serialised, share an arena that lives as long as they do. Buffers for a
recording's inputs are at its end, if there is room, since they are dead after the replay. An unrecorded call borrows
that arena if its kernels run after those of the last replay; nothing is replayed meanwhile.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from smelt.abi.arena import extent
from smelt.base import torch_c
from smelt.base.locks import new_lock
from smelt.runtime.launch import read_fast

if TYPE_CHECKING:
    from smelt.runtime.workspace import Workspace

ALIGN = 512
"""Alignment in bytes, equal to that of PyTorch's allocator."""


class Arena:
    """A block of device memory, and the idle workspaces of programs on it, by number of the program.

    A workspace in use references its arena and is not in the arena's dictionary, so that there is no reference cycle:
    dropping the owner frees the memory at once.
    """

    __slots__ = ("block", "stream", "workspaces", "__weakref__")

    def __init__(self, block: torch.Tensor, stream: int) -> None:
        self.block, self.stream = block, stream
        self.workspaces: dict[int, Workspace] = {}


class Borrowed(Arena):
    """The arena of recordings, borrowed by an unrecorded call: nothing is replayed until the call is done.

    Args:
        replaying: the lock that every replay takes.
    """

    __slots__ = ("replaying",)

    def __init__(self, shared: Arena, stream: int, replaying: threading.Lock) -> None:
        self.block, self.stream, self.workspaces = shared.block, stream, shared.workspaces
        self.replaying: threading.Lock | None = replaying

    def done(self) -> None:
        """Release the lock, so that replays may run."""
        replaying, self.replaying = self.replaying, None
        if replaying is not None:
            replaying.release()

    __del__ = done  # a call that failed has not released the lock


class Lent:
    """The arena of recordings, lent to a thread that records.

    `end`: bytes that programs may use; `free`: whether no program is using it.
    """

    __slots__ = ("thread", "block", "end", "free")

    def __init__(self, thread: int, block: torch.Tensor) -> None:
        self.thread, self.block, self.end, self.free = thread, block, block.numel(), True


class Arenas:
    """The free arenas of one device, by stream.

    Args:
        stream: returns the address of the current stream.
        recording: returns whether it is being recorded.
        allocate: allocates a number of bytes on the device.
    """

    def __init__(
        self,
        stream: Callable[[], int],
        recording: Callable[[], bool],
        allocate: Callable[[int], torch.Tensor],
    ) -> None:
        self.stream, self.recording, self.allocate = stream, recording, allocate
        self.free: dict[int, list[Arena]] = {}
        self.lock = new_lock()
        self.shared: Callable[[], Arena | None] = lambda: None  # a weak reference to the arena of recordings
        self.replaying: threading.Lock | None = None
        self.last_replay: Callable[[], int | None] = lambda: None  # returns the stream of the last replay
        self.lent: Lent | None = None
        self.most = 0  # maximum bytes that unrecorded calls have taken at once since this was last set to 0

    def take(self, size: int) -> Arena:
        """Returns an unused arena of at least `size` bytes."""
        stream = self.stream()
        if self.recording():
            lent = self.lent
            if lent is not None and lent.free and lent.thread == threading.get_ident() and lent.end >= size:
                lent.free = False
                return Arena(lent.block, stream)
            return Arena(self.allocate(size), stream)  # recorded by the user's program, or nested in another call
        self.most = max(self.most, size)
        borrowed = self.borrow(size, stream)
        if borrowed is not None:
            return borrowed
        arenas = self.free.get(stream)
        try:
            arena = arenas.pop() if arenas else None
        except IndexError:  # another thread took the last one
            arena = None
        if arena is not None and arena.block.numel() >= size:
            return arena
        del arena  # freed first, so that the larger one may reuse its memory
        return Arena(self.allocate(size), stream)

    def borrow(self, size: int, stream: int) -> Arena | None:
        """Returns the arena of recordings, if it is large enough and unused until this stream's next kernels; else
        None.
        """
        shared, replaying = self.shared(), self.replaying
        if shared is None or shared.block.numel() < size or replaying is None or not replaying.acquire(blocking=False):
            return None
        if self.last_replay() != stream or self.shared() is not shared:
            replaying.release()
            return None
        return Borrowed(shared, stream, replaying)

    def give(self, arena: Arena) -> None:
        """Return an arena for later calls on its stream."""
        if isinstance(arena, Borrowed):
            arena.done()
        elif self.recording():
            lent = self.lent
            if lent is not None and lent.block is arena.block:
                lent.free = True
        else:
            self.free.setdefault(arena.stream, []).append(arena)

    @contextmanager
    def lend(self, give_back: Callable[[], None]) -> Iterator[Arena | None]:
        """Lend the arena of recordings to this thread, whose recorded calls use it until the context ends.

        The recording must keep it alive. Its size is that of the arenas of the unrecorded calls before, which are
        returned to PyTorch's allocator.

        Args:
            give_back: releases unused memory of the allocator.
        """
        known = self.shared()
        size = max((arena.block.numel() for arenas in list(self.free.values()) for arena in arenas), default=0)
        self.release()
        give_back()
        if size > (known.block.numel() if known is not None else 0):
            known = Arena(self.allocate(size), 0)
            self.shared = weakref.ref(known)
        self.lent = None if known is None else Lent(threading.get_ident(), known.block)
        try:
            yield known
        finally:
            self.lent = None

    def at_end_of_arena(self, tensor: torch.Tensor, room: int) -> torch.Tensor | None:
        """Returns uninitialised memory like a tensor's at the end of the lent arena; None if it does not fit.

        Args:
            room: bytes of the arena that the recorded program needs.
        """
        lent = self.lent
        if lent is None or lent.thread != threading.get_ident():
            return None
        size = extent(tensor.shape, tensor.stride()) * tensor.dtype.itemsize
        start = (lent.end - size) // ALIGN * ALIGN
        if not tensor.numel() or start < room:
            return None
        raw = lent.block[start : start + size].view(tensor.dtype)
        lent.end = start
        return raw.as_strided(tensor.shape, tensor.stride())

    def forget(self, program: int) -> None:
        """Drop the workspaces of a program that was freed."""
        for arenas in list(self.free.values()):
            for arena in list(arenas):
                arena.workspaces.pop(program, None)
        shared = self.shared()
        if shared is not None:
            shared.workspaces.pop(program, None)

    def release(self) -> None:
        """Return all free arenas to PyTorch's allocator."""
        self.free.clear()


@functools.cache
def device_arenas(device: torch.device) -> Arenas:
    """Returns the arenas of a CUDA device with an index."""
    current = torch_c.current_raw_stream
    assert current is not None and device.index is not None
    read_fast(device)
    return Arenas(
        functools.partial(current, device.index),
        torch.cuda.is_current_stream_capturing,
        functools.partial(_bytes, device),
    )


def _bytes(device: torch.device, size: int) -> torch.Tensor:
    return torch_c.empty_strided((size,), (1,), dtype=torch.uint8, device=device)
