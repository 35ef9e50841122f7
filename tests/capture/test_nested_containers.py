"""What C code sees of containers in containers: what the program did to them so far, at any depth, also in cycles."""

from __future__ import annotations

import collections
import copy
import functools
import itertools
import json
import math
import operator
import random
import re
from typing import Any

import numpy
import pytest
import torch

import smelt


class Box:
    def __init__(self, v: Any) -> None:
        self.v = v


def make() -> list[int]:
    return [1, 2]


def helper(value: Any, *rest: Any) -> Any:
    return value


Point = collections.namedtuple("Point", "a b")
USED = (copy, functools, itertools, json, math, operator)
SET_UPS = {
    "a list that was appended to": "given[:] = [1]; v = [1, given]; given.append(7)",
    "in a dict": "given[:] = [1]; v = {'a': given, 'b': 2}; given.append(7)",
    "a tensor in it": "given[:] = [1]; v = (5, given); given.append(x)",
    "in a global list": "v = NESTED; v[0].append(4)",
    "a list of tensors in a global dict": "v = NESTED; v[1]['z'] = [x]",
    "in a deque": "v = collections.deque([1, NESTED[0]]); v[1].append(4)",
    "at two places": "v = [NESTED, {'k': NESTED[0]}]; NESTED[0].append(4)",
    "the same twice": "v = NESTED; v[0] = v[1]; v[1][2] = 3",
    "in an OrderedDict": "v = collections.OrderedDict(a=NESTED[0]); v['a'].append(4)",
    "in a namedtuple": "given[:] = [1]; v = Point(given, 2); given.append(7)",
    "a list in itself": "v = [1]; v.append(v)",
    "a list in itself beside a tensor": "v = [1, x]; v.append(v)",
    "a dict in its list": "v = {'b': 1}; v['a'] = [v, x]",
    "a list in its tuple": "v = []; w = (v, 1); v.append(w)",
    "an argument in itself": "v = given",
    "a global dict in itself": "v = CYCLE",
    "a list from outside in itself": "v = [1, given]; given.append(v)",
}
EXPRESSIONS = r"""
len(v)
str(v)
repr([v])
f"{v}"
f"{v!r:>30}"
"%s" % (v,)
"%s %s" % (v, 1)
"{}".format(v)
v == v
v == [1]
v == make()
v != {1: 2}
1 in v
v in v
v in [v]
[1] in v
copy.copy(v)
copy.deepcopy(v)
list(v)
tuple(v)
dict(v)
set([1]) | set(v)
sorted(v)
sum(v)
max(v)
torch.abs(v)
torch.stack(v)
x + v
v + x
x.sum(v)
x.view(v)
torch.nn.functional.relu(v)
torch.zeros(v)
v + v
v * 2
(1, v) + (v,)
isinstance(v, list)
torch.utils._pytree.tree_map(lambda t: t, v)
[*v]
{**v}
list(enumerate(v))
list(zip(v, v))
functools.reduce(lambda a, b: a, v)
operator.eq(v, v)
ValueError(v)
int(v)
float(v)
abs(v)
bool(v)
not v
v < v
v < [1]
v is v
v[0]
v["a"]
v.get("a")
v.index(1)
v.count(v)
v.copy()
",".join(v)
type(v)
callable(v)
max([v, v], key=len)
any(v)
all(v)
x.new_tensor(v)
x.new_zeros(v)
torch.cat([x, v])
x == v
copy.copy([v, x])
str([v, x])
[v, x] == [v, x]
v == [x]
torch.Size(v)
x.to(v)
x.tolist() + [v]
dict(a=v)
collections.OrderedDict(a=v)
collections.deque([v])
Point(v, v)
str(Point(v, v))
Point(v, v) == Point(v, v)
list(itertools.chain(v, v))
x.sum().item() in v
v.__len__()
v.__eq__(v)
v.__repr__()
torch.is_tensor(v)
len(v) + x
x.shape in v
random.shuffle(v)
x.index_select(0, v)
x.expand(v, 2)
x.permute(v)
v[v]
v.__getitem__(v)
v.update(z=v)
v.extend(v)
v.insert(0, v)
v.append(v)
v.__str__()
v.__contains__([1, 7])
[1, 7] in v
v.count([1, 7])
v.index([1, 7])
v.remove([1, 7])
list(map(repr, v))
sorted(map(str, v))
v.__eq__([1, [1, 7]])
v == [1, [1, 7]]
v != (5, [1, x])
max(map(len, v))
len(str(v))
sum(v, [])
list(itertools.chain.from_iterable(v))
copy.deepcopy(v) == v
json.dumps(v, default=str)
list(reversed(v))
v[::-1]
[*v][1]
functools.reduce(operator.add, v)
dict(enumerate(v))
min(v, key=str)
sorted(v, key=str)
list(filter(None, v))
any(map(bool, v))
operator.contains(v, [1, 7])
operator.countOf(v, [1, 7])
list(v.values())
str(v.items())
str(list(v.items()))
[1, 2, 4] in v.values()
str(v.keys())
'%s' % v
'%r' % (v,)
tuple(v) == (1, [1, 7])
hash(tuple(v))
v.copy() == v
str(v.copy())
set(map(str, v))
range(v)
x[v:]
torch.split(x, v)
x.split([1, v])
math.sqrt(v)
str(v).upper()
functools.partial(helper, v)(1)
torch.broadcast_tensors(*v)
torch.einsum('i->', v)
torch.where(x > 1, x, v)
x.__add__(v)
list(map(str, v))
[str(i) for i in v]
[i for i in v if i == v]
{str(k): k for k in v}
""".strip().splitlines()
KEYS = ("[1]", "{}", "slice(1, 2)", "(1, [2])", "(x, [1])", "given", "torch.Size([1])")
LOOKUPS = """
d[k]
k in d
k not in d
d.get(k)
d.get(k, 3)
d.pop(k, 3)
d.setdefault(k, 3)
d.update({k: 1})
d.__contains__(k)
dict.fromkeys([k])
s.add(k)
k in s
s.discard(k)
{k: 1}
{k}
s.isdisjoint([k])
frozenset([k])
d.__delitem__(k)
k in d.keys()
k in d.values()
(k, 1) in d.items()
""".strip().splitlines()
CRASHING = {"a list in its tuple": ("x.new_tensor(v)", "torch.stack(v)")}
"""What torch itself does not survive."""


