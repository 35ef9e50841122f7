"""`del object.name`: properties, descriptors, slots, modules, and classes that do it themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt


class Plain:
    def __init__(self) -> None:
        self.k = 1


class Slots:
    __slots__ = ("k", "a")

    def __init__(self) -> None:
        self.k = 1


class NoPlace:
    __slots__ = ()
    k = 1


class Property:
    def __init__(self) -> None:
        self._a = 3

    @property
    def a(self) -> int:
        return self._a

    @a.deleter
    def a(self) -> None:
        del self._a

    @property
    def k(self) -> int:
        return 1


class Counts:
    def __get__(self, obj: Any, kind: Any) -> int:
        return 3

    def __set__(self, obj: Any, value: Any) -> None:
        obj.__dict__["written"] = value

    def __delete__(self, obj: Any) -> None:
        obj.__dict__["gone"] = obj.__dict__.get("gone", 0) + 1


class Descriptor:
    a = Counts()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.k, self.sub = 3, nn.Linear(1, 1)
        self.register_buffer("b", torch.ones(1))

    @property
    def a(self) -> int:
        return 1


class OwnOfModel(Model):
    def __delattr__(self, name: str) -> None:
        self.log = name
        super().__delattr__(name)


class Own:
    def __init__(self) -> None:
        self.k, self.a = 1, 2

    def __delattr__(self, name: str) -> None:
        self.__dict__["log"] = name
        object.__delattr__(self, name)


class OwnBySuper(Own):
    def __delattr__(self, name: str) -> None:
        object.__setattr__(self, "log", name)
        super().__delattr__(name)


def deletes(obj: Any, name: str, x: Tensor) -> Any:
    y = x * 2
    try:
        delattr(obj, name)
    except AttributeError as error:
        return y + 1, str(error)
    return y, None


def looks_behind(obj: Any, name: str, x: Tensor) -> Any:
    found = deletes(obj, name, x)
    if hasattr(obj, "__dict__"):
        obj.__dict__["seen"] = 1
    return found


def looks_before(obj: Any, name: str, x: Tensor) -> Any:
    if hasattr(obj, "__dict__"):
        obj.__dict__["seen"] = 1
    return deletes(obj, name, x)


def state(obj: Any) -> Any:
    held = getattr(obj, "__dict__", {})
    slots = [name for name in getattr(obj, "__slots__", ()) if hasattr(obj, name)]
    own = sorted(name for name in held if name not in vars(nn.Module()))
    return own, slots, sorted(held.get("_modules", ())), sorted(held.get("_buffers", ()))


CLASSES = [Plain, Slots, NoPlace, Property, Descriptor, Model, OwnOfModel, Own, OwnBySuper]


@pytest.mark.parametrize("name", ["a", "k", "sub", "b", "zz"])
@pytest.mark.parametrize("fn", [deletes, looks_behind, looks_before])
@pytest.mark.parametrize("make", CLASSES)
def test_as_in_eager(make: Callable[[], Any], fn: Callable[..., Any], name: str) -> None:
    run = smelt.compile(fn)
    for _ in range(3):
        wanted, got = make(), make()
        expected, found = fn(wanted, name, torch.ones(2)), run(got, name, torch.ones(2))
        assert found[1] == expected[1] and torch.equal(found[0], expected[0])
        assert state(got) == state(wanted)


@pytest.mark.parametrize(
    "obj", [[1], 3, None, "s", {}, object(), len, Plain().__init__], ids=lambda obj: str(type(obj))
)
def test_nowhere_to_delete_from(obj: Any) -> None:
    _, expected = deletes(obj, "zz", torch.ones(2))
    assert smelt.compile(deletes)(obj, "zz", torch.ones(2))[1] == expected


def sets(obj: Any, x: Tensor) -> Any:
    try:
        obj.k = 3
    except AttributeError as error:
        return x * 2, str(error)
    return x, None


def test_a_property_without_a_setter_of_a_class_within_a_function() -> None:
    class Inner(Property):
        pass

    assert smelt.compile(sets)(Inner(), torch.ones(2))[1] == sets(Inner(), torch.ones(2))[1] is not None
