"""Objects of C code that hold functions: partials of partials; properties, methods and caches made in a frame."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.capture.harness import compiled, same


def add(a: Any, b: Any, c: Any = 1) -> Any:
    return a * b + c


class Partial(functools.partial):  # type: ignore[type-arg]
    """Taken apart like its base."""


class Called(functools.partial):  # type: ignore[type-arg]
    """Not taken apart: it says itself what a call does."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs) * 2


def with_attribute(n: int) -> Any:
    made = functools.partial(add, c=n)
    made.note = n  # type: ignore[attr-defined]
    return made


PARTIALS: dict[str, Callable[[int], Any]] = {
    "keyword": lambda n: functools.partial(add, c=n),
    "argument": lambda n: functools.partial(add, n),
    "function": lambda n: functools.partial([add, max][n % 2], 4),
    "of a partial": lambda n: functools.partial(functools.partial(add, n), c=n + 1),
    "subclass": lambda n: Partial(add, c=n),
    "with its own call": lambda n: Called(add, c=n),
    "with an attribute": with_attribute,
    "either": lambda n: with_attribute(n) if n % 2 else functools.partial(add, c=n),
}


@pytest.mark.parametrize("break_before", [False, True])
@pytest.mark.parametrize("place", ["argument", "item", "attribute"])
@pytest.mark.parametrize("name", PARTIALS)
def test_a_partial_of_a_partial_from_outside(name: str, place: str, break_before: bool) -> None:
    class Held:
        outer: Any

    complete = name in ("argument", "function", "of a partial")
    held: Any = {} if place == "item" else Held()

    def fn(x: Tensor, outer: Any) -> Any:
        if break_before:
            torch._dynamo.graph_break()
        if place == "item":
            outer = held["outer"]
        elif place == "attribute":
            outer = held.outer
        made = functools.partial(outer, 3)
        return x + made() if complete else made(x), made.args, made.func is outer

    run, x = compiled(fn, fullgraph=not break_before and name != "with its own call"), torch.arange(3.0)
    for n in (0, 1, 2, 3, 2):
        made = PARTIALS[name](n)
        if place == "item":
            held["outer"] = made
        elif place == "attribute":
            held.outer = made
        given = None if place != "argument" else made
        assert same(fn(x, given), run(x, given))


def test_a_partial_of_one_that_the_frame_changed() -> None:
    def fn(x: Tensor, n: int) -> Any:
        outer = functools.partial(add, b=n)
        outer.keywords["c"] = n + 1
        return functools.partial(outer, x)(), functools.partial(outer, x).keywords

    run, x = compiled(fn, fullgraph=True), torch.arange(3.0)
    for n in range(5):
        assert same(fn(x, n), run(x, n))


MADE: dict[str, tuple[Callable[[int, Tensor], Any], Callable[[Any], Any]]] = {
    "property": (lambda n, x: property(lambda _: (n, x)), lambda made: made.fget(None)),
    "setter": (
        lambda n, x: property(lambda _: 1, doc="text").setter(lambda _, v: (n, x)),
        lambda made: (made.fset(None, 1), made.__doc__),
    ),
    "staticmethod": (lambda n, x: staticmethod(lambda: (n, x)), lambda made: (made(), made.__func__())),
    "classmethod": (lambda n, x: classmethod(lambda _: (n, x)), lambda made: made.__func__(None)),
    "lru_cache": (
        lambda n, x: functools.lru_cache(maxsize=2)(lambda a: (a, n, x)),
        lambda made: (made(1), made.cache_info(), made.cache_parameters(), made.__wrapped__(2)),
    ),
    "cache of a named function": (
        lambda n, x: functools.cache(functools.wraps(add)(lambda: (n, x))),
        lambda made: (made(), made.__name__, made.__module__),
    ),
    "partial": (lambda n, x: functools.partial(lambda a, b: (a, b, n), x), lambda made: made(1)),
    "key": (lambda n, x: functools.cmp_to_key(lambda a, b: a - b)(n), lambda made: made.obj),
}


@pytest.mark.parametrize("break_after", [False, True])
@pytest.mark.parametrize("name", MADE)
def test_wrapper_made_in_the_frame_holds_values_of_its_call(name: str, break_after: bool) -> None:
    make, look = MADE[name]
    box: list[Any] = []

    def fn(x: Tensor, n: int) -> Tensor:
        made = make(n, x * 2)
        if break_after:
            torch._dynamo.graph_break()
        box.append(made)
        return x + 1

    run, x = compiled(fn), torch.arange(3.0)
    made = []
    for n in range(5):
        fn(x + n, n)
        run(x + n, n)
        want, got = box[-2:]
        assert same(look(want), look(got))
        made.append(got)
    assert len({id(each) for each in made}) == 5
    assert same(look(MADE[name][0](0, x * 2)), look(made[0])) or name == "lru_cache"


def test_a_cache_that_the_frame_made_gives_what_it_gave() -> None:
    def fn(x: Tensor, n: int) -> Any:
        runs: list[int] = []

        @functools.cache
        def cached(a: int) -> Tensor:
            runs.append(a)
            return x * a * n

        return cached(2) + cached(3), cached(2) is cached(2), runs

    run, x = compiled(fn), torch.arange(3.0)
    for n in range(5):
        want, got = fn(x, n), run(x, n)
        assert same(want, got) and type(got[0]) is Tensor


@pytest.mark.parametrize("break_before", [False, True])
def test_tensors_are_keys_by_identity(break_before: bool) -> None:
    runs: list[int] = []

    @functools.lru_cache
    def cached(t: Tensor, n: int = 2) -> Tensor:
        runs.append(n)
        return t * n

    def fn(x: Tensor, n: int) -> Any:
        if break_before:
            torch._dynamo.graph_break()
        first = cached(x)
        x.add_(1)
        return first + cached(x), cached(x) is first, cached(x, n)

    run, x = compiled(fn), torch.arange(3.0)
    for n in (1, 2, 1, 3):
        got = run(x, n)
        assert got[1] and got[0].tolist() == [0.0, 4.0, 8.0]
    assert runs == [2, 1, 2, 3]
    assert torch.equal(cached(x, 1), torch.arange(3.0) + 1)
