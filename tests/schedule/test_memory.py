"""Places in the arena: no two buffers that live at once share a byte, but for one written over what ends there."""

from __future__ import annotations

import random

import pytest

from smelt.schedule.memory import ALIGN, aligned, plan_memory
from smelt.schedule.order import Unit


def random_units(draw: random.Random) -> tuple[list[Unit], dict[str, int]]:
    made: list[str] = []
    units = []
    for number in range(draw.randint(1, 12)):
        reads = tuple(draw.sample(made, min(len(made), draw.randint(0, 3))))
        writes = tuple(f"b{number}_{i}" for i in range(draw.randint(1, 2)))
        units.append(Unit(number, reads, writes, number))
        made += writes
    return units, {name: draw.choice([4, 64, 100, 4096, 5000]) for name in made if draw.random() < 0.9}


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("over", [False, True])
def test_buffers_with_overlapping_lifetimes_are_disjoint(seed: int, over: bool) -> None:
    units, sizes = random_units(random.Random(seed))
    plan = plan_memory(units, sizes, lambda number, output, source: over)
    assert plan.offsets.keys() == {name for unit in units for name in unit.writes if name in sizes}
    lives = {}
    for name in plan.offsets:
        steps = [i for i, unit in enumerate(units) if name in (*unit.reads, *unit.writes)]
        lives[name] = range(steps[0], steps[-1] + 1)
    for a in plan.offsets:
        assert plan.offsets[a] % ALIGN == 0 and plan.offsets[a] + sizes[a] <= plan.size <= plan.naive
        for b in plan.offsets:
            at_once = a < b and set(lives[a]) & set(lives[b])
            if at_once and plan.in_place.get(a) != b and plan.in_place.get(b) != a:
                first, second = sorted((a, b), key=plan.offsets.__getitem__)
                assert plan.offsets[first] + aligned(sizes[first]) <= plan.offsets[second], (a, b)
    assert over or not plan.in_place


@pytest.mark.parametrize("seed", range(30))
def test_a_buffer_is_written_over_one_that_ends_there(seed: int) -> None:
    units, sizes = random_units(random.Random(seed))
    asked = []
    plan = plan_memory(units, sizes, lambda *asks: asked.append(asks) or True)  # type: ignore[func-returns-value]
    assert len(set(plan.in_place.values())) == len(plan.in_place)
    for new, old in plan.in_place.items():
        (step,) = (i for i, unit in enumerate(units) if new in unit.writes)
        assert (units[step].number, new, old) in asked and plan.offsets[new] == plan.offsets[old]
        assert old in units[step].reads and not any(old in unit.reads for unit in units[step + 1 :])
        assert aligned(sizes[old]) == aligned(sizes[new])


def test_memory_plan_never_overlaps_live_buffers():
    rng = random.Random(0)
    for _ in range(50):
        count = rng.randint(2, 25)
        units, sizes = [], {}
        for i in range(count):
            reads = tuple({f"b{rng.randrange(i)}" for _ in range(rng.randint(1, 3))}) if i else ()
            units.append(Unit(i, reads, (f"b{i}",), i))
            sizes[f"b{i}"] = rng.randint(1, 1000)
        plan = plan_memory(units, sizes, lambda number, out, source: rng.random() < 0.5)
        last = {n: s for s, u in enumerate(units) for n in (*u.reads, *u.writes)}
        for i, a in enumerate(sizes):
            assert plan.offsets[a] % ALIGN == 0 and plan.offsets[a] + sizes[a] <= plan.size
            for j, b in enumerate(sizes):
                if i < j <= last[a] and not (plan.in_place.get(b) == a and j == last[a]):
                    apart = (
                        plan.offsets[a] + sizes[a] <= plan.offsets[b] or plan.offsets[b] + sizes[b] <= plan.offsets[a]
                    )
                    assert apart, (a, b)