def shown(value: Any, around: tuple[Any, ...] = ()) -> Any:
    """Text of a value, in which a container that holds itself ends."""
    if any(value is each for each in around):
        return "..."
    inside = (*around, value)
    if isinstance(value, torch.Tensor):
        return f"tensor {value.tolist()}"
    if isinstance(value, (list, tuple, collections.deque)):
        return type(value).__name__, [shown(item, inside) for item in value]
    if isinstance(value, dict):
        return type(value).__name__, [(str(key), shown(item, inside)) for key, item in value.items()]
    if isinstance(value, (Box, BaseException)):
        return type(value).__name__, shown(vars(value) or value.args, inside)
    return value if isinstance(value, (int, float, str)) else type(value).__name__


def outcome(lines: list[str], compiled: bool) -> Any:
    """What a function of these lines returns or raises, and what it leaves of its argument and of the globals."""
    given: list[Any] = [1]
    given.append(given)
    cycle: dict[str, Any] = {"k": 2.0}
    cycle["me"] = [cycle]
    names = {**globals(), "NESTED": [[1, 2], {"z": 1}], "CYCLE": cycle}
    exec("def fn(x, given):\n" + "\n".join(f"    {line}" for line in lines), names)
    function = smelt.compile(names["fn"], backend="eager") if compiled else names["fn"]
    random.seed(0)
    try:
        result = shown(function(torch.ones(3), given))
    except Exception as error:
        result = type(error).__name__, re.sub("0x[0-9a-f]+", "", str(error))
    return result, shown(given), shown(names["NESTED"]), shown(names["CYCLE"])


