"""`operator`'s getters and functions reach methods that are written in Python, and these act in each call."""

from __future__ import annotations

import operator

import torch

from tests.capture.harness import compiled, raises, same

X = torch.arange(6.0).reshape(2, 3)
LOG: list[object] = []


class Told:
    n = 3

    def __getitem__(self, key):
        LOG.append(key)
        return key

    def __setitem__(self, key, value):
        LOG.append((key, value))

    def __contains__(self, item):
        LOG.append("contains")
        return True

    def __getattr__(self, name):
        LOG.append(name)
        return name

    def __add__(self, other):
        LOG.append("add")
        return other

    def go(self, by, *, times=1):
        LOG.append("go")
        return by * times


def getters(x):
    told = Told()
    return (
        operator.itemgetter(0, "a")(told),
        operator.itemgetter(slice(1))(x),
        operator.attrgetter("n", "other")(told),
        operator.attrgetter("T.shape")(x),
        operator.methodcaller("go", 2, times=4)(told),
        operator.methodcaller("sum", 0)(x),
        sorted([(2, 1), (1, 5)], key=operator.itemgetter(1)),
    )


def functions(x):
    told = Told()
    operator.setitem(told, 1, 2)
    return operator.getitem(told, "key"), operator.contains(told, 3), operator.add(told, x), operator.le(x, 2)


def test_python_methods_reached_by_operator_functions_are_interpreted():
    for fn in (getters, functions):
        run = compiled(fn, fullgraph=True)
        for _ in range(2):
            LOG.clear()
            want = fn(X)
            logged = list(LOG)
            LOG.clear()
            assert same(run(X), want) and logged == LOG


def test_getters_from_outside():
    def fn(x, get):
        return get(x), x + 1

    run = compiled(fn, fullgraph=True)
    for by in (0, 1, 0):
        for get in (operator.itemgetter(by), operator.methodcaller("sum", by), operator.methodcaller("sum", dim=by)):
            assert same(run(X, get), fn(X, get))
    assert same(run(X, operator.attrgetter("T.shape")), fn(X, operator.attrgetter("T.shape")))


def test_their_errors_are_eagers():
    raises(lambda x: operator.itemgetter("a")({}), KeyError, X)
    raises(lambda x: operator.attrgetter("a.b")(x), AttributeError, X)
    raises(lambda x: operator.attrgetter("a")(1, 2), TypeError, X)
    raises(lambda x: operator.add(x), TypeError, X)
