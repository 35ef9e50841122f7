"""`match` on classes: patterns by place and by name, and what CPython refuses."""

from __future__ import annotations

import collections
import datetime
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.capture.harness import compiled


class Pair:
    __match_args__: Any = ("a", "b")

    def __init__(self) -> None:
        self.a, self.b = 1, 2


class Without:
    a = 1


class InAList:
    __match_args__: Any = ["a"]
    a = 1


class None_:
    __match_args__: Any = None


class Number:
    __match_args__: Any = (1,)


class Twice:
    __match_args__: Any = ("a", "a")
    a = 1


class Absent:
    __match_args__: Any = ("a",)

    @property
    def a(self) -> Any:
        raise AttributeError


class Failing:
    __match_args__: Any = ("a",)

    @property
    def a(self) -> Any:
        raise ValueError("from the property")


class OwnInt(int):
    pass


class NamedInt(int):
    __match_args__: Any = ("name",)
    name = "named"


def by_place(value: Any, cls: Any) -> Any:
    match value:
        case cls(found):
            return found
    return "no match"


def by_two_places(value: Any, cls: Any) -> Any:
    match value:
        case cls(a, b):
            return a, b
    return "no match"


def by_place_and_name(value: Any, cls: Any) -> Any:
    match value:
        case cls(x, a=y):
            return x, y
    return "no match"


def by_class(value: Any, cls: Any) -> Any:
    match value:
        case cls():
            return "match"
    return "no match"


VALUES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "pair": lambda: (Pair(), Pair),
    "no names": lambda: (Without(), Without),
    "a list of names": lambda: (InAList(), InAList),
    "None": lambda: (None_(), None_),
    "a number": lambda: (Number(), Number),
    "one name twice": lambda: (Twice(), Twice),
    "an attribute that is not there": lambda: (Absent(), Absent),
    "an attribute that fails": lambda: (Failing(), Failing),
    "int": lambda: (OwnInt(4), int),
    "its child": lambda: (OwnInt(4), OwnInt),
    "its child with names": lambda: (NamedInt(4), NamedInt),
    "list": lambda: ([1], list),
    "range": lambda: (range(3), range),
    "date": lambda: (datetime.date(2000, 1, 1), datetime.date),
    "deque": lambda: (collections.deque([1]), collections.deque),
    "no class": lambda: (Pair(), 5),
    "another": lambda: (3, Pair),
}


@pytest.mark.parametrize("pattern", [by_place, by_two_places, by_place_and_name, by_class], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", VALUES)
def test_patterns_of_classes(name: str, pattern: Callable[[Any, Any], Any]) -> None:
    def f(x: Tensor, value: Any, cls: Any) -> Any:
        try:
            return pattern(value, cls), x + 1
        except (TypeError, ValueError) as error:
            return str(error), x + 1

    run, given = compiled(f), VALUES[name]()
    want = f(torch.ones(2), *given)[0]
    for _ in range(2):
        assert run(torch.ones(2), *given)[0] == want


def test_names_that_are_replaced() -> None:
    run = compiled(lambda x, value: (by_place(value, Pair), x + 1))
    value = Pair()
    assert run(torch.ones(2), value)[0] == 1
    Pair.__match_args__ = ("b",)
    try:
        assert run(torch.ones(2), value)[0] == 2
    finally:
        Pair.__match_args__ = ("a", "b")
