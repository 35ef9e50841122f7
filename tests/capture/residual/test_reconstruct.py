"""Objects that leave the frame: same types, same sharing, same identity as eager gives."""

from __future__ import annotations

import collections
import dataclasses
import functools
import operator
import types
import typing

import pytest
import torch

from smelt.capture.explain import describe
from tests.capture.harness import check, compiled

X = torch.arange(6.0).reshape(2, 3)


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


class Table(dict):
    extra = None


class Rows(list):
    pass


class Pair(typing.NamedTuple):
    a: torch.Tensor
    b: int = 2


class Three(tuple):
    pass


@dataclasses.dataclass(slots=True)
class Item:
    x: torch.Tensor
    more: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Output(collections.OrderedDict):
    loss: torch.Tensor | None = None

    def __post_init__(self):
        if self.loss is not None:
            self["loss"] = self.loss


class Odd(Exception):
    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code


@pytest.mark.parametrize(
    "make",
    [
        lambda x: (x, (x + 1, [x * 2])),
        lambda x: Pair(x + 1),
        lambda x: Three((x + 1, 2)),
        lambda x: Rows([x + 1]),
        lambda x: Table(a=x + 1),
        lambda x: collections.OrderedDict(b=x + 1, a=2),
        lambda x: collections.deque([x + 1], maxlen=4),
        lambda x: {1, "b", None},
        lambda x: frozenset({3}),
        lambda x: slice(1, x.shape[0]),
        lambda x: (range(x.shape[1]), torch.float32, x.shape, ..., NotImplemented, 1.5, -0.0, b"q", 2j, True, None),
        lambda x: (float("inf"), 10**30, "quote'\n", ()),
        lambda x: x.max(1),
        lambda x: Item(x + 1, [1]),
        lambda x: Output(loss=x.sum()),
        lambda x: types.SimpleNamespace(a=x + 1),
        lambda x: [[]] * 2,
    ],
)
def test_like_eager(make):
    check(make, X)


def test_slots_and_missing_slots():
    out = compiled(lambda x: Slotted(x + 1), fullgraph=True)(X)
    assert type(out) is Slotted and torch.equal(out.a, X + 1) and not hasattr(out, "b")


def test_default_factories_and_partials():
    def fn(x):
        table = collections.defaultdict(list)
        table["k"].append(x + 1)
        return table, functools.partial(operator.mul, x + 1), operator.itemgetter(0)

    table, part, getter = compiled(fn, fullgraph=True)(X)
    assert table.default_factory is list and torch.equal(part(2), (X + 1) * 2) and getter([5]) == 5


def test_sharing_is_kept():
    def fn(x):
        y = x + 1
        held = [y]
        return {"a": held, "b": held, "c": y, "x": x}

    out = compiled(fn, fullgraph=True)(X)
    assert out["a"] is out["b"] and out["a"][0] is out["c"] and out["x"] is X


def test_outside_objects_keep_their_identity():
    outside, table = object(), {"k": [1]}

    def fn(x, given):
        return outside, table, table["k"], given, given["t"], fn, torch.nn, x

    given = {"t": X}
    out = compiled(fn, fullgraph=True)(X, given)
    want = fn(X, given)
    assert all(a is b for a, b in zip(out, want, strict=True))


def test_objects_that_refer_to_each_other():
    class Node:
        pass

    def fn(x):
        a, b = Node(), Node()
        a.other, b.other, a.x = b, a, x + 1
        return a

    out = compiled(fn, fullgraph=True)(X)
    assert out.other.other is out and torch.equal(out.x, X + 1)


def test_functions_methods_and_cells():
    class Box:
        def __init__(self, k):
            self.k = k

        def times(self, x):
            return x * self.k

    def fn(x):
        total = 1

        def add(n, *, by=2):
            nonlocal total
            total += n * by
            return x + total

        def look():
            return total

        return add, look, Box(3).times, [].append, "a".upper

    add, look, times, append, upper = compiled(fn, fullgraph=True)(X)
    assert torch.equal(add(1), X + 3) and look() == 3 and torch.equal(add(1, by=1), X + 4) and look() == 4
    assert torch.equal(times(X), X * 3) and append.__self__ == [] and upper() == "A"


def test_iterators_in_the_middle():
    def fn(x):
        a, b, c = iter([1, 2, 3]), enumerate([x, x + 1]), zip("ab", [x + 2, x + 3], strict=True)
        next(a), next(b), next(c)
        return a, b, c, reversed([1, 2]), iter({"k": 1}.items()), map(abs, [-1])

    got, want = compiled(fn, fullgraph=True)(X), fn(X)
    for a, b in zip(got, want, strict=True):
        left, right = list(a), list(b)
        assert len(left) == len(right) and type(a) is type(b) or isinstance(b, type(iter({}.items())))


def test_exceptions_as_values():
    def fn(x):
        try:
            raise Odd(5)
        except Odd as error:
            return error, x + 1

    error, _ = compiled(fn, fullgraph=True)(X)
    assert type(error) is Odd and error.code == 5 and str(error) == "code 5"


def test_a_generator_that_has_begun_is_made_again():
    def fn(x):
        def count():
            yield x + 1
            yield x + 2

        generator = count()
        next(generator)
        return generator

    run = compiled(fn, fullgraph=True)
    assert [torch.equal(got, X + 2) for got in run(X)] == [True]


def test_list_that_contains_itself_runs_in_eager():
    def fn(x):
        held = [x + 1]
        held.append((held,))
        return held

    run = compiled(fn)
    got = run(X)
    assert torch.equal(got[0], X + 1) and got[1][0] is got
    assert "contains itself" in describe(run._smelt_session).break_reasons[0].title