@pytest.mark.parametrize("name", SET_UPS)
def test_c_code_sees_containers_as_the_program_left_them(name: str) -> None:
    different = []
    for expression in EXPRESSIONS:
        if expression in CRASHING.get(name, ()):
            continue
        lines = [SET_UPS[name], "y = x + 1", f"r = {expression}", "return r, y, v"]
        eager = outcome(lines, False)
        if "RecursionError" not in str(eager) and (ours := outcome(lines, True)) != eager:
            different.append((expression, eager[0], ours[0]))
    assert not different


@pytest.mark.parametrize("d, s", [("{**CYCLE}", "set()"), ("CYCLE", "{1}"), ("NESTED[1]", "set(NESTED[0])")])
def test_keys_that_cannot_be_hashed(d: str, s: str) -> None:
    different = []
    for key, lookup in itertools.product(KEYS, LOOKUPS):
        body = [f"d, s, k, y = {d}, {s}, {key}, x + 1", "try:", f"    r = {lookup}", "except TypeError as error:"]
        lines = [*body, "    return y, str(error)", "return y, r"]
        if (ours := outcome(lines, True)) != (eager := outcome(lines, False)):
            different.append((lookup, key, eager[0], ours[0]))
    assert not different


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, functools.partial(collections.defaultdict, list)])
def test_views_of_a_dict_show_what_becomes_of_it(kind: Any) -> None:
    def fn(x: torch.Tensor, held: dict[str, Any]) -> Any:
        keys, own = held.keys(), kind(b=1)
        values = own.values()
        held["n"] = x + 1
        return keys, held.values(), own, values

    held = kind(a=1)
    keys, values, own, owns = smelt.compile(fn, backend="eager")(torch.ones(2), held)
    held["z"] = own["c"] = 5
    assert list(keys) == ["a", "n", "z"] and list(values)[::2] == [1, 5] and list(owns) == [1, 5]
    assert type(keys) is type(held.keys()) and type(owns) is type(own.values())


class Held:
    """Attributes for the functions below."""


BOUND = {
    "across a break": "m = x.numpy().reshape; print(x.sum()); r = m(3, 1)",
    "called with what only eager can take": "r = x.numpy().reshape(torch.tensor(3))",
    "called with a tensor among numbers": "r = x.numpy().take([torch.tensor(1)])",
    "as a result": "r = x.numpy().sum",
    "in a container across a break": "d = {'f': x.numpy().sum}; print(x.sum()); r = d['f']()",
    "in an attribute": "Held.f = x.numpy().mean; print(x.sum()); r = Held.f()",
    "its type": "r = type(given.append).__name__, type(x.numpy().reshape).__name__, type(x.add).__name__",
    "its class": "m = given.append; r = isinstance(m, type(len)), isinstance(m, type(Held().__init__))",
    "compared": "n = x.numpy(); r = n.sum == n.sum, n.sum != n.mean, given.append == given.append, bool(n.sum)",
    "of a list as a result": "r = given.append",
}


@pytest.mark.parametrize("name", BOUND)
def test_bound_methods_written_in_c(name: str) -> None:
    lines = [
        BOUND[name],
        "y = x + 1",
        "return y, r, type(r).__name__, callable(r), str(r)[:20], r() if 'sum' in str(r) else None",
    ]
    assert outcome(lines, True) == outcome(lines, False)


def test_a_list_of_numpy_functions() -> None:
    def fn(x: torch.Tensor) -> Any:
        array = x.numpy()
        return x + 1, [each() for each in (array.sum, array.mean)], list(map(array.take, [0, 1]))

    ours, eager = smelt.compile(fn, backend="eager")(torch.ones(3)), fn(torch.ones(3))
    assert ours[1:] == eager[1:] and all(type(value) is numpy.float32 for value in ours[1])
