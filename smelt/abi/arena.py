"""Assigns buffers offsets in one block of memory by their lifetimes: an offset is reused as soon as it is free.

The algorithm is best fit: each buffer, in order of creation, takes the smallest free gap that is large enough, else the
block grows. Offsets and sizes are multiples of 64 bytes (a cache line, the widest vector). It is used by the schedule
at compile time, and at run time by programs with symbolic sizes, for each new tuple of sizes.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

ALIGN = 64

Life = tuple[int, int, int]
"""First and last step of a buffer, and the index of the buffer whose memory it takes over, or -1."""


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Returns the number of elements from the first to the last one in memory, gaps included. The tensor must not be
    empty.
    """
    return 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def aligned(size: int) -> int:
    """Returns the size rounded up to whole cache lines."""
    return -(-max(size, 1) // ALIGN) * ALIGN


def place_buffers(lives: Sequence[Life], sizes: Sequence[int]) -> tuple[list[int], int]:
    """Returns the offsets of the buffers and the size of the block, in bytes.

    Args:
        lives: the lives of the buffers, in order of their creation.
        sizes: bytes of each buffer; a buffer that takes over another's memory is no larger than the other.
    """
    arena = _Arena()
    offsets: list[int] = []
    kept = {donor for _, _, donor in lives}
    ending: dict[int, list[int]] = {}
    step = 0
    for index, (first, last, donor) in enumerate(lives):
        for done in range(step, first):
            for other in ending.pop(done, ()):
                arena.release(offsets[other], aligned(sizes[other]))
        step = first
        offsets.append(offsets[donor] if donor >= 0 else arena.allocate(aligned(sizes[index])))
        if index not in kept:
            ending.setdefault(last, []).append(index)
    return offsets, arena.size


def place_largest_first(
    lives: Sequence[Life], sizes: Sequence[int], leading: Sequence[int] = ()
) -> tuple[list[int], int]:
    """Returns offsets as `place_buffers` does, but places the largest buffers first, each at the lowest offset that is
    free for its whole lifetime.

    This leaves fewer gaps if few buffers are large. The time grows with the square of the number of buffers.

    Args:
        leading: indices of buffers that are placed before all others, in this order: the first one is at offset 0.
    """
    root, last = _roots(lives)
    offsets = [0] * len(lives)
    rank = {index: number - len(leading) for number, index in enumerate(leading)}
    placed: list[tuple[int, int, int, int]] = []  # by offset: (offset, end, first step, last step)
    for index in sorted({*root}, key=lambda i: (rank.get(i, 0), -sizes[i])):
        first, size, at = lives[index][0], aligned(sizes[index]), 0
        for offset, end, begun, done in placed:
            if begun <= last[index] and first <= done:
                if at + size <= offset:
                    break
                at = max(at, end)
        offsets[index] = at
        insort(placed, (at, at + size, first, last[index]))
    return [offsets[i] for i in root], max((end for _, end, _, _ in placed), default=0)


def least_size(lives: Sequence[Life], sizes: Sequence[int]) -> int:
    """Returns the largest number of bytes in use at any step, a lower bound for the size of the block."""
    return max(bytes_in_use(lives, sizes).values(), default=0)


def bytes_in_use(lives: Sequence[Life], sizes: Sequence[int]) -> dict[int, int]:
    """Returns the number of bytes in use by the steps from which it differs from that of the step before."""
    root, last = _roots(lives)
    change: Counter[int] = Counter()
    for index in {*root}:
        change[lives[index][0]] += aligned(sizes[index])
        change[last[index] + 1] -= aligned(sizes[index])
    steps = sorted(change)
    return dict(zip(steps, accumulate(change[step] for step in steps), strict=True))


def _roots(lives: Sequence[Life]) -> tuple[list[int], list[int]]:
    """Returns for each buffer the buffer that first had its memory, and for each such first buffer the last step that
    uses the memory.
    """
    root = list(range(len(lives)))
    last = [end for _, end, _ in lives]
    for index, (_, end, donor) in enumerate(lives):
        if donor >= 0:
            root[index] = root[donor]
            last[root[index]] = max(last[root[index]], end)
    return root, last


class _Arena:
    def __init__(self) -> None:
        self.size = 0
        self.free: list[tuple[int, int]] = []

    def allocate(self, size: int) -> int:
        fitting = [(length, offset) for offset, length in self.free if length >= size]
        if fitting:
            length, offset = min(fitting)
            self.free.remove((offset, length))
            if length > size:
                self.free.append((offset + size, length - size))
            return offset
        for offset, length in self.free:
            if offset + length == self.size:  # a free gap at the end is enlarged, instead of staying unused
                self.free.remove((offset, length))
                self.size = offset + size
                return offset
        offset = self.size
        self.size += size
        return offset

    def release(self, offset: int, size: int) -> None:
        for other in list(self.free):
            if other[0] + other[1] == offset:
                self.free.remove(other)
                offset, size = other[0], size + other[1]
            elif offset + size == other[0]:
                self.free.remove(other)
                size += other[1]
        self.free.append((offset, size))
