"""smelt/bench/census/compare.py: equal means equal to the bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from smelt.bench.census.compare import ENOUGH, differences


@dataclass
class Held:
    tensor: torch.Tensor
    name: str = "a"


X = torch.tensor([1.0, float("nan"), 3.0])


@pytest.mark.parametrize(
    "value",
    [X, [X, (1, 2.5, float("nan"))], {"a": X, "b": None}, Held(X), torch.Size([1, 2]), torch.zeros(2).bool(), "text"],
)
def test_copies_are_equal(value: Any) -> None:
    import copy

    assert differences(value, copy.deepcopy(value)) == []


@pytest.mark.parametrize(
    ("expected", "actual", "told"),
    [
        (X, X + 1e-6, "output: 2 of 3 elements differ"),
        (X, X.double(), "dtype torch.float64 where eager has torch.float32"),
        (X, X.clone().requires_grad_(), "requires_grad True where eager has False"),
        (X, X[:2], "shape torch.Size([2]) where eager has torch.Size([3])"),
        (X, torch.nn.Parameter(X), "Parameter where eager has Tensor"),
        (torch.tensor([True]), torch.tensor([False]), "1 of 1 elements differ, by up to 1.0e+00"),
        ([1, 2], (1, 2), "tuple where eager has list"),
        ([1, 2], [1], "1 items where eager has 2"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "keys ['b', 'a'] where eager has ['a', 'b']"),
        ({"a": [X]}, {"a": [X * 2]}, "output.a.0: 2 of 3"),
        (Held(X), Held(X, "b"), "output.name: b where eager has a"),
        (1.0, 1.5, "1.5 where eager has 1.0"),
    ],
)
def test_a_difference_is_reported(expected: Any, actual: Any, told: str) -> None:
    assert told in differences(expected, actual)[0]


def test_many_differences_are_cut() -> None:
    assert len(differences(list(range(20)), list(range(1, 21)))) == ENOUGH


def test_cycles_end() -> None:
    one: list[Any] = [X]
    one.append(one)
    other: list[Any] = [X.clone()]
    other.append(other)
    assert differences(one, other) == []
