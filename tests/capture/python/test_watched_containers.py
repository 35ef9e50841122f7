"""Subclasses of containers whose methods the program watches: capture calls none of them that eager does not call."""

from __future__ import annotations

import math
import operator
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

NAMES = [
    "__len__", "__iter__", "__contains__", "__getitem__", "__setitem__", "__delitem__", "__eq__", "__ne__", "__bool__",
    "__lt__", "__sub__", "__rsub__", "__reversed__", "copy", "keys", "items", "values", "get", "append", "extend",
    "update", "add", "clear", "pop", "index", "count", "insert", "difference", "__copy__", "__reduce_ex__", "__repr__",
]  # fmt: skip
calls: list[str] = []


def watched(base: Any) -> Any:
    """A class that writes down each call of one of its methods."""

    def override(name: str) -> Any:
        def method(self: Any, *args: Any) -> Any:
            calls.append(name)
            return getattr(base, name)(self, *args)

        return method

    def true(self: Any) -> bool:
        calls.append("__bool__")
        return True

    methods = {name: override(name) for name in NAMES if hasattr(base, name)}
    return type(f"Watched{base.__name__.title()}", (base,), {**methods, "__bool__": true, "__hash__": object.__hash__})


LIST, TUPLE, SET, FROZEN, DEQUE, DICT, ORDERED, DEFAULT = map(
    watched, (list, tuple, set, frozenset, deque, dict, OrderedDict, defaultdict)
)
SEQUENCES = [lambda: LIST([1, 2, 3]), lambda: TUPLE([1, 2, 3]), lambda: DEQUE([1, 2, 3])]
MAPPINGS = [lambda: DICT({1: 2, 3: 4}), lambda: ORDERED({1: 2, 3: 4}), lambda: DEFAULT(int, {1: 2, 3: 4})]
READS: list[Callable[[Any], object]] = [
    lambda held: 0,
    lambda held: len(held),
    lambda held: [*held],
    lambda held: 1 in held,
    lambda held: 9 in held,
    lambda held: bool(held),
    lambda held: held == held,
    lambda held: list(held),
    lambda held: sum(held),
    lambda held: held,
    lambda held: (held, held),
    lambda held: str(held),
    lambda held: sorted(held),
    lambda held: tuple(held),
    lambda held: (lambda *given: given)(*held),
    lambda held: set(held),
    lambda held: {*held, 5},
    lambda held: frozenset(held),
    lambda held: max(held),
]
WRITES: dict[Any, list[Callable[[Any], object]]] = {
    LIST: [
        lambda held: held.append(4),
        lambda held: held.__setitem__(0, 7),
        lambda held: list.append(held, 5),
        lambda held: held.pop(),
        lambda held: list.clear(held),
    ],
    DEQUE: [lambda held: held.append(4), lambda held: deque.append(held, 4), lambda held: deque.popleft(held)],
    SET: [lambda held: held.add(4), lambda held: set.discard(held, 1), lambda held: set.clear(held)],
    DICT: [
        lambda held: held.update({5: 6}),
        lambda held: dict.__setitem__(held, 1, 8),
        lambda held: held.pop(1),
        lambda held: dict.clear(held),
    ],
    ORDERED: [lambda held: OrderedDict.__setitem__(held, 5, 8), lambda held: OrderedDict.pop(held, 1)],
    DEFAULT: [lambda held: defaultdict.__setitem__(held, 5, 8), lambda held: defaultdict.pop(held, 1)],
}
CASES = [
    *((make, read) for make in SEQUENCES for read in READS),
    *((make, read) for make in MAPPINGS for read in READS),
    *((make, read) for make in (lambda: SET([1, 2, 3]), lambda: FROZEN([1, 2, 3])) for read in READS),
    *((make, write) for make in (SEQUENCES[0], SEQUENCES[2], lambda: SET([1, 2, 3]), *MAPPINGS)
      for write in WRITES[type(make())]),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CASES)))
@pytest.mark.parametrize("inside", [False, True], ids=["given", "made"])
def test_calls(number: int, inside: bool) -> None:
    make, act = CASES[number]

    def given(x: torch.Tensor, held: Any) -> Any:
        y = x + 1
        found = act(held)
        return y * 2, found

    def made(x: torch.Tensor, held: Any) -> Any:
        y = x + 1
        held = make()
        found = act(held)
        return y * 2, found, held

    fn = made if inside else given
    compiled, x = smelt.compile(fn, backend="eager"), torch.ones(2)

    def told(call: Any) -> Any:
        held = make()
        calls.clear()
        _, *rest = call(x, held)
        seen = calls.copy()
        return seen, repr(rest), repr(held)

    for _ in range(2):
        assert told(compiled) == told(fn)


class Sized:
    """Iterable, and its length raises or is none."""

    def __init__(self, error: Any) -> None:
        self.error = error

    def __iter__(self) -> Any:
        return iter([1, 2])

    def __len__(self) -> int:
        raise self.error


@pytest.mark.parametrize("error", [TypeError("no length"), NotImplementedError("of a stream"), KeyError(1)])
@pytest.mark.parametrize("use", [list, tuple, sorted, sum, set, max, lambda held: [*held], lambda held: {*held}])
def test_length_that_raises(error: Exception, use: Any) -> None:
    """C code that makes a list asks for the length, and takes a TypeError for an answer."""

    def fn(x: torch.Tensor, held: Any) -> Any:
        try:
            return x + 1, use(held)
        except (NotImplementedError, KeyError) as raised:
            return x, type(raised)

    compiled, x = smelt.compile(fn, backend="eager"), torch.ones(2)
    for _ in range(2):
        assert repr(compiled(x, Sized(error))) == repr(fn(x, Sized(error)))


class Numbered:
    """An object whose methods give a number that it holds."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Numbered) and self.number == other.number

    def __index__(self) -> int:
        return self.number

    def __float__(self) -> float:
        return self.number * 1.5

    def __len__(self) -> int:
        return self.number

    def __round__(self) -> int:
        return self.number


USES: list[Callable[[Any], object]] = [
    hash,
    lambda held: held in {held},
    lambda held: {held: 1}[held],
    lambda held: {held: 1}.get(Numbered(held.number)),
    lambda held: len({held, Numbered(2), Numbered(3)}),
    int,
    float,
    operator.index,
    lambda held: list(range(held)),
    lambda held: [*range(9)][held],
    lambda held: "ab" * held,
    len,
    bool,
    round,
    math.sqrt,
    lambda held: f"{held.number}",
]


@pytest.mark.parametrize("number", range(len(USES)))
def test_numbers_that_c_code_takes(number: int) -> None:
    """A number that changes from call to call is a plain one where C code asks for it."""
    use = USES[number]

    def fn(x: torch.Tensor, held: Any) -> Any:
        return x + 1, use(held)

    compiled, x = smelt.compile(fn, backend="eager"), torch.ones(2)
    for each in (1, 2, 3, 4, 2):
        assert repr(compiled(x, Numbered(each))) == repr(fn(x, Numbered(each)))
