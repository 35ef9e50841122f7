"""Nodes of one form compute the same up to the names of what they read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import fx

from smelt.loops.forms import form_of, form_of_meta, stream_of
from tests.loops.graphs import GraphBuilder

Make = Callable[[GraphBuilder, fx.Node, fx.Node], Any]

ALIKE: dict[str, tuple[Make, Make]] = {
    "other operands": (lambda g, x, y: g.add(x, y), lambda g, x, y: g.add(y, x)),
    "one operand twice": (lambda g, x, y: g.mul(x, x), lambda g, x, y: g.mul(y, y)),
    "lists": (lambda g, x, y: g.cat([x, y], 0), lambda g, x, y: g.cat([y, x], 0)),
    "not a number": (lambda g, x, y: g.add(x, float("nan")), lambda g, x, y: g.add(y, float("nan"))),
}
DIFFERENT: dict[str, tuple[Make, Make]] = {
    "another operator": (lambda g, x, y: g.add(x, y), lambda g, x, y: g.sub(x, y)),
    "one operand twice": (lambda g, x, y: g.mul(x, y), lambda g, x, y: g.mul(x, x)),
    "another number": (lambda g, x, y: g.add(x, 1.0), lambda g, x, y: g.add(x, 2.0)),
    "a number of another type": (lambda g, x, y: g.add(x, 1.0), lambda g, x, y: g.add(x, 1)),
    "zeros of either sign": (lambda g, x, y: g.add(x, 0.0), lambda g, x, y: g.add(x, -0.0)),
    "another dimension": (lambda g, x, y: g.sum(x, (0,)), lambda g, x, y: g.sum(x, (1,))),
}


def forms(pair: tuple[Make, Make]) -> list[Any]:
    g = GraphBuilder()
    x, y = g.input(3, 4), g.input(3, 4)
    return [form_of(make(g, x, y)) for make in pair]


@pytest.mark.parametrize("name", ALIKE)
def test_alike(name: str) -> None:
    one, other = forms(ALIKE[name])
    assert one == other and hash(one) == hash(other)


@pytest.mark.parametrize("name", DIFFERENT)
def test_different(name: str) -> None:
    one, other = forms(DIFFERENT[name])
    assert one != other


def test_metas_are_compared_as_they_are_written() -> None:
    g = GraphBuilder()
    x, same, strided, longer = g.input(3, 4), g.input(3, 4), g.input(3, 4, stride=(1, 3)), g.input(3, 5)
    form = [form_of_meta(node.meta["val"]) for node in (x, same, strided, longer)]
    assert form[0] == form[1] and len({form[0], form[2], form[3]}) == 3
    assert form_of_meta((x.meta["val"], None)) == form_of_meta((same.meta["val"], None))
    assert form_of_meta("what it does not know") != form_of_meta("what it does not know")


def test_only_random_numbers_have_a_stream() -> None:
    g = GraphBuilder()
    assert stream_of(g.exp(g.input(3))) is None
