"""The order of kernels against its own definition, on random graphs of units."""

import random

import pytest

from smelt.schedule.order import Unit, order_units


def by_definition(units: list[Unit], size: dict[str, int], kept: set[str]) -> list[int]:
    """At each step every ready unit is looked at: those that shrink memory first, then by position."""
    writer = {name: unit.number for unit in units for name in unit.writes}
    left, order = list(units), []

    def rank(unit: Unit) -> tuple[bool, int]:
        ends = [n for n in unit.reads if n not in kept and sum(n in other.reads for other in left) == 1]
        return sum(size[n] for n in unit.writes) > sum(size[n] for n in ends), unit.position

    while left:
        waiting = {unit.number for unit in left}
        ready = [u for u in left if not any(writer.get(n) in waiting for n in u.reads)]
        order.append(min(ready, key=rank))
        left.remove(order[-1])
    return [unit.number for unit in order]


@pytest.mark.parametrize("seed", range(30))
def test_order_is_the_defined_one(seed: int) -> None:
    draw = random.Random(seed)
    names = [f"input{i}" for i in range(4)]
    size = {name: draw.choice([0, 8, 64]) for name in names}
    units = []
    for number in range(40):
        reads = tuple(dict.fromkeys(draw.choices(names[-12:], k=draw.randint(0, 3))))
        writes = tuple(f"v{number}_{i}" for i in range(draw.randint(1, 2)))
        size |= {name: draw.choice([0, 1, 8, 64]) for name in writes}
        names += writes
        units.append(Unit(number, reads, writes, number))
    kept = set(draw.sample(names, 5))
    draw.shuffle(units)
    got = [unit.number for unit in order_units(units, size.__getitem__, kept)]
    assert got == by_definition(units, size, kept)


def test_order_keeps_operands_first_and_frees_memory_early():
    units = [
        Unit(0, ("x",), ("big1",), 0),
        Unit(1, ("x",), ("big2",), 1),
        Unit(2, ("big1",), ("small1",), 2),
        Unit(3, ("big2",), ("small2",), 3),
    ]
    size = {"x": 0, "big1": 100, "big2": 100, "small1": 1, "small2": 1}.__getitem__
    order = [u.number for u in order_units(units, size, {"small1", "small2"})]
    assert order == [0, 2, 1, 3]
