"""What functions refuse: a builtin that capture gives a meaning of its own raises eager's error, class and text."""

from __future__ import annotations

import _warnings
import collections
import contextvars
import operator
import os
import sys
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt

FUNCTIONS: list[Callable[..., Any]] = [
    *(abs, all, any, bool, callable, complex, delattr, dict, divmod, enumerate, filter, float, format, frozenset),
    *(getattr, globals, hasattr, hash, id, int, isinstance, issubclass, iter, len, list, locals, map, max, min, next),
    *(object, pow, print, range, repr, reversed, round, set, setattr, sorted, str, sum, super, tuple, type, vars, zip),
    *(dict.get, dict.update, dict.__getitem__, dict.__contains__, dict.__init__, list.append, list.extend),
    *(list.__getitem__, tuple.__getitem__, str.join, str.format, object.__setattr__, object.__getattribute__),
    *(type.__getattribute__, collections.OrderedDict.update, collections.defaultdict.__missing__, collections.deque),
    *(collections.namedtuple, contextvars.ContextVar.get, operator.not_, operator.add, operator.getitem, operator.lt),
    *(os.fspath, sys.exception, sys.exc_info, typing.cast, _warnings.warn, dict.fromkeys, torch.is_tensor),
]

CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    *[(args, {}) for args in ((), (None,), (3,), ("a",), ([],), ({},), (1, 2), ("a", "b"), ([1], 3), ([1], [2]))],
    *[(args, {}) for args in (({}, 3), (int, 3), (3, "a"), ([1], "a"), ({}, 3, 3, 3), ("x", [1]), (3, [1]))],
    *[((None,) * count, {}) for count in (2, 3, 4, 7)],
    *[(args, {"zzz": 1}) for args in ((), (None,), ([1, 2],), (3, 4))],
    *[(([1], [1, 2]), {"strict": True}), (([1],), {"strict": 3}), (([[1]],), {"key": 3}), (("a",), {"sep": 3})],
]


def refusals(fn: Any, x: Tensor) -> Any:
    y, found = x + 1, []
    for args, kwargs in CALLS:
        try:
            fn(*args, **kwargs)
        except Exception as error:
            found.append((args, kwargs, type(error).__name__, str(error)))
    return found, y


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: getattr(fn, "__qualname__", str(fn)))
def test_inside_try(fn: Any) -> None:
    want, got = refusals(fn, torch.ones(2)), smelt.compile(refusals, backend="eager")(fn, torch.ones(2))
    assert got[0] == want[0]
    assert torch.equal(got[1], want[1])


@pytest.mark.parametrize("fn", [len, isinstance, getattr, range, zip, callable, next, reversed, dict.get, hash, print])
@pytest.mark.parametrize("given", [(), (None,) * 9])
def test_reaches_the_caller(fn: Any, given: Any) -> None:
    def program(x: Tensor) -> Any:
        return x + 1, fn(*given, **({"zzz": 1} if fn in (zip, print) else {}))

    with pytest.raises(TypeError) as want:
        program(torch.ones(2))
    with pytest.raises(TypeError) as got:
        smelt.compile(program, backend="eager")(torch.ones(2))
    assert str(got.value) == str(want.value)


def bound(x: Tensor, held: dict[str, int], items: list[int]) -> Any:
    """Methods of containers from outside and of the frame, with too many, too few and unknown arguments."""
    made: dict[str, int] = {}
    found = []
    for method in (held.get, held.update, items.append, items.extend, made.get, made.update, [].append, "".join):
        for args, kwargs in (((), {}), ((1, 2, 3, 4), {}), ((1,), {"zzz": 1})):
            try:
                method(*args, **kwargs)
            except Exception as error:
                found.append((type(error).__name__, str(error)))
    try:
        dict.get(x, 3)
    except TypeError as error:
        found.append(("TypeError", str(error)))
    return x * 2, found, held, items


def test_methods_of_containers() -> None:
    want = bound(torch.ones(2), {"a": 1}, [1])
    got = smelt.compile(bound, backend="eager")(torch.ones(2), {"a": 1}, [1])
    assert got[1:] == want[1:]
