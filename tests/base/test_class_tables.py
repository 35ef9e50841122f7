"""Tables of classes by identity, and `isinstance` by an object's class: nothing of the program is asked."""

from __future__ import annotations

import abc
import builtins
import collections.abc
import enum
import gc
from typing import Any

import pytest
import torch

from smelt.base.class_tables import ByIdentity, by_class, classes, isinstance


class Meta(type):
    """A metaclass that refuses to be asked."""

    def __hash__(cls) -> int:
        raise AssertionError("hashed")

    def __eq__(cls, other: object) -> bool:
        raise AssertionError("compared")


class Mute(metaclass=Meta):
    @property
    def __class__(self) -> Any:
        raise AssertionError("asked for its class")

    @__class__.setter
    def __class__(self, value: object) -> None: ...


def test_a_set_of_classes_asks_nothing_of_a_class() -> None:
    for count in (0, 1, 2, 3, 4, 5, 9, 40):
        members = [builtins.type(f"C{i}", (), {}) for i in range(count)]
        table = classes(*members, *members)
        assert len(table) == count and all(member in table for member in members)
        assert Mute not in table and int not in table
        assert {id(kind) for kind in table} == set(map(id, members))
    assert Mute in classes(int, Mute, str)


def test_a_table_of_classes() -> None:
    table = by_class({int: 1, str: 2})
    assert table[int] == 1 and table.get(str) == 2
    assert table.get(Mute) is None and table.get(Mute, 5) == 5
    with pytest.raises(KeyError):
        table[float]


def test_a_row_goes_with_its_key() -> None:
    table: ByIdentity[type, int] = ByIdentity()

    def enter() -> None:
        kind = Meta("Kind", (), {})
        table.put(kind, 3)
        assert kind in table and table.get(kind) == 3 and Mute not in table

    enter()
    gc.collect()
    assert len(table) == 0


class Registered(abc.ABC):  # noqa: B024
    pass


Registered.register(float)
VALUES = (
    1,
    True,
    "a",
    [],
    {},
    1.5,
    torch.ones(1),
    torch.nn.Parameter(torch.ones(1)),
    torch.nn.Linear(1, 1),
    int,
    enum.Enum,
    len,
)
KINDS = (
    *(int, (str, list), ((int,), dict), int | str, type, enum.Enum, collections.abc.Mapping, collections.abc.Callable),
    *(collections.abc.Hashable, Registered, torch.Tensor, torch.nn.Parameter, torch.nn.Module, torch.FloatTensor, ()),
)


@pytest.mark.parametrize("at", range(len(VALUES)))
def test_isinstance_has_the_answers_of_the_builtin(at: int) -> None:
    for kind in KINDS:
        assert isinstance(VALUES[at], kind) is builtins.isinstance(VALUES[at], kind), kind  # type: ignore[arg-type]


def test_isinstance_goes_by_the_class_of_an_object() -> None:
    value = Mute()
    assert isinstance(value, Mute) and isinstance(value, (int, Mute))
    assert not isinstance(value, (int, dict)) and not isinstance(value, enum.Enum)


@pytest.mark.parametrize("args", [(), (1,), (1, int, str)])
def test_isinstance_takes_two_arguments(args: tuple[object, ...]) -> None:
    with pytest.raises(TypeError):
        isinstance(*args)
