"""Objects of the program die when it drops them: capture keeps none, and makes none whose end would be seen."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import smelt
from tests.capture.harness import compiled


@pytest.fixture(autouse=True)
def without_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


class Held:
    def __init__(self) -> None:
        self.t = torch.ones(2)


def test_an_argument_dies_with_the_caller() -> None:
    fn = compiled(lambda x, held: x + held.t)
    held = Held()
    seen = weakref.ref(held)
    fn(torch.ones(2), held)
    del held
    assert seen() is None


def test_a_list_is_emptied_in_the_graph() -> None:
    def fn(x: torch.Tensor, items: list[Any]) -> torch.Tensor:
        y = x + items[0].t
        items.clear()
        return y

    items = [Held()]
    seen = weakref.ref(items[0])
    compiled(fn)(torch.ones(2), items)
    assert seen() is None


def test_what_lives_across_a_break_dies_with_the_call() -> None:
    seen = []

    @smelt.disable
    def make() -> Held:
        held = Held()
        seen.append(weakref.ref(held))
        return held

    def fn(x: torch.Tensor) -> torch.Tensor:
        held = make()
        smelt.graph_break()
        return x + held.t

    run = compiled(fn)
    for _ in range(2):
        run(torch.ones(2))
    assert [ref() for ref in seen] == [None, None]


def test_an_object_with_an_end_of_its_own_is_made_once() -> None:
    ended = []

    class Ends:
        def __del__(self) -> None:
            ended.append(1)

    def fn(x: torch.Tensor) -> torch.Tensor:
        held = Ends()
        return x + (held is not None)

    run = compiled(fn)
    for number in range(1, 4):
        assert torch.equal(run(torch.ones(2)), torch.full((2,), 2.0))
        assert len(ended) == number


def test_a_call_that_raises_while_it_is_captured_keeps_nothing() -> None:
    seen = []

    @smelt.disable
    def make() -> Held:
        held = Held()
        seen.append(weakref.ref(held))
        return held

    def fn(x: torch.Tensor, items: list[int]) -> torch.Tensor:
        held = make()
        items.pop()
        return x + held.t

    run = compiled(fn)
    run(torch.ones(2), [1])
    for _ in range(3):
        with pytest.raises(IndexError):
            run(torch.ones(2), [])
    assert [ref() for ref in seen] == [None] * 4
