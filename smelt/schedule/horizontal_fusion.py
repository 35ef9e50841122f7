"""Chooses small kernels that share a launch: pointwise kernels that do not depend on each other.

A kernel of a few elements takes no longer than its launch. So kernels move in the order: earlier, to join a kernel that
is launched because other units wait for it, or later, until a unit waits for them. Memory bounds the moves: results
that are made earlier, and operands that are freed later, must not raise peak memory. Peaks of the arena and of all
other memory are bounded separately, since the arena keeps its size while the program runs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from smelt.schedule.machine import GPU, Bundling
from smelt.schedule.order import Unit, followers_of, sources_of


@dataclass(frozen=True)
class Mobile:
    """A kernel that may share a launch.

    Attributes:
        handed: number of bytes that it reads from other kernels, or makes for them.
        kind: a key that is equal for kernels of the same code. A kernel moves only to join kernels of its kind, so that
            a launch has few different bodies and many members.
    """

    handed: int
    kind: Hashable


def gather(
    units: Sequence[Unit],
    mobile: Mapping[int, Mobile],
    after: Mapping[int, set[int]],
    accounts: list[Profile],
    most: int | None = None,
    limits: Bundling = GPU.bundling,
) -> list[list[Unit]]:
    """Returns the units in another valid order, as steps: the units of one list may run at the same time.

    Args:
        units: the units in the present order.
        mobile: the kernels that may share a launch.
        after: for some units, other units for which they wait without reading their results.
        accounts: profiles of the memories that are bounded separately. The first one is the arena.
        most: maximum number of bytes of the arena that a moved kernel reads or makes; default: `limits.moved_bytes`.
    """
    return _Gathering(units, mobile, after, accounts, limits.moved_bytes if most is None else most, limits).run()


class _Gathering:
    def __init__(
        self,
        units: Sequence[Unit],
        mobile: Mapping[int, Mobile],
        after: Mapping[int, set[int]],
        accounts: list[Profile],
        most: int,
        limits: Bundling,
    ) -> None:
        self.units, self.mobile, self.accounts, self.tries = units, mobile, accounts, limits.tries
        taken = {unit.number: accounts[0].taken(unit) for unit in units}
        self.large = {
            number for number, each in mobile.items() if each.handed > limits.moved_bytes or taken[number] > most
        }
        self.position = {unit.number: at for at, unit in enumerate(units)}
        self.sources = sources_of(units, after)
        self.followers = followers_of(self.sources)
        self.waiting = {number: len(found) for number, found in self.sources.items()}
        self.ready = {u.number: u for u in units if u.number in mobile and not self.waiting[u.number]}
        self.done: set[int] = set()
        self.late: dict[int, Unit] = {}
        self.order: list[list[Unit]] = []

    def run(self) -> list[list[Unit]]:
        for at, unit in enumerate(self.units):
            self.place_before(at, self.crowding(at))
            if unit.number in self.done:
                continue
            if unit.number in self.mobile:
                self.late[unit.number] = unit
                continue
            self.place_before(at, [*(self.late.keys() & self.large), *self.sources[unit.number]])
            self.emit([unit])
        self.place_before(len(self.units), list(self.late))
        return self.order

    def crowding(self, at: int) -> list[int]:
        """Returns the delayed kernels that must run now because the memory that they keep in use does not fit at a
        position.
        """
        delayed: list[int] = []
        for profile in self.accounts:
            if not profile.fits(at, at + 1, profile.delayed_bytes(at, self.late.values())):
                delayed += [number for number, unit in self.late.items() if profile.delayed_bytes(at, [unit])]
        return delayed

    def needed(self, wanted: Iterable[int]) -> set[int]:
        """Returns the units of `wanted`, and all units for which they wait, that have not run yet."""
        must: set[int] = set()
        waiting = [number for number in wanted if number not in self.done]
        while waiting:
            number = waiting.pop()
            if number not in must:
                must.add(number)
                waiting += [source for source in self.sources[number] if source not in self.done]
        return must

    def place_before(self, at: int, wanted: Iterable[int]) -> None:
        """Run the wanted units before position `at`, each together with all kernels of its kind that may run then."""
        must = self.needed(wanted)
        while must:
            first = [self.ready[number] for number in must if number in self.ready]
            kinds = {self.mobile[unit.number].kind for unit in first}
            chosen = {unit.number: unit for unit in first}
            chosen |= {n: u for n, u in self.late.items() if n in self.ready and self.mobile[n].kind in kinds}
            chosen |= {unit.number: unit for unit in self.early(kinds, at)}
            self.emit(sorted(chosen.values(), key=lambda unit: self.position[unit.number]))
            must -= self.done

    def early(self, kinds: set[Hashable], at: int) -> Iterable[Unit]:
        """Yields kernels of later positions that can run now and whose results fit in memory, the nearest first."""
        small = (n for n in self.ready if n not in self.large and self.mobile[n].kind in kinds)
        delayed = [profile.delayed_bytes(at, self.late.values()) for profile in self.accounts]
        missed = 0
        for position, number in sorted((self.position[n], n) for n in small if n not in self.late):
            made = [profile.made[number] for profile in self.accounts]
            wanted = zip(self.accounts, made, delayed, strict=True)
            if all(
                not size or p.fits(at, position, size + kept) and p.fits(at, at + 1, kept) for p, size, kept in wanted
            ):
                for profile, size in zip(self.accounts, made, strict=True):
                    profile.add(at, position, size)
                missed = 0
                yield self.ready[number]
            elif (missed := missed + 1) == self.tries:
                return

    def emit(self, chosen: list[Unit]) -> None:
        """Append units, which run at the same time, to the order."""
        self.order.append(chosen)
        for unit in chosen:
            self.done.add(unit.number)
            self.ready.pop(unit.number, None)
            self.late.pop(unit.number, None)
        for unit in chosen:
            for follower in self.followers[unit.number]:
                self.waiting[follower] -= 1
                if not self.waiting[follower] and follower in self.mobile:
                    self.ready[follower] = self.units[self.position[follower]]


def _live_bytes(units: Sequence[Unit], size: Mapping[str, int], last: Mapping[str, int]) -> list[int]:
    """Returns the bytes in use while each unit runs, given the size of every buffer and the position of its
    last use.
    """
    ending: dict[int, int] = {}
    for name, at in last.items():
        ending[at] = ending.get(at, 0) + size[name]
    written = {name for unit in units for name in unit.writes}
    now = sum(size[name] for name in last if name not in written)
    live: list[int] = []
    for at, unit in enumerate(units):
        now += sum(size[name] for name in unit.writes)
        live.append(now)
        now -= ending.get(at, 0)
    return live


class Profile:
    """Bytes of one memory in use at each position; moves of kernels must not raise them above the initial peak.

    Args:
        units: the units in the initial order.
        account: function that returns the bytes that a buffer takes of this memory.
        kept: buffers that live to the end.
        over: for some buffers, the buffer whose memory they take over in this order of units.
        room_bytes: bytes by which the peak may grow, in addition to 1/64 of it.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        account: Callable[[str], int],
        kept: set[str],
        over: Mapping[str, str],
        room_bytes: int = GPU.bundling.room_bytes,
    ) -> None:
        last = {name: at for at, unit in enumerate(units) for name in (*unit.writes, *unit.reads)}
        last |= {name: len(units) for name in kept if name in last}
        for new in reversed([name for unit in units for name in unit.writes if name in over]):
            last[over[new]] = last[new]
        self.last = last
        self.size = {name: account(name) for name in last}
        self.made = {unit.number: sum(self.size[name] for name in unit.writes) for unit in units}
        self.live = _live_bytes(units, self.size | dict.fromkeys(over.keys() & last.keys(), 0), last)
        self.highest = max(self.live, default=0)
        self.most = self.highest + self.highest // 64 + room_bytes

    def taken(self, unit: Unit) -> int:
        """Returns the bytes that a unit reads or makes."""
        return sum(self.size[name] for name in dict.fromkeys((*unit.reads, *unit.writes)))

    def delayed_bytes(self, at: int, late: Iterable[Unit]) -> int:
        """Returns the bytes of buffers that are in use at a position only because of the delayed units."""
        names = {name for unit in late for name in (*unit.reads, *unit.writes)}
        return sum(self.size[name] for name in names if self.last[name] < at)

    def fits(self, start: int, stop: int, more: int) -> bool:
        """Whether `more` bytes fit at all these positions."""
        return not more or max(self.live[start:stop], default=0) + more <= self.most

    def add(self, start: int, stop: int, size: int) -> None:
        """Count `size` more bytes at these positions."""
        for at in range(start, stop if size else start):
            self.live[at] += size
