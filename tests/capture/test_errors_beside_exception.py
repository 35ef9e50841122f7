"""Exceptions of the program that are no `Exception`: they pass through C code to the program's own `except` clauses."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor

from tests.capture.harness import compiled


class Stop(BaseException):
    pass


def fail(kind: type[BaseException], *args: object) -> NoReturn:
    raise kind("said")


class Refusing:
    """Its methods raise when C code calls them."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind = kind

    def __hash__(self) -> int:
        fail(self.kind)

    def __eq__(self, other: object) -> bool:
        fail(self.kind)

    def __len__(self) -> int:
        fail(self.kind)

    def __repr__(self) -> str:
        fail(self.kind)


def numbers(kind: type[BaseException]) -> Iterator[int]:
    yield 1
    fail(kind)


def waiting() -> Iterator[int]:
    try:
        yield 1
    finally:
        pass


def thrown(kind: type[BaseException], *given: Any) -> object:
    generator: Any = waiting()
    next(generator)
    return generator.throw(kind, *given)


def thrown_early(kind: type[BaseException]) -> object:
    generator: Any = waiting()
    return generator.throw(kind)


WAYS: dict[str, Callable[[type[BaseException]], object]] = {
    "map": lambda kind: list(map(functools.partial(fail, kind), [1])),
    "sorted": lambda kind: sorted([2, 1], key=functools.partial(fail, kind)),
    "reduce": lambda kind: functools.reduce(lambda a, b: fail(kind), [1, 2]),
    "list": lambda kind: list(numbers(kind)),
    "sum": lambda kind: sum(numbers(kind)),
    "any": lambda kind: any(x > 3 for x in numbers(kind)),
    "join": lambda kind: ",".join(str(x) for x in numbers(kind)),
    "set": lambda kind: {x for x in numbers(kind)},  # noqa: C416
    "unpacked": lambda kind: [*numbers(kind)],
    "yield from": lambda kind: [x for x in delegating(kind)],  # noqa: C416
    "hash": lambda kind: {Refusing(kind): 1},
    "equal": lambda kind: Refusing(kind) in [Refusing(kind)],
    "length": lambda kind: list(Refusing(kind)),  # type: ignore[call-overload]
    "repr": lambda kind: repr([Refusing(kind)]),
    "throw": thrown,
    "throw early": thrown_early,
}


def delegating(kind: type[BaseException]) -> Iterator[int]:
    yield from numbers(kind)


@pytest.mark.parametrize(
    "kind", [Stop, KeyboardInterrupt, SystemExit, GeneratorExit, ValueError], ids=lambda k: k.__name__
)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("catches", [True, False], ids=["caught", "not caught"])
def test_it_reaches_the_program(way: str, kind: type[BaseException], catches: bool) -> None:
    do = WAYS[way]

    def caught(t: Tensor) -> Any:
        t = t + 1
        try:
            do(kind)
        except kind as error:
            return t * 2, str(error)
        return t

    def passed(t: Tensor) -> Any:
        t = t + 1
        do(kind)
        return t

    fn = caught if catches else passed
    fast, x = compiled(fn), torch.arange(4.0)
    for _ in range(2):
        assert outcome(fast, x) == outcome(fn, x)


def outcome(fn: Callable[..., Any], x: Tensor) -> object:
    try:
        return str(fn(x))
    except BaseException as error:
        return type(error), str(error)


class NoException(ValueError):
    def __new__(cls) -> Any:
        return 5


RAISED: dict[str, Callable[[], object]] = {
    "cause that is a number": lambda: raised(IndexError, 5),
    "cause that is another class": lambda: raised(IndexError, int),
    "cause that is a class": lambda: raised(IndexError, KeyError),
    "no cause": lambda: raised(IndexError, None),
    "another class": lambda: raised(int, None),
    "a number": lambda: raised(5, None),
    "a class that makes a number": lambda: raised(NoException, None),
    "throw: text": lambda: thrown(ValueError, "a"),
    "throw: several": lambda: thrown(ValueError, ("a", 1)),
    "throw: an exception": lambda: thrown(ValueError, ValueError(2)),
    "throw: another class": lambda: thrown(int),  # type: ignore[arg-type]
    "throw: two exceptions": lambda: thrown(ValueError(1), ValueError(2)),  # type: ignore[arg-type]
    "throw: no traceback": lambda: thrown(ValueError, None, 5),
}


def raised(kind: Any, cause: Any) -> None:
    raise kind from cause


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("way", RAISED)
def test_invalid_raise_and_throw_behave_as_in_eager(way: str) -> None:
    do = RAISED[way]

    def told(t: Tensor) -> Any:
        t = t + 1
        try:
            do()
        except Exception as error:
            return t, repr(error), repr(error.__cause__)
        return t

    x = torch.arange(4.0)
    assert outcome(compiled(told), x) == outcome(told, x)


@pytest.mark.parametrize("kinds", [5, (ValueError, 5), "a", int, (), (ValueError,), ((ValueError,),)], ids=repr)
def test_except_clause_types_behave_as_in_eager(kinds: Any) -> None:
    def told(t: Tensor) -> Any:
        t = t + 1
        try:
            raise ValueError(1)
        except kinds:
            return t * 2

    x = torch.arange(4.0)
    assert outcome(compiled(told), x) == outcome(told, x)


class VersionGuards(type):
    def __instancecheck__(cls, value: object) -> bool:
        return True

    def __subclasscheck__(cls, kind: type) -> bool:
        return True


class Any_(Exception, metaclass=VersionGuards):  # noqa: N801, N818
    pass


def test_an_except_clause_asks_no_metaclass() -> None:
    def told(t: Tensor) -> Any:
        try:
            raise ValueError(1)
        except Any_:
            return t
        except ValueError:
            return t + 1

    x = torch.arange(4.0)
    assert torch.equal(compiled(told)(x), told(x))


def test_arguments_named_as_those_of_the_compiler() -> None:
    def told(t: Tensor) -> Any:
        return t + dict(fn=1, args=2, kwargs=3, error=4)["fn"], f"{3}", t.add(other=1)

    x = torch.arange(4.0)
    assert outcome(compiled(told), x) == outcome(told, x)
