"""Stances: of a thread, until the next one or for a block; versions that fit are used under all but force_eager."""

from __future__ import annotations

import threading

import pytest
import torch

from smelt.base.errors import OptionError, RecompileError
from smelt.capture.stance import current, stance
from smelt.capture.torch.escapes import is_compiling
from tests.capture.harness import check, compiled

X = torch.ones(2, 3)


@pytest.fixture(autouse=True)
def back():
    yield
    stance("default")


def fn(x, k=1):
    return x * k, is_compiling()


def test_force_eager_runs_what_is_written():
    run = compiled(fn)
    assert run(X)[1]
    with stance("force_eager"):
        assert not run(X)[1] and current() == "force_eager"
    assert run(X)[1] and current() == "default"
    stance("force_eager")
    assert not run(X)[1]
    stance("default")
    assert run(X)[1]


def test_blocks_nest():
    with stance("eager_on_recompile"):
        with stance("force_eager"):
            with stance("default"):
                assert current() == "default"
            assert current() == "force_eager"
        assert current() == "eager_on_recompile"
    assert current() == "default"


def test_an_error_inside_of_a_block_ends_it():
    with pytest.raises(KeyError), stance("force_eager"):
        raise KeyError
    assert current() == "default" and compiled(fn)(X)[1]


def test_eager_on_recompile():
    run = compiled(fn, dynamic=False)
    run(X, 1)
    with stance("eager_on_recompile"):
        assert run(X, 1)[1] and not run(X, 2)[1]
    assert run(X, 2)[1]


def test_fail_on_recompile_reports_what_changed():
    run = compiled(fn, dynamic=False)
    run(X, 1)
    with stance("fail_on_recompile"):
        assert run(X, 1)[1]
        with pytest.raises(RecompileError, match="k was 1, is 2"):
            run(X, 2)
        with pytest.raises(RecompileError, match="not compiled before"):
            compiled(lambda x: x + 1)(X)
        assert compiled(lambda k: k + 1)(1) == 2  # nothing to compile in it
        assert run(X, 1)[1]
    assert run(X, 2)[1]


def test_a_stance_is_of_its_thread():
    run, seen = compiled(fn), []
    run(X)
    with stance("force_eager"):
        thread = threading.Thread(target=lambda: seen.append((current(), run(X)[1])))
        thread.start(), thread.join()
        assert seen == [("default", True)] and not run(X)[1]


def test_inside_of_a_compiled_function():
    def program(x):
        x = x + 1
        with stance("force_eager"):
            x = x * 2
        return x - 1

    check(program, X, breaks=1)  # what follows it runs in eager until the call ends
    assert current() == "default"


def test_unknown_names_are_refused():
    with pytest.raises(OptionError, match="did you mean 'force_eager'"):
        stance("force_eagre")
    assert current() == "default"
