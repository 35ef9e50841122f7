"""`functools.lru_cache` around functions that are not pure: each result is made once, as in eager."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import smelt
from tests.capture.harness import compiled


def test_a_cached_function_runs_once() -> None:
    calls: list[int] = []

    @functools.lru_cache
    def cached(n: int, name: str = "") -> int:
        calls.append(n)
        return n * 10 + len(calls)

    def fn(x: Tensor) -> Tensor:
        return x + cached(2) + cached(3, name="a")

    run, x = compiled(fn, fullgraph=True), torch.ones(2)
    want = 1.0 + 21 + 32
    for _ in range(3):
        assert run(x).tolist() == [want, want]
    assert calls == [2, 3]
    cached.cache_clear()
    assert run(x).tolist() == [1.0 + 23 + 34] * 2 == fn(x).tolist()
    assert calls == [2, 3, 2, 3]


def test_cached_function_returns_one_object() -> None:
    @functools.cache
    def table(n: int) -> Tensor:
        return torch.arange(n) * 1.0

    @functools.cache
    def held(n: int) -> dict[str, list[int]]:
        return {"items": [n]}

    def fn(x: Tensor) -> Any:
        held(1)["items"].append(len(held(1)["items"]))
        return x + table(2), table(2), table(2) is table(2), held(1)

    table(2)  # after the write it is asked for what it holds alone
    run, x = compiled(fn, fullgraph=True), torch.ones(2)
    for _ in range(3):
        total, found, same, items = run(x)
        assert torch.equal(total, x + table(2)) and same and found is table(2) and items is held(1)
    assert held(1) == {"items": [1, 1, 2, 3]}
    table(2).add_(1)
    assert run(x)[0].tolist() == [2.0, 3.0]


def test_numbers_that_change_stay_one_graph() -> None:
    @functools.lru_cache
    def double(n: int) -> int:
        return n * 2

    run, x = smelt.compile(lambda x, n: x + double(n), backend="eager"), torch.ones(2)
    smelt.reset()
    for n in range(2, 9):
        assert run(x, n).tolist() == [1.0 + 2 * n] * 2
    assert smelt.stats()["graphs"] <= 2


def test_a_function_that_raises_is_in_no_cache() -> None:
    @functools.lru_cache
    def refused(n: int) -> int:
        raise ValueError(f"no {n}")

    def fn(x: Tensor) -> tuple[Tensor, str]:
        try:
            return x + refused(1), ""
        except ValueError as error:
            return x, str(error)

    run = compiled(fn)
    for _ in range(2):
        assert run(torch.ones(1))[1] == "no 1"


CALLS: list[int] = []


def test_a_result_is_found_again_for_numbers_that_change() -> None:
    @functools.cache
    def numbered(k: int) -> int:
        CALLS.append(k)
        return k + len(CALLS)

    CALLS.clear()
    run = compiled(lambda x, k: x + numbered(k))
    found = [run(torch.zeros(1), k).item() for k in (1, 2, 3, 1, 2, 3, 4, 4)]
    assert (found, CALLS) == ([2, 4, 6, 2, 4, 6, 8, 8], [1, 2, 3, 4])


def test_a_result_is_found_again_after_writes() -> None:
    @functools.cache
    def noted(k: int) -> int:
        CALLS.append(k)
        return k

    CALLS.clear()
    held: list[int] = []

    def program(x: Tensor, k: int) -> Any:
        held.append(k)
        return x + noted(k)

    run = compiled(program)
    for k in (1, 1, 5, 1, 5):
        assert run(torch.zeros(1), k).item() == k
    assert (CALLS, held) == ([1, 5], [1, 1, 5, 1, 5])


def _bucket(k: int) -> int:
    return k * 2 + 1


def test_a_function_that_only_computes_serves_every_number() -> None:
    cached = functools.cache(_bucket)
    run = compiled(lambda x, k: x + cached(k))
    assert [run(torch.zeros(1), k).item() for k in (3, 4, 5, 6, 7)] == [7, 9, 11, 13, 15]
    assert sum(len(site.versions) for site in run._smelt_session.sites.values()) == 2


class Pair(NamedTuple):
    a: Any
    b: Any


def test_an_equal_key_of_another_class_is_a_hit() -> None:
    def make() -> tuple[Any, list[str]]:
        made: list[str] = []

        @functools.lru_cache
        def kind(key: Any) -> str:
            made.append(type(key).__name__)
            return type(key).__name__ + str(key)

        return kind, made

    kind, made = make()

    def fn(x: Tensor, key: Any) -> Any:
        return x + 1, kind((3, 4)), kind(Pair(3, 4)), kind(Pair((3.0,), 4)), kind(((3,), 4)), kind(key)

    def seen(run: Any) -> Any:
        kind.cache_clear()
        made.clear()
        keys = [(1, 2), Pair(1, 2), (1.0, 2), (True, 2), Pair(1, 2), (1, 2)]
        return [run(torch.ones(2), key)[1:] for key in keys], list(made)

    assert seen(compiled(fn)) == seen(fn)


@functools.lru_cache
def _half(sizes: tuple[Any, ...]) -> Any:
    return [n / 2 for n in sizes], sizes[0]


def test_a_hit_of_a_pure_function_gives_what_the_first_call_gave() -> None:
    def fn(x: Tensor, key: Any) -> Any:
        return x + 1, _half(key)

    def seen(run: Any) -> Any:
        _half.cache_clear()
        return [repr(run(torch.ones(2), key)[1]) for key in ((1, 2), (1.0, 2), Pair(1, 2.0), (True, 2), (3, 2))]

    assert seen(compiled(fn)) == seen(fn)


class Counter:
    def __init__(self) -> None:
        self.count = 0

    @functools.lru_cache(maxsize=2)  # noqa: B019
    def after(self, n: int) -> int:
        self.count += 1
        return self.count + n


def test_a_method_that_writes_to_its_object_runs_once() -> None:
    def fn(x: Tensor, held: Counter) -> Any:
        mine = Counter()
        return x * mine.after(1), mine.after(1), mine.count, held.after(1), held.after(1), held.after(2), held.count

    def seen(run: Any) -> Any:
        held = Counter()
        return [run(torch.ones(2), held)[1:] for _ in range(3)]

    assert seen(compiled(fn)) == seen(fn)


def test_a_cache_that_the_function_makes() -> None:
    def fn(x: Tensor) -> Any:
        class Seen:
            count = 0

        @functools.lru_cache
        def counted(t: Tensor) -> Tensor:
            Seen.count += 1
            return t * Seen.count

        return counted(x), counted(x), Seen.count

    (a, b, count), run = fn(torch.ones(2)), compiled(fn)
    for _ in range(2):
        found = run(torch.ones(2))
        assert torch.equal(found[0], a) and torch.equal(found[1], b) and found[2] == count == 1


class Scaled:
    def __init__(self, k: int) -> None:
        self.k = k
        self.calls = 0

    @functools.cache  # noqa: B019
    def times(self, n: int) -> int:
        CALLS.append(n)
        return self.k * n

    @functools.cache  # noqa: B019
    def table(self) -> Tensor:
        return torch.arange(3.0) * self.k


class Equal(Scaled):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)

    def __hash__(self) -> int:
        return 7


class ScaledModule(torch.nn.Module):
    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    times, table = Scaled.times, Scaled.table


def _once(x: Tensor, held: Any) -> Any:
    return x * held.times(2), held.table(), held.table() is held.table()


def _written_inside(x: Tensor, held: Any) -> Any:
    y = x * held.times(2)
    held.k = held.k + 1
    return y * held.times(2) * held.k, held.times(n=3) if held.k > 90 else 0


def _cleared_inside(x: Tensor, held: Any) -> Any:
    y = x * held.times(2)
    type(held).times.cache_clear()
    return y * held.times(2), 0


def _before_and_after_a_break(x: Tensor, held: Any) -> Any:
    y = x * held.times(2)
    held.k = held.k * 3
    y.tolist()
    return y * held.times(2) + held.table(), 0


def _of_its_own(x: Tensor, held: Any) -> Any:
    mine = type(held)(4)
    y = x * mine.times(2)
    mine.k = 5
    return y * mine.times(2), 0


@pytest.mark.parametrize("fn", [_once, _written_inside, _cleared_inside, _before_and_after_a_break, _of_its_own])
@pytest.mark.parametrize("kind", [Scaled, Equal, ScaledModule])
def test_a_cached_method_gives_what_it_gave_when_attributes_change(fn: Any, kind: type) -> None:
    def seen(run: Any) -> Any:
        kind.times.cache_clear(), kind.table.cache_clear(), CALLS.clear()
        first, second = kind(3), kind(5)
        found: list[Any] = []
        for k in (3, 7, 8, 2):
            for held in (first, second):
                y, *more = run(torch.ones(3), held)
                found.append((y.tolist(), str(more), list(CALLS)))
            first.k = k
            if k == 8:
                kind.times.cache_clear()
        return found

    assert seen(compiled(fn)) == seen(fn)


def _counts(cached: Any, fn: Any, told: list[Any]) -> list[Any]:
    """Values and counters of four calls, the cache emptied after the third."""
    seen: list[Any] = []
    for k in range(4):
        try:
            seen.append(fn(torch.ones(2)).tolist())
        except ValueError as error:
            seen.append(str(error))
        seen += [cached.cache_info(), list(told)]
        if k == 2:
            cached.cache_clear()
    return seen


def _double(n: Any, k: int = 0) -> Any:
    if n == 7:
        raise ValueError(n)
    return n * 2


def _caught(c: Any) -> Any:
    try:
        return c(7)
    except ValueError:
        return c(1)


def _told(c: Any, told: list[Any]) -> Any:
    first = c(3)
    told.append(c.cache_info())
    c(4)
    second = c(3)
    told.append(c.cache_info().hits)
    return first + second


def _emptied(c: Any, told: list[Any]) -> Any:
    first = c(3) + c(5)
    c.cache_clear()
    told.append(c.cache_info())
    return first + c(3) + c(3)


PROGRAMS: dict[str, Any] = {
    "one": lambda c, told: c(3),
    "two": lambda c, told: c(3) + c(3),
    "keywords": lambda c, told: c(3, k=1) + c(n=3) + c(3.0),
    "other keys": lambda c, told: c(1) + c(2) + c(3) + c(1),
    "in a branch": lambda c, told: c(1) if c(2) > 3 else c(5),
    "raises": lambda c, told: c(7),
    "caught": lambda c, told: _caught(c),
    "told": _told,
    "emptied": _emptied,
}


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("size", [None, 0, 1, 2, 128])
@pytest.mark.parametrize("program", PROGRAMS)
def test_counters_are_those_of_eager(program: str, size: int | None, typed: bool) -> None:
    def make() -> tuple[Any, Any, list[Any]]:
        cached, told = functools.lru_cache(size, typed)(_double), list[Any]()
        return cached, lambda x: x * PROGRAMS[program](cached, told), told

    (cached, fn, told), (other, run, seen) = make(), make()
    assert _counts(other, compiled(run), seen) == _counts(cached, fn, told)


def test_counters_of_methods_and_of_results_that_are_tensors() -> None:
    def make() -> tuple[Any, Any]:
        class Model(torch.nn.Module):
            @functools.lru_cache(maxsize=8)  # noqa: B019
            def mask(self, n: int) -> Tensor:
                return torch.arange(n) * 1.0

            def forward(self, x: Tensor) -> Tensor:
                return x * self.mask(2) + self.mask(2)

        return Model.mask, Model()

    (cached, fn), (other, run) = make(), make()
    assert _counts(other, smelt.compile(run), []) == _counts(cached, fn, [])


def _results(run: Any, keys: tuple[int, ...], cache: Any, counted: bool) -> list[Any]:
    return [(run(torch.zeros(1), key).item(), cache.cache_info() if counted else None) for key in keys]


@pytest.mark.parametrize("most", [None, 2, 1])
def test_guards_of_other_keys_ask_nothing_of_a_cache(most: int | None) -> None:
    """Versions for other keys neither count as hits nor keep results alive that a full cache drops."""

    def made(run: Callable[[Any], Any]) -> list[Any]:
        calls = [0]

        @functools.lru_cache(maxsize=most)
        def cached(key: int) -> int:
            calls[0] += 1
            return key + calls[0]

        call = run(lambda x, key: x + cached(key))
        return _results(call, (1, 2, 3, 1, 3, 2, 1, 1, 2, 3), cached, most is None)

    assert made(compiled) == made(lambda fn: fn)


@pytest.mark.parametrize("late", [False, True])
def test_a_result_that_keeps_writes_is_the_same_object_every_time(late: bool) -> None:
    @functools.cache
    def items(key: int) -> list[int]:
        return [key]

    @functools.cache
    def both(key: int) -> tuple[int, dict[str, int]]:
        return key, {"a": key}

    def fn(x: Tensor, key: int) -> tuple[int, list[str], list[int], Tensor]:
        if late:
            x.add_(1)
        items(key).append(1)
        both(key)[1][f"b{len(items(key))}"] = 2
        return len(items(key)), list(both(key)[1]), items(key), x + 1

    run = compiled(fn)
    for turn, key in enumerate((1, 2, 1, 1)):
        length, names, held, _ = run(torch.zeros(1), key)
        times = 1 + (turn > 1) + (turn > 2)
        assert length == 1 + times and len(names) == 1 + times and held is items(key)
