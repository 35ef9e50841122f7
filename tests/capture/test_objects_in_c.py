"""What C code does with objects goes through the program's own methods: read with guards, as the program left them."""

from __future__ import annotations

import bisect
import collections
import copy
import dataclasses
import functools
import heapq
import importlib
import json
import operator
import random
import sys
import types
from typing import Any

import pytest
import torch

import smelt
from tests.capture.harness import compiled, same
from tests.fuzz.snapshot import ADDRESS, Snapshot


class Pair:
    def __init__(self, a: Any) -> None:
        self.a = a

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pair) and self.a == other.a

    def __hash__(self) -> int:
        return hash(self.a)

    def __lt__(self, other: Any) -> bool:
        return self.a < other.a

    def __repr__(self) -> str:
        return f"Pair({self.a})"

    def m(self) -> Any:
        return self.a

    @property
    def p(self) -> Any:
        return self.a


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, a: Any) -> None:
        self.a = a


@dataclasses.dataclass
class Data:
    a: Any = 1
    b: list[Any] = dataclasses.field(default_factory=list)


Point = collections.namedtuple("Point", "a b")
USED = (bisect, copy, dataclasses, functools, heapq, json, operator, types)
"""What the expressions use."""
WRITTEN = {
    "an argument's attribute": "o.a = 7; v = o",
    "a slot": "s.a = 7; v = s",
    "a list in a dataclass": "d.b.append(3); v = d",
    "in a list": "l[0].a = 0; v = l",
    "a namespace": "n.a = [1]; v = n",
    "a new attribute, in two places": "o.z = 4; v = [o, {'k': o}]",
    "in what the program makes": "v = Data(x, [o]); o.a = 5",
    "in a namedtuple": "v = Point(o, l); o.a = 2",
    "an attribute deleted": "del o.a; v = o",
    "through its dictionary": "o.__dict__['w'] = 2; v = o",
    "in a global dict": "GLOBAL['o'].a = 12; v = GLOBAL",
}
READ = ["v = o", "v = [o]", "v = {'k': (o, s)}", "v = d", "v = l", "v = n", "v = [n]", "v = GLOBAL", "v = Point(o, l)"]
EXPRESSIONS = r"""
v
copy.copy(v)
copy.deepcopy(v)
repr(v)
str([v])
v == v
v == copy.copy(v)
[v] == [copy.copy(v)]
v in [v]
v in (copy.copy(v), 1)
vars(v)
v.__dict__
dict(vars(v))
getattr(v, 'a', None)
operator.attrgetter('a')(v)
list(map(operator.attrgetter('a'), [v]))
operator.methodcaller('m')(v)
sorted([v, v], key=id)[0] is v
sorted(v)
sorted(v, key=operator.attrgetter('a'))
min(v)
max(v, key=lambda q: q.a)
list(map(repr, v))
[q.a for q in v]
dataclasses.asdict(v)
dataclasses.replace(v, a=2)
dataclasses.astuple(v)
v._replace(a=1)
v._asdict()
json.dumps(v, default=vars)
json.dumps(v, default=repr)
f"{v}"
"%r" % (v,)
"{0.a}".format(v)
"{}".format(v)
print(v)
print(v, x.shape)
v < copy.copy(v)
v.m()
v.p
list(v)
tuple(v)
v[0]
v.index(v[0])
v.count(o)
o in v
functools.reduce(lambda a, b: a, v)
collections.Counter(map(type, v))
dict.fromkeys(v)
heapq.nsmallest(1, v)
bisect.bisect([1], v)
next(iter(v))
v.__eq__(v)
v.__repr__()
Pair.__eq__(v, o)
types.SimpleNamespace(a=v).a is v
types.SimpleNamespace(a=v) == types.SimpleNamespace(a=v)
repr(types.SimpleNamespace(a=v))
functools.partial(lambda q: q, v)()
vars(v).update(q=5)
vars(v).pop('a', None)
setattr(v, 'fresh', x)
v.__dict__.items()
object.__setattr__(v, 'a', 13)
hash(v) == hash(copy.copy(v))
{v: 1}.get(v)
{1: 2}.get(o)
{Pair(9): 5}.get(o)
o in {Pair(9), Pair(7)}
o in [Pair(9), Pair(7)]
[o, Pair(3)].index(Pair(3))
[Pair(9), o].count(o)
sorted([Pair(4), o])
sum([o.a, 1]) if isinstance(o.a, int) else 0
sorted([(o, 1), (Pair(3), 0)])
max([Pair(4), o])
[o] == [Pair(9)]
(o,) < (Pair(8),)
"{0.a} {1[0]!r:>9} {k:{w}}".format(o, l, k=3, w=5)
"{} {1}".format(o, 2)
"{3}".format(o)
"{0!z}".format(o)
""".strip().splitlines()


