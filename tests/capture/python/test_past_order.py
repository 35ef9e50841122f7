"""An OrderedDict that dict's own methods change holds one thing and lists another: its order is told as in eager."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt


class Own(OrderedDict):  # type: ignore[type-arg]
    pass


CHANGES: dict[str, Callable[[Any], object]] = {
    "clear": lambda held: dict.clear(held),
    "pop": lambda held: dict.pop(held, "a"),
    "popitem": lambda held: dict.popitem(held),
    "delitem": lambda held: dict.__delitem__(held, "b"),
    "setitem": lambda held: dict.__setitem__(held, "c", 3),
    "setitem of a key there": lambda held: dict.__setitem__(held, "a", 3),
    "update": lambda held: dict.update(held, c=4),
    "init": lambda held: dict.__init__(held, c=4),
    "setdefault": lambda held: dict.setdefault(held, "c", 4),
    "ior": lambda held: dict.__ior__(held, {"c": 1}),
    "super": lambda held: super(OrderedDict, held).__setitem__("c", 3),
    "its own": lambda held: held.update(c=3),
}


def told(x: torch.Tensor, held: Any) -> Any:
    try:
        listed: object = list(held.items())
    except KeyError as error:
        listed = repr(error)
    return x + len(held), listed, dict(dict.items(held))


@pytest.mark.parametrize("kind", [OrderedDict, Own])
@pytest.mark.parametrize("name", CHANGES)
def test_changed_inside(name: str, kind: type) -> None:
    change = CHANGES[name]

    def local(x: torch.Tensor) -> Any:
        held = kind(a=1, b=2)
        y = x + 1
        change(held)
        return told(y, held)

    def given(x: torch.Tensor, held: Any) -> Any:
        y = x * 2
        change(held)
        return told(y, held)

    x = torch.ones(2)
    once, other = smelt.compile(local, backend="eager"), smelt.compile(given, backend="eager")
    for _ in range(2):
        assert repr(once(x)) == repr(local(x))
        plain, captured = kind(a=1, b=2), kind(a=1, b=2)
        assert repr(other(x, captured)) == repr(given(x, plain))
        assert dict(dict.items(captured)) == dict(dict.items(plain))


@pytest.mark.parametrize("name", CHANGES)
def test_changed_outside(name: str) -> None:
    """Whatever was captured for a sound one does not hold for the other."""
    compiled, x = smelt.compile(told, backend="eager"), torch.ones(2)
    for change in (CHANGES["its own"], CHANGES[name], CHANGES["its own"]):
        held = OrderedDict(a=1, b=2)
        change(held)
        for _ in range(2):
            assert repr(compiled(x, held)) == repr(told(x, held))


def test_moved_outside() -> None:
    """The order is its own, not that of the dict that it is."""
    compiled, x = smelt.compile(told, backend="eager"), torch.ones(2)
    held = OrderedDict(a=1, b=2, c=3)
    for key in "aba":
        held.move_to_end(key)
        count = smelt.stats()["recompiles"]
        assert compiled(x, held)[1] == told(x, held)[1]
        compiled(x, held)
        assert smelt.stats()["recompiles"] <= count + 1


def test_changes_are_reported_outside_of_the_program() -> None:
    """Why a version does not hold is told without a call of the program's own methods."""
    asked: list[str] = []

    class Listed(list):  # type: ignore[type-arg]
        def __len__(self) -> int:
            asked.append("len")
            return super().__len__()

    class Keyed(dict):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            asked.append("iter")
            return super().__iter__()

    def read(x: torch.Tensor, held: Any) -> Any:
        base = list if isinstance(held, list) else dict
        return x * sum(list(base.__iter__(held)))

    compiled, x = smelt.compile(read, backend="eager"), torch.ones(2)
    for held in (Listed([1, 2]), Listed([1, 2, 3]), Keyed({1: 2, 3: 4}), Keyed({1: 2, 5: 4})):
        assert compiled(x, held).tolist() == read(x, held).tolist()
    assert smelt.stats()["recompile_reasons"]
    assert asked == []
