"""The order of operands, fresh variables, and which variables an index mentions."""

import random

import pytest

from smelt.schedule.dependencies import Names, operands_first, variables_in
from smelt.shapes.expr import Var, constant, variable


@pytest.mark.parametrize("seed", range(20))
def test_operands_come_first_and_each_value_once(seed: int) -> None:
    draw = random.Random(seed)
    operands = {f"v{i}": [f"v{j}" for j in draw.sample(range(i), min(i, draw.randint(0, 3)))] for i in range(30)}
    roots = draw.sample(list(operands), 4)
    found = operands_first(roots, operands.__getitem__)
    place = {name: i for i, name in enumerate(found)}
    assert len(place) == len(found)
    assert all(place[source] < place[name] for name in found for source in operands[name])
    needed, open_ones = set[str](), list(roots)
    while open_ones:
        name = open_ones.pop()
        if name not in needed:
            needed.add(name)
            open_ones += operands[name]
    assert set(found) == needed  # nothing that no root needs


def test_the_first_operand_is_taken_first() -> None:
    operands = {"out": ["right", "left"], "right": [], "left": []}
    assert operands_first(["out"], operands.__getitem__) == ["right", "left", "out"]


def test_a_long_chain_needs_no_recursion() -> None:
    count = 20_000
    found = operands_first([str(count)], lambda name: [str(int(name) - 1)] if name != "0" else [])
    assert found == [str(i) for i in range(count + 1)]


def test_fresh_variables_differ_though_their_sizes_are_equal() -> None:
    names = Names()
    made = [names.fresh(8) for _ in range(3)]
    assert len({var.name for var in made}) == 3
    assert names.made == made


def test_variables_inside_of_divisions_are_mentioned() -> None:
    a, b, c = Var("a", 6), Var("b", 4), Var("c", 5)
    index = (variable(a) // 2 + variable(b), constant(3), variable(b) % 2)
    assert variables_in(index) == {a, b}
    assert c not in variables_in(index)
    assert variables_in((constant(1),)) == set()
