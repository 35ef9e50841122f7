"""Iterators over dicts that outlive a graph: they raise when the size of their dict changes, as in eager."""

from __future__ import annotations

import pytest
import torch

import smelt

X = torch.ones(2)


def same(fn, *args):
    """What eager and captured code give, as text."""
    wanted = repr(fn(*args))
    assert repr(smelt.compile(fn, backend="eager")(*args)) == wanted
    return wanted


def loop(change, view="keys"):
    """A loop over a dict with a break in each round, after which the dict changes."""

    def fn(x):
        held, out = {"a": x, "b": x + 1, "c": x + 2}, []
        try:
            for item in getattr(held, view)():
                out.append(item)
                smelt.graph_break()
                change(held, len(out))
        except RuntimeError as error:
            out.append(str(error))
        return out, list(held)

    return fn


def shorter(held, n):
    held.popitem()


def kept(held, n):
    pass


def replaced(held, n):
    held.pop(list(held)[-1])
    held[n] = n


def first_replaced(held, n):
    held.pop(next(iter(held)))
    held[n] = n


def written(held, n):
    held[list(held)[-1]] = n


def longer_for_a_while(held, n):
    held["z"] = 1
    smelt.graph_break()
    del held["z"]


def longer_before_a_break(held, n):
    held["q"] = n
    if n == 1:
        smelt.graph_break()


CHANGES = [shorter, kept, replaced, first_replaced, written, longer_for_a_while, longer_before_a_break]


@pytest.mark.parametrize("view", ["keys", "values", "items"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_dict_changes_while_it_is_iterated(change, view):
    text = same(loop(change, view), X)
    assert ("changed" in text) == (change in (shorter, replaced, first_replaced, longer_before_a_break))


def test_a_dict_from_outside():
    def fn(x):
        held, out = {"a": 1, "b": 2}, []

        @smelt.compile(backend="eager")
        def run(held):
            held["n"] = x
            for key in held:
                out.append(key)
                smelt.graph_break()
                if len(out) == 2:
                    del held["a"]

        with pytest.raises(RuntimeError, match="changed size"):
            run(held)
        return out, held

    assert repr(fn(X)) == repr((["a", "b"], {"b": 2, "n": X}))


def test_iterators_that_leave_the_frame():
    def fn(x):
        held = {"a": x, "b": 2}
        spoilt, done = iter(held.values()), iter(held)
        next(spoilt)
        list(done)
        held["c"] = 3
        last = iter(held)
        next(last)
        return spoilt, done, last, held

    spoilt, done, last, held = smelt.compile(fn, backend="eager", fullgraph=True)(X)
    assert type(done) is type(iter({})) and list(done) == []
    assert next(last) == "b"
    with pytest.raises(RuntimeError, match="changed size"):
        next(spoilt)
    held["d"] = 4
    with pytest.raises(RuntimeError, match="changed size"):
        next(last)
