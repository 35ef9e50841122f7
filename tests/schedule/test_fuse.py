"""The order of units that fusion keeps up to date while it merges, against one computed afresh."""

import pytest

from smelt.loops.lower import lower
from smelt.schedule.dependencies import Names
from smelt.schedule.fuse import _Fusion
from smelt.schedule.machine import CPU
from smelt.schedule.precedence import bits
from smelt.schedule.realize import realize
from smelt.schedule.split import split_reductions
from tests.loops.random_graphs import RandomGraph


def ancestors(fusion: _Fusion) -> dict[int, set[int]]:
    """Every unit's ancestors, by the buffers that units read now."""
    direct = {
        unit: {fusion.result.number_of[name] for name in fusion.reads(unit)} - {unit}
        for unit in (*fusion.groups, *fusion.result.others)
    }
    found: dict[int, set[int]] = {}

    def visit(unit: int) -> set[int]:
        if unit not in found:
            found[unit] = set().union(*({source} | visit(source) for source in direct[unit]))
        return found[unit]

    for unit in direct:
        visit(unit)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_merging_keeps_the_order_of_units(seed: int) -> None:
    program = lower(RandomGraph(seed).build(steps=40))
    names, real = Names(), realize(program)
    fusion = _Fusion(split_reductions(program, real, names), real, names, CPU)
    count = len(fusion.groups)
    fusion.run()
    fresh = ancestors(fusion)
    assert len(fusion.groups) <= count and set(fusion.order.before) == set(fresh)
    for unit, above in fresh.items():
        assert set(bits(fusion.order.before[unit] & fusion.order.alive)) == above
        assert set(bits(fusion.order.after[unit] & fusion.order.alive)) == {u for u in fresh if unit in fresh[u]}