def outcome(setup: str, expression: str, compiled: bool) -> Any:
    """What two calls give, between which the objects are changed outside."""
    given: dict[str, Any] = {"o": Pair(1), "s": Slots(2), "d": Data(), "l": [Pair(3), Pair(1)]}
    given["n"] = types.SimpleNamespace(a=1)
    held = {"o": Pair(3)}
    names = {**globals(), "GLOBAL": held}
    lines = [setup, "y = x + 1", f"r = {expression}", "return r, y"]
    exec("def fn(x, o, s, d, l, n):\n" + "\n".join(f"    {line}" for line in lines), names)
    function = smelt.compile(names["fn"], backend="eager") if compiled else names["fn"]
    out = []
    for _ in range(2):
        shown = Snapshot()
        try:
            result = shown(function(torch.ones(3), **given))
        except Exception as error:
            result = type(error).__name__, ADDRESS.sub("0x", str(error))
        out.append((result, shown(given), shown(held)))
        for changed in (given["o"], given["s"], given["d"], given["l"][0], given["n"], held["o"]):
            changed.a = 9
        given["d"].b.append(1)
    return out


@pytest.mark.parametrize("setup", [*WRITTEN.values(), *READ])
def test_c_code_reads_objects_with_guards(setup: str) -> None:
    different = []
    for expression in EXPRESSIONS:
        eager, ours = (outcome(setup, expression, compiled) for compiled in (False, True))
        if eager != ours:
            different.append((expression, eager, ours))
    assert not different


def test_methods_that_c_code_calls_are_looked_up_with_guards() -> None:
    class Own(Pair):
        pass

    @smelt.compile(backend="eager")
    def fn(x: torch.Tensor, objects: list[Own]) -> torch.Tensor:
        return x + sorted(objects)[0].a

    objects, x = [Own(1), Own(2)], torch.zeros(1)
    assert fn(x, objects).item() == 1
    Own.__lt__ = lambda self, other: self.a > other.a  # type: ignore[method-assign]
    assert fn(x, objects).item() == 2


def test_side_effects_of_methods_that_c_code_calls_happen_once() -> None:
    class Counted(Pair):
        compared = 0

        def __lt__(self, other: Any) -> bool:
            Counted.compared += 1
            return bool(self.a < other.a)

    @smelt.compile(backend="eager")
    def fn(x: torch.Tensor, objects: list[Counted]) -> torch.Tensor:
        return x + sorted(objects)[0].a

    for calls in range(1, 4):
        assert fn(torch.zeros(1), [Counted(2), Counted(1)]).item() == 1
        assert Counted.compared == calls


def test_a_break_in_a_method_that_c_code_calls() -> None:
    class Breaking(Pair):
        def __lt__(self, other: Any) -> bool:
            smelt.graph_break()
            return bool(self.a < other.a)

    @smelt.compile(backend="eager")
    def fn(x: torch.Tensor, objects: list[Breaking]) -> torch.Tensor:
        y = x * 2
        objects.sort()
        return y + objects[0].a

    objects = [Breaking(2), Breaking(1)]
    assert fn(torch.ones(1), objects).item() == 3 and objects[0].a == 1


def test_error_of_a_python_method_propagates_through_c_code() -> None:
    @smelt.compile(backend="eager")
    def fn(x: torch.Tensor, objects: list[Any]) -> Any:
        try:
            return sorted(objects)
        except TypeError as error:
            return x + 1, str(error)

    found = fn(torch.ones(1), [Pair(1), Pair("a")])
    assert "not supported between" in found[1]


def _another_module(name: str) -> Any:
    """A C module once more, whose classes are not those that capture knows."""
    kept = sys.modules.pop(name)
    try:
        return importlib.import_module(name)
    finally:
        sys.modules[name] = kept


WRAPPER = _another_module("_functools")._lru_cache_wrapper


def _three_times(x: int, y: int) -> int:
    return 3 * x + y


def test_object_of_c_code_keeps_actual_values_not_symbolic_ones() -> None:
    def cached(x: torch.Tensor) -> Any:
        call = WRAPPER(_three_times, 20, False, tuple)
        drawn = random.randint(0, 3)
        first = call(drawn, 2)
        sys.getrefcount(call)
        return x + first, type(first), call(drawn, 2) == 3 * drawn + 2

    run = compiled(cached)
    for seed in range(3):
        random.seed(seed)
        want = cached(torch.ones(2))
        random.seed(seed)
        assert same(run(torch.ones(2)), want)
