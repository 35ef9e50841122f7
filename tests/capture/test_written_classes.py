"""What the program writes to classes, and libraries for it, is seen by whoever looks at them, in their order."""

from __future__ import annotations

import abc
import collections
import collections.abc
import enum
import functools
import math
import numbers
import os
import sys
import typing
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from tests.capture.harness import compiled, same


class Doubling(type):
    """A metaclass with attributes that its classes write through."""

    kept: dict[type, int] = {}

    @property
    def twice(cls) -> int:
        return Doubling.kept[cls]

    @twice.setter
    def twice(cls, value: int) -> None:
        Doubling.kept[cls] = 2 * value


class Doubled(metaclass=Doubling):
    pass


class Setter:
    """A data descriptor that keeps its values in a list."""

    def __init__(self) -> None:
        self.values = [0]

    def __get__(self, obj: Any, kind: Any = None) -> Any:
        return self.values[-1]

    def __set__(self, obj: Any, value: int) -> None:
        self.values.append(value)


class WithSetter(type):
    place = Setter()


class Placed(metaclass=WithSetter):
    pass


class First:
    value = 1


class Second:
    value = 2


class Named:
    pass


def registered(x: Tensor) -> Any:
    class Base(abc.ABC):  # noqa: B024
        pass

    class Other:
        pass

    found = [isinstance(Other(), Base), issubclass(Other, Base)]
    Base.register(Other)
    return x + 1, [*found, isinstance(Other(), Base), issubclass(Other, Base)]


def registered_by_libraries(x: Tensor) -> Any:
    class Other:
        pass

    found = [isinstance(Other(), numbers.Number), isinstance(Other(), collections.abc.Sequence)]
    numbers.Number.register(Other)
    collections.abc.Sequence.register(Other)
    return x + 1, [*found, isinstance(Other(), numbers.Number), isinstance(Other(), collections.abc.Sequence)]


def no_longer_abstract(x: Tensor) -> Any:
    class Base(abc.ABC):
        @abc.abstractmethod
        def run(self) -> int: ...

    del Base.run
    found = [Base.__abstractmethods__]
    abc.update_abstractmethods(Base)
    return x + 1, [*found, Base.__abstractmethods__]


def ordered(x: Tensor) -> Any:
    class Number:
        def __init__(self, value: int) -> None:
            self.value = value

        def __lt__(self, other: Any) -> bool:
            return bool(self.value < other.value)

    before = "__ge__" in vars(Number)
    functools.total_ordering(Number)
    return x + 1, before, "__ge__" in vars(Number), Number(2) >= Number(1)  # type: ignore[operator]


def checkable(x: Tensor) -> Any:
    class Closes(typing.Protocol):
        def close(self) -> None: ...

    found = []
    for _ in range(2):
        try:
            found.append(str(isinstance(3, Closes)))  # type: ignore[misc]
        except TypeError as error:
            found.append(str(error))
        typing.runtime_checkable(Closes)
    return x + 1, found


def dictionary_of_a_class(x: Tensor) -> Any:
    class Made:
        a = 1
        b = 2

    del Made.a
    view = vars(Made)
    found = [[name for name in view if name in "abc"]]
    Made.c = 3  # type: ignore[attr-defined]
    return x + 1, [*found, [name for name in view if name in "abc"], "c" in Made.__dict__]


def methods_behind_operators(x: Tensor) -> Any:
    class Made:
        pass

    Made.__len__ = lambda self: 4  # type: ignore[attr-defined]
    found: list[Any] = [isinstance(Made(), collections.abc.Sized), len(Made())]  # type: ignore[arg-type]
    Made.__iter__ = lambda self: iter([2, 1])  # type: ignore[attr-defined]
    Made.__lt__ = lambda self, other: True  # type: ignore[attr-defined]
    Made.__index__ = lambda self: 2  # type: ignore[attr-defined]
    found += [sorted(Made()), len(sorted([Made(), Made()])), [1, 2, 3][Made()]]  # type: ignore[call-overload, type-var]
    Made.__repr__ = lambda self: "made"  # type: ignore[method-assign]
    Made.__call__ = lambda self: 8  # type: ignore[attr-defined]
    return x + 1, [*found, str([Made()]), callable(Made()), Made()()]  # type: ignore[operator]


class Manager:
    def __enter__(self) -> int:
        return 1

    def __exit__(self, *error: object) -> None:
        pass


