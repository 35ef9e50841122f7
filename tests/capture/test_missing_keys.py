"""What takes the place of a missing key is made by the program's own code: it is interpreted and guarded."""

from __future__ import annotations

import collections
import operator

import pytest
import torch

from tests.capture.harness import compiled

X = torch.arange(6.0).reshape(2, 3)
LOG: list[object] = []


def counted():
    LOG.append("made")
    return [len(LOG)]


def refuses():
    raise ValueError("no default")


class Echo(dict):
    def __missing__(self, key):
        LOG.append(key)
        return key


class Told(collections.defaultdict):
    def __missing__(self, key):
        LOG.append(("asked", key))
        return super().__missing__(key)


class Kept(collections.OrderedDict):
    def __missing__(self, key):
        self[key] = key
        return len(self)


HELD = [
    lambda: collections.defaultdict(list, b=[1]),
    lambda: collections.defaultdict(counted),
    lambda: collections.defaultdict(None),
    lambda: collections.defaultdict(refuses),
    lambda: collections.defaultdict(lambda: X),
    lambda: Told(dict),
    lambda: Told(counted),
    lambda: Kept(a=1),
    lambda: Echo(),
    lambda: collections.Counter(),
]


def read(x, held):
    return x + 1, held["a"], held


def read_by_name(x, held):
    held["b"] = 1
    return x + 1, dict.__getitem__(held, "a"), operator.getitem(held, "c"), held


def made_inside(x, held):
    own = type(held)(counted) if isinstance(held, collections.defaultdict) else type(held)()
    return x + 1, own["a"], own["a"], own


def made_by_another(x, held):
    if isinstance(held, collections.defaultdict):
        held["a"]
        before, held.default_factory = held.default_factory, set
        held["b"], held["c"]
        copied = held.copy()
        held.default_factory = None
        try:
            held["d"]
        except KeyError as error:
            LOG.append(error.args)
        held.default_factory = before
        return x + 1, copied, copied["d"], held["e"]
    return x + 1


def shown(value):
    if isinstance(value, collections.defaultdict):
        return type(value), value.default_factory, shown(dict(value))
    if isinstance(value, dict):
        return type(value), [(key, shown(item)) for key, item in value.items()]
    return [shown(item) for item in value] if isinstance(value, (list, tuple)) else repr(value)


def outcome(fn, held):
    try:
        out = shown(fn(X, held))
    except Exception as error:
        out = type(error), str(error), error.__context__
    return out, shown(held), list(LOG)


@pytest.mark.parametrize("fn", [read, read_by_name, made_inside, made_by_another])
@pytest.mark.parametrize("number", range(len(HELD)))
def test_missing_key(fn, number):
    seen = []
    for run in (fn, compiled(fn)):
        LOG.clear()
        factory = HELD[number]().default_factory if isinstance(HELD[number](), collections.defaultdict) else None
        seen.append([])
        for _ in range(2):
            held = HELD[number]()
            if factory is not None:
                held.default_factory = factory  # one function for all calls
            seen[-1].append(outcome(run, held))
    del seen[0][0], seen[1][0]
    assert [str(each).split(" at ")[0] for each in seen[0]] == [str(each).split(" at ")[0] for each in seen[1]]


def test_another_factory_is_another_version():
    run = compiled(read)
    for factory in (list, dict, None, counted, list, int):
        LOG.clear()
        want = outcome(read, collections.defaultdict(factory))
        LOG.clear()
        assert outcome(run, collections.defaultdict(factory)) == want
