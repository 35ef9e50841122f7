"""Sets from outside iterate in compiled code as they do in eager, whatever the history of their tables."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch

import smelt
from smelt.capture.python.set_order import in_order


class Own(set[int]):
    """A subclass of set."""


class OwnFrozen(frozenset[int]):
    """A subclass of frozenset."""


def test_hashes_that_collide() -> None:
    """15 finds the slot of 7 taken, in a table of 8, and goes to one before it."""
    made = set[int]()
    made.add(7)
    made.add(15)
    assert [*made] == [15, 7] and [*set([*made])] == [7, 15]
    for kind in (set, frozenset):
        found = in_order(kind, [*made])
        assert type(found) is kind and [*found] == [15, 7]  # type: ignore[misc]


def test_tables_of_any_history() -> None:
    draw = random.Random(0)
    refused = 0
    for _ in range(500):
        made = set[int]()
        for _ in range(draw.randrange(12)):
            made.add(draw.randrange(64))
        for item in draw.sample([*made], draw.randrange(len(made) + 1)):
            made.discard(item)
        found = in_order(set, [*made], made)
        refused += found is None
        assert found is None or ([*found] == [*made] and found is not made)
    assert refused < 100


def test_an_order_that_no_insertion_gives() -> None:
    assert in_order(set, [1, 0]) is None


@pytest.mark.parametrize("kind", [set, frozenset, Own, OwnFrozen])
@pytest.mark.parametrize("order", [*itertools.permutations((7, 15, 23))])
def test_programs_iterate_in_eagers_order(kind: Any, order: tuple[int, ...]) -> None:
    made = set[int]()
    for item in order:
        made.add(item)
    numbers = kind(made)

    def program(x: torch.Tensor) -> torch.Tensor:
        for number in numbers:
            x = x * number + 1
        return x

    x = torch.ones(3)
    assert torch.equal(smelt.compile(program)(x), program(x))


def test_a_large_table_with_few_items() -> None:
    numbers = set(range(100))
    numbers -= set(range(100)) - {33, 2, 64}

    def program(x: torch.Tensor) -> torch.Tensor:
        for number in numbers:
            x = x * number + 1
        return x

    x = torch.ones(3)
    assert torch.equal(smelt.compile(program, fullgraph=False)(x), program(x))
