"""Which small kernels run together: pointwise kernels that need nothing of each other may share one launch.

A kernel of a few elements takes as long as it takes to start one. So kernels move in the order: earlier, up to where
another one is launched that something waits for, or later, to where something waits for them. Memory sets the bounds:
what is made earlier, and what is kept for later, may not raise the most that is in use at one time. Each account is
held by itself, the arena's and that of all other memory, since the arena stays whole while the program runs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from smelt.schedule.machine import GPU, Bundling
from smelt.schedule.order import Unit, followers_of, sources_of


@dataclass(frozen=True)
class Mobile:
    """A kernel that may share a launch: bytes that others have made for it, or that it makes for them, and what kernels
    of like code have in common.

    A kernel moves for the sake of its like only, so that a launch has one body, or few, and many members.
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
    """The units in an order that is as good, those that may run at the same time in one list.

    Args:
        units: in order.
        mobile: the kernels that may share a launch.
        after: for some units, others that they wait for without reading anything of theirs.
        accounts: what the units take of memories that are bounded each by itself. The first one is the arena.
        most: bytes of the arena that a kernel may read or make to move past others; default: `limits.moved_bytes`.
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
            self.make_way(at, self.crowding(at))
            if unit.number in self.done:
                continue
            if unit.number in self.mobile:
                self.late[unit.number] = unit
                continue
            self.make_way(at, [*(self.late.keys() & self.large), *self.sources[unit.number]])
            self.emit([unit])
        self.make_way(len(self.units), list(self.late))
        return self.order

    def crowding(self, at: int) -> list[int]:
        """The delayed kernels that keep memory for which there is no room at a position."""
        held: list[int] = []
        for profile in self.accounts:
            if not profile.fits(at, at + 1, profile.held(at, self.late.values())):
                held += [number for number, unit in self.late.items() if profile.held(at, [unit])]
        return held

    def needed(self, wanted: Iterable[int]) -> set[int]:
        """What has not run of these, and of what they wait for."""
        must: set[int] = set()
        waiting = [number for number in wanted if number not in self.done]
        while waiting:
            number = waiting.pop()
            if number not in must:
                must.add(number)
                waiting += [source for source in self.sources[number] if source not in self.done]
        return must

    def make_way(self, at: int, wanted: Iterable[int]) -> None:
        """Run what is wanted before position `at`, each time with all of like code that may run at the same time."""
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
        """Kernels of later positions that can run now, the nearest first."""
        small = (n for n in self.ready if n not in self.large and self.mobile[n].kind in kinds)
        held = [profile.held(at, self.late.values()) for profile in self.accounts]
        missed = 0
        for position, number in sorted((self.position[n], n) for n in small if n not in self.late):
            made = [profile.made[number] for profile in self.accounts]
            wanted = zip(self.accounts, made, held, strict=True)
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
        """Put units that run at the same time at the end of the order."""
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
    """Bytes in use while each unit runs, given those of every buffer and the position of its last use."""
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
    """Bytes of a memory in use at each position, which may nowhere exceed what they were at their highest.

    Args:
        units: in order.
        account: bytes that a buffer takes; 0 where another memory has it.
        kept: buffers that live to the end.
        over: buffers that take over another's memory, in this order.
        room_bytes: by which the highest may grow, besides a sixty-fourth of it.
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
        """Bytes that a unit reads or makes."""
        return sum(self.size[name] for name in dict.fromkeys((*unit.reads, *unit.writes)))

    def held(self, at: int, late: Iterable[Unit]) -> int:
        """Bytes that delayed units read or make, which were no longer in use at a position."""
        names = {name for unit in late for name in (*unit.reads, *unit.writes)}
        return sum(self.size[name] for name in names if self.last[name] < at)

    def fits(self, start: int, stop: int, more: int) -> bool:
        """Whether there is room for so many bytes more over these positions."""
        return not more or max(self.live[start:stop], default=0) + more <= self.most

    def add(self, start: int, stop: int, size: int) -> None:
        """Take so many bytes more over these positions."""
        for at in range(start, stop if size else start):
            self.live[at] += size