MANAGER = Manager()
MANAGER.__enter__ = lambda: 2  # type: ignore[method-assign]


def entered(x: Tensor) -> Any:
    with MANAGER as number:
        x = x + number
    return x


class Entered:
    def __enter__(self) -> None:
        pass


def refused(x: Tensor) -> Any:
    try:
        with Entered():  # type: ignore[attr-defined]
            pass
    except (AttributeError, TypeError) as error:
        return x + 1, repr(error)


def refused_defaults(x: Tensor) -> Any:
    try:
        collections.namedtuple("Pair", "x y", defaults=3)  # type: ignore[call-overload]
    except TypeError as error:
        return x + 1, str(error)


def renamed(x: Tensor) -> Any:
    kept = Named.__name__, Named.__qualname__, Named.__module__
    Named.__name__, Named.__qualname__, Named.__module__ = "Name", "Qualified", "module"
    found = repr(Named), Named.__name__
    Named.__name__, Named.__qualname__, Named.__module__ = kept
    return x + 1, found


def other_bases(x: Tensor) -> Any:
    class Made(First):
        pass

    found = [Made().value, Made.__mro__[1].__name__]
    Made.__bases__ = (Second,)
    return x + 1, [*found, Made().value, Made.__mro__[1].__name__, issubclass(Made, First)]


def through_the_metaclass(x: Tensor) -> Any:
    Doubled.twice = 3
    Placed.place = 4  # type: ignore[misc]
    found = Doubled.twice, Placed.place, "twice" in vars(Doubled), "place" in vars(Placed)
    Doubled.twice = 5
    return x + 1, found, Doubled.twice


class Adding(type):
    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, value + 1)

    def __delattr__(cls, name: str) -> None:
        super().__delattr__(name)


class Added(metaclass=Adding):
    number = 0


def by_the_methods_of_the_metaclass(x: Tensor) -> Any:
    Added.number = Added.number + 1
    Added.other = 5
    found = Added.number, Added.other
    del Added.other
    type.__setattr__(Added, "plain", 3)
    found += Added.plain, hasattr(Added, "other")
    type.__delattr__(Added, "plain")
    Added.number = -1
    return x + 1, found, hasattr(Added, "plain"), Added.number


def refused_for_classes(x: Tensor) -> Any:
    found = []
    for change, values in ((object.__setattr__, (1,)), (object.__delattr__, ()), (type.__delattr__, ())):
        try:
            change(Added, "missing", *values)
        except (AttributeError, TypeError) as error:
            found.append(repr(error))
    return x + 1, found


def members(x: Tensor) -> Any:
    class Season(enum.Enum):
        SPRING = 1

        def spam(self) -> None: ...

    found = [hasattr(Season, "spam")]
    del Season.spam
    found.append(hasattr(Season, "spam"))
    Season.other = 3  # type: ignore[attr-defined]
    sys.getrefcount(Season)
    return x + 1, found, Season.other  # type: ignore[attr-defined]


def replaced(x: Tensor) -> Any:
    y = x + 1
    with mock.patch("os.getcwd") as seen:
        found = type(os.getcwd()).__name__
        seen.assert_called_once_with()
    return y * 2, found


def replaced_with_a_value(x: Tensor) -> Any:
    with mock.patch("math.sin", return_value=3) as seen:
        found = math.sin(2.0)
    return x + 1, found, seen.call_count


def replaced_by_its_specification(x: Tensor) -> Any:
    with mock.patch.object(First, "run", create=True) as seen:
        First.run(7)  # type: ignore[attr-defined]
    return x + 1, seen.call_args.args


CASES: list[Callable[[Tensor], Any]] = [
    registered,
    registered_by_libraries,
    no_longer_abstract,
    ordered,
    checkable,
    dictionary_of_a_class,
    methods_behind_operators,
    entered,
    refused,
    refused_defaults,
    renamed,
    other_bases,
    through_the_metaclass,
    by_the_methods_of_the_metaclass,
    refused_for_classes,
    members,
    replaced,
    replaced_with_a_value,
    replaced_by_its_specification,
]


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_it_is_as_in_eager(fn: Callable[[Tensor], Any]) -> None:
    run = compiled(fn)
    for _ in range(3):
        want, got = fn(torch.ones(2)), run(torch.ones(2))
        assert same(want, got), f"eager {want!r}\ncompiled {got!r}"
