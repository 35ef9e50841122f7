"""Memory of intermediates on a GPU: one arena for each device and stream, shared by all programs that run there.

Kernels of one stream run in order, so the next program may use the arena while kernels of the last one still wait for
it. It is as large as the largest of them needs. Threads that share a stream interleave their kernels: an arena belongs
to one call at a time, and a call that finds none free makes another. What a CUDA graph records keeps its addresses:
all recordings of a device, which are replayed one after the other, share an arena that lives as long as they do. What a
recording's inputs are copied to lies at its end, if there is room: nobody needs that after the replay. A call that runs
without borrows the arena, if its kernels come after those of the last replay; nothing is replayed meanwhile.
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
"""Bytes, as PyTorch's allocator aligns what it gives."""


class Arena:
    """A block of device memory, and the idle workspaces that programs have made on it, by number of the program.

    A workspace in use holds its arena and is not in the arena's dictionary: dropping the one that holds the other frees
    the memory at once.
    """

    __slots__ = ("block", "stream", "workspaces", "__weakref__")

    def __init__(self, block: torch.Tensor, stream: int) -> None:
        self.block, self.stream = block, stream
        self.workspaces: dict[int, Workspace] = {}


class Borrowed(Arena):
    """The arena of recordings in the hands of a call that runs without: nothing is replayed until it is done.

    Args:
        replaying: what every replay holds.
    """

    __slots__ = ("replaying",)

    def __init__(self, shared: Arena, stream: int, replaying: threading.Lock) -> None:
        self.block, self.stream, self.workspaces = shared.block, stream, shared.workspaces
        self.replaying: threading.Lock | None = replaying

    def done(self) -> None:
        """Replays may go on."""
        replaying, self.replaying = self.replaying, None
        if replaying is not None:
            replaying.release()

    __del__ = done  # of a call that has failed


class Lent:
    """The arena of recordings in the hands of a thread that records.

    `end`: bytes that programs may use; `free`: none of them does just now.
    """

    __slots__ = ("thread", "block", "end", "free")

    def __init__(self, thread: int, block: torch.Tensor) -> None:
        self.thread, self.block, self.end, self.free = thread, block, block.numel(), True


class Arenas:
    """The free arenas of one device, by stream.

    Args:
        stream: the address of the current stream.
        recording: whether it is being recorded.
        allocate: so many bytes of the device.
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
        self.shared: Callable[[], Arena | None] = lambda: None  # a weak reference
        self.replaying: threading.Lock | None = None
        self.last_replay: Callable[[], int | None] = lambda: None  # its stream
        self.lent: Lent | None = None
        self.most = 0  # bytes that plain calls have taken at once, since somebody set this to 0

    def take(self, size: int) -> Arena:
        """An arena of at least so many bytes that nobody else uses."""
        stream = self.stream()
        if self.recording():
            lent = self.lent
            if lent is not None and lent.free and lent.thread == threading.get_ident() and lent.end >= size:
                lent.free = False
                return Arena(lent.block, stream)
            return Arena(self.allocate(size), stream)  # somebody else's recording, or a call inside of a call
        self.most = max(self.most, size)
        borrowed = self.borrow(size, stream)
        if borrowed is not None:
            return borrowed
        arenas = self.free.get(stream)
        try:
            arena = arenas.pop() if arenas else None
        except IndexError:  # another thread was faster
            arena = None
        if arena is not None and arena.block.numel() >= size:
            return arena
        del arena  # its memory may serve the larger one
        return Arena(self.allocate(size), stream)

    def borrow(self, size: int, stream: int) -> Arena | None:
        """The arena of recordings, if it is large enough and nobody uses it or will before this stream gets to it."""
        shared, replaying = self.shared(), self.replaying
        if shared is None or shared.block.numel() < size or replaying is None or not replaying.acquire(blocking=False):
            return None
        if self.last_replay() != stream or self.shared() is not shared:
            replaying.release()
            return None
        return Borrowed(shared, stream, replaying)

    def give(self, arena: Arena) -> None:
        """It is free, for what comes later on its stream."""
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
        """Have calls of this thread that are recorded meanwhile use the arena of recordings: give that, if any.

        Whoever records keeps it as long as the recording. It is as large as the arenas of plain calls, which ran
        before: those are given back to PyTorch's allocator.

        Args:
            give_back: what the allocator has and nobody uses.
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

    def at_the_end(self, tensor: torch.Tensor, room: int) -> torch.Tensor | None:
        """Uninitialised memory for such a tensor at the end of the arena that is lent; None where it does not fit.

        Args:
            room: bytes that the program that is recorded needs of the arena.
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
        """Drop the workspaces of a program that is gone."""
        for arenas in list(self.free.values()):
            for arena in list(arenas):
                arena.workspaces.pop(program, None)
        shared = self.shared()
        if shared is not None:
            shared.workspaces.pop(program, None)

    def release(self) -> None:
        """Give all free arenas back to PyTorch's allocator."""
        self.free.clear()


@functools.cache
def device_arenas(device: torch.device) -> Arenas:
    """The arenas of a CUDA device with an index."""
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
