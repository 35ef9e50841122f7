"""Errors of compiled code are eager's: class, message, and the user's lines in the traceback."""

from __future__ import annotations

import pdb
import sys
import traceback
from io import StringIO

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.capture.torch.escapes import graph_break

BACKENDS = ("eager", "aot_eager", "smelt")
X = torch.arange(16.0).reshape(4, 4)
GOOD, BAD = torch.zeros(4, 4, dtype=torch.long), torch.full((4, 4), 7)


def entries(error):
    """(function, line of the source) of the entries that lie in this file, the outermost first."""
    found = traceback.extract_tb(error.__traceback__)
    return [(e.name, e.line) for e in found if e.filename == __file__][1:]


def lookup(table, index):
    return F.embedding(index, table)


def inlined(table, index):
    y = table * 2
    return lookup(y, index) + 1


def after_a_break(table, index):
    y = table * 2
    graph_break()
    return lookup(y, index)


def in_plain_python(table, index):
    y = table * 2
    return int(y)


OPERATIONS = {
    "gather": lambda x, i: x.gather(0, i) + 1,
    "scatter_add": lambda x, i: torch.zeros(4, 4).scatter_add(0, i, x) + 1,
    "index_select": lambda x, i: x.index_select(0, i[0]) + 1,
    "nll_loss": lambda x, i: F.nll_loss(x, i[0]),
    "index_add": lambda x, i: torch.zeros(4, 4).index_add(0, i[0], x),
    "index_put": lambda x, i: torch.zeros(4, 4).index_put((i[0],), x),
    "write": lambda x, i: x.mul_(2).gather(0, i),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [inlined, after_a_break, in_plain_python], ids=lambda fn: fn.__name__)
def test_traceback_shows_the_users_lines(fn, backend):
    run = smelt.compile(fn, backend=backend)
    for _ in range(3):
        with pytest.raises((IndexError, ValueError, RuntimeError)) as want:
            fn(X, BAD)
        with pytest.raises(want.type) as got:
            run(X, BAD)
        assert str(got.value) == str(want.value)
        lines = entries(want.value)
        assert lines and entries(got.value)[-len(lines) :] == lines
        if fn is not in_plain_python:
            run(X, GOOD)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_graph_raises_what_eager_raises(name):
    fn = OPERATIONS[name]
    run = smelt.compile(fn)
    assert torch.equal(run(X.clone(), GOOD), fn(X.clone(), GOOD))
    with pytest.raises((IndexError, RuntimeError)) as want:
        fn(X.clone(), BAD)
    with pytest.raises(want.type) as got:
        run(X.clone(), BAD)
    assert str(got.value) == str(want.value)


def test_a_debugger_stops_in_the_users_function():
    out = StringIO()

    def fn(x):
        y = x * 2
        pdb.Pdb(stdin=StringIO("where\ncontinue\n"), stdout=out, nosigint=True).set_trace()
        return y + 1

    run = smelt.compile(fn, backend="eager")
    for _ in range(2):
        out.truncate(0)
        assert torch.equal(run(X), fn(X))
        shown = out.getvalue().replace(__file__, "here.py")  # the folder of this file has the word in its name
        assert shown.count("here.py") >= 2 and "residual" not in shown


def test_breakpoint_sees_the_users_function(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: seen.append(sys._getframe(1).f_code.co_qualname))

    def fn(x):
        y = x * 2
        breakpoint()
        return y + 1

    run = smelt.compile(fn, backend="eager")
    assert torch.equal(run(X), run(X))
    assert seen == [fn.__qualname__] * 2
