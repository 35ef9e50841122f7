"""The partial order of kernels and externs while fusion joins them: ancestors and descendants as bit sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class Precedence:
    """The partial order of numbered units that follows from the results that each unit reads.

    A joined unit keeps the bits of all units joined in it (`own`), so that sets that contain both need no change.

    Args:
        direct: for each unit, the units whose results it reads; every unit comes after these in the mapping.
    """

    def __init__(self, direct: Mapping[int, set[int]]) -> None:
        self.before: dict[int, int] = {}
        self.after: dict[int, int] = {}
        self.own: dict[int, int] = {}
        for number, sources in direct.items():
            mask = 0
            for source in sources:
                mask |= self.before[source] | 1 << source
            self.before[number] = mask
            self.after[number] = 0
            self.own[number] = 1 << number
        self.alive = sum(self.own.values())
        for number in reversed(list(direct)):
            below = self.after[number] | 1 << number
            for source in direct[number]:
                self.after[source] |= below

    def between(self, a: int, b: int) -> bool:
        """Whether another unit must run after one of the two and before the other."""
        both = self.own[a] | self.own[b]
        return bool(self.after[a] & self.before[b] & ~both or self.after[b] & self.before[a] & ~both)

    def join(self, a: int, b: int) -> None:
        """Join `b` into `a`: all ancestors and descendants of either get the combined order."""
        own = self.own[a] | self.own.pop(b)
        before = (self.before[a] | self.before[b]) & ~own
        after = (self.after[a] | self.after[b]) & ~own
        self.alive &= ~(1 << b)
        # common ancestors (descendants) are ordered already
        for unit in bits((self.after[a] ^ self.after[b]) & self.alive & ~own):
            self.before[unit] |= before | own
        for unit in bits((self.before[a] ^ self.before[b]) & self.alive & ~own):
            self.after[unit] |= after | own
        self.own[a], self.before[a], self.after[a] = own, before, after
        del self.before[b], self.after[b]


def bits(mask: int) -> Iterable[int]:
    """Yields the positions of the bits that are set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
