"""Which values are equal but for nodes."""

from __future__ import annotations

import math

import torch
from torch import fx

from smelt.autograd.repeated.forms import alike, same_callers
from smelt.graph.ir.meta import TensorMeta


def test_equal_values_of_different_classes_differ() -> None:
    assert alike((1, [2.0, {"a": slice(0, None)}]), (1, [2.0, {"a": slice(0, None)}]))
    assert not alike(1, True)
    assert not alike(1, 1.0)
    assert not alike(0.0, -0.0)
    assert alike(math.nan, float("nan"))
    assert not alike((1, 2), (1, 2, 3))
    assert not alike({"a": 1}, {"b": 1})
    assert not alike(slice(0, 1), slice(0, 2))


def test_metadata_is_compared_and_unknown_objects_are_not() -> None:
    cpu = torch.device("cpu")
    one, other = (TensorMeta((2, size), torch.float32, (size, 1), cpu) for size in (3, 4))
    assert alike(one, TensorMeta((2, 3), torch.float32, (3, 1), cpu))
    assert not alike(one, other)
    assert not alike(torch.ones(1), torch.ones(1))
    assert not alike(object(), object())


def test_nodes_are_paired() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    pairs: list[tuple[fx.Node, fx.Node]] = []
    assert alike((x, [y, 1]), (y, [y, 1]), pairs)
    assert pairs == [(x, y), (y, y)]
    assert not alike(x, y)


def test_chains_of_callers_may_be_long() -> None:
    one, other, third = None, None, (None, 7)
    for i in range(5000):
        one, other, third = (one, i), (other, i), (third, i)
    assert same_callers(one, other)
    assert not same_callers(one, third)
    assert not same_callers(one, None)
