"""Which unit must run before which, while units are joined, against a walk over the graph."""

from __future__ import annotations

import random

import pytest

from smelt.schedule.precedence import Precedence, bits


class Walked:
    """The same by walking: `parts` holds what each unit that is left consists of."""

    def __init__(self, direct: dict[int, set[int]]) -> None:
        self.direct = direct
        self.parts = {number: {number} for number in direct}

    def sources(self, unit: int) -> set[int]:
        inside = self.parts[unit]
        read = {source for part in inside for source in self.direct[part]} - inside
        return {other for other, parts in self.parts.items() if parts & read}

    def ancestors(self, unit: int) -> set[int]:
        found: set[int] = set()
        waiting = [unit]
        while waiting:
            for source in self.sources(waiting.pop()) - found:
                found.add(source)
                waiting.append(source)
        return found

    def between(self, a: int, b: int) -> bool:
        before, after = {n: self.ancestors(n) for n in self.parts}, set(self.parts) - {a, b}
        return any((a in before[n] and n in before[b]) or (b in before[n] and n in before[a]) for n in after)

    def join(self, a: int, b: int) -> None:
        self.parts[a] |= self.parts.pop(b)


@pytest.mark.parametrize("seed", range(20))
def test_units_between_two_units(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(2, 14)
    direct = {n: {m for m in range(n) if draw.random() < 0.3} for n in range(count)}
    fast, slow = Precedence(direct), Walked(direct)
    alive = list(direct)
    while len(alive) > 1:
        pairs = [(a, b) for a in alive for b in alive if a < b]
        assert {pair: fast.between(*pair) for pair in pairs} == {pair: slow.between(*pair) for pair in pairs}
        joined = next((pair for pair in draw.sample(pairs, len(pairs)) if not fast.between(*pair)), None)
        if joined is None:
            return
        fast.join(*joined)
        slow.join(*joined)
        alive.remove(joined[1])


def test_positions_of_ones() -> None:
    numbers = [0, 3, 64, 200]
    assert list(bits(sum(1 << n for n in numbers))) == numbers and not list(bits(0))
