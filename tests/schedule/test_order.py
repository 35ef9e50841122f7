"""The order of kernels against its own definition, on random graphs of units."""

import random

import pytest

from smelt.schedule.order import IN_FLIGHT, ROOM, Timing, Unit, order_units


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


def numbers(units: list[Unit], size: dict[str, int]) -> list[int]:
    return [u.number for u in order_units(units, lambda name: size.get(name, 8), set())]


def exchange(number: int, source: str, position: int | None = None) -> list[Unit]:
    """A collective that begins with unit `number`, writes `sent{number}`, and is waited for by the next unit."""
    position = number if position is None else position
    sent = f"sent{number}"
    return [
        Unit(number, (source,), (sent,), position, Timing.BEGINS),
        Unit(number + 1, (sent, source), (f"got{number}",), position + 1, Timing.WAITS),
    ]


def test_units_run_while_a_collective_is_under_way():
    units = [
        Unit(0, ("x",), ("other",), 0),
        Unit(1, ("x",), ("a",), 1),
        *exchange(2, "a"),
        Unit(4, ("got2",), ("b",), 4),
        Unit(5, ("x",), ("c",), 5),
        Unit(6, ("c",), ("d",), 6),
        Unit(7, ("b", "d", "other"), ("e",), 7),
    ]
    assert numbers(units, {}) == [0, 1, 2, 5, 6, 3, 4, 7]


def test_a_collective_begins_as_soon_as_it_can():
    units = [
        Unit(0, ("x",), ("a",), 0),
        Unit(1, ("x",), ("c",), 1),
        *exchange(2, "a"),
        Unit(4, ("got2", "c"), ("e",), 4),
    ]
    assert numbers(units, {}) == [0, 2, 1, 3, 4]


def test_what_runs_before_a_wait_takes_bounded_memory():
    many = 3 * ROOM
    free = [Unit(10 + n, ("x",), (f"v{n}",), 10 + n) for n in range(many)]
    last = Unit(100, ("got2", *(f"v{n}" for n in range(many))), ("e",), 100)
    order = numbers([Unit(1, ("x",), ("a",), 1), *exchange(2, "a"), *free, last], {"a": 0})
    assert order[:2] == [1, 2] and order.index(3) == 2 + ROOM


def test_not_all_collectives_begin_at_the_beginning():
    layers = 3 * IN_FLIGHT
    units, before = [], "x"
    for n in range(layers):
        units += exchange(10 * n, f"w{n}")
        units.append(Unit(10 * n + 2, (before, f"got{10 * n}"), (f"y{n}",), 10 * n + 2))
        before = f"y{n}"
    order = numbers(units, {})
    under_way = [sum((n % 10 == 0) - (n % 10 == 1) for n in order[:at]) for at in range(len(order) + 1)]
    assert max(under_way) == IN_FLIGHT
    assert [n for n in order if n % 10 == 0] == [10 * n for n in range(layers)]
    assert [n for n in order if n % 10 == 2] == [10 * n + 2 for n in range(layers)]


@pytest.mark.parametrize("seed", range(10))
def test_the_order_of_random_programs_with_collectives_is_valid(seed: int) -> None:
    """Operands first, collectives in the order of the program, whatever else there is."""
    draw = random.Random(seed)
    names, units, after, begun = ["x"], [], {}, None
    for number in range(0, 60, 2):
        read = draw.choice(names[-8:])
        if draw.random() < 0.4:
            units += exchange(number, read)
            after[number] = set() if begun is None else {begun}
            names.append(f"got{number}")
            begun = number
        else:
            units.append(Unit(number, (read,), (f"v{number}",), number))
            names.append(f"v{number}")
    order = order_units(units, lambda name: draw.choice([0, 8, 64]), set(), after)
    made: set[str] = {"x"}
    for unit in order:
        assert {*unit.reads} <= made
        made |= {*unit.writes}
    begins = [unit.number for unit in order if unit.timing is Timing.BEGINS]
    assert begins == sorted(begins) and len(order) == len(units)
