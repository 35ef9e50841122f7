"""What changed: for every kind of guard, the value it was made for and the one it finds."""

from __future__ import annotations

import functools
import types
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from smelt.base.errors import SmeltWarning
from smelt.base.stats import reset_stats, stats
from tests.capture.harness import compiled

X = torch.ones(2, 3)


def told(fn: Any, *args_list: tuple[Any, ...], change: Any = None) -> list[str]:
    """The reasons of the recompiles that calls with these arguments (and a change before the last) cause."""
    reset_stats()
    run = compiled(fn, fullgraph=True, dynamic=False, recompile_limit=50)
    for number, args in enumerate(args_list):
        if change is not None and number == len(args_list) - 1:
            change()
        run(*args)
    return [reason.split(": ", 1)[1] for reason in stats()["recompile_reasons"]]


@pytest.mark.parametrize(
    ("other", "wanted"),
    [
        (torch.ones(4, 3), "x.shape[0] was 2, is 4"),
        (torch.ones(2), "x.ndim was 2, is 1"),
        (X.double(), "x.dtype was torch.float32, is torch.float64"),
        (torch.ones(3, 2).t(), "x.stride[0] was 3, is 1"),
        (X.clone().requires_grad_(), "x.requires_grad was False, is True"),
        (nn.Parameter(X), "x.__class__ was Tensor, is "),
    ],
)
def test_tensors(other, wanted):
    (reason,) = told(lambda x: x * 2, (X,), (other,))
    assert reason.startswith(wanted) and "test_guard_failures.py:" in reason


def test_arguments():
    assert told(lambda x, k: x * k, (X, 2), (X, 3))[0].startswith("k was 2, is 3  # ")
    assert told(lambda x, k: x * len(k), (X, [1]), (X, [1, 2]))[0].startswith("len(k) was 1, is 2")
    assert told(lambda x, k: x * sum(k.values()), (X, {"a": 1}), (X, {"b": 1}))[0].startswith(
        "tuple(k) was ('a',), is ('b',)"
    )
    assert told(lambda x, k: x + 1 if "a" in k else -x, (X, {"a": 1}), (X, {}))[0].startswith(
        "'a' in k was True, is False"
    )
    assert told(lambda x, k: x * k[0], (X, [2]), (X, (2,)))[0].startswith("type(k) was list, is tuple")
    assert told(lambda x, y: x + (x is y), (X, X), (X, X.clone()))[0].startswith("y is x was True, is False")


def test_state_of_modules_functions_and_modes():
    net = nn.Sequential(nn.Dropout(0.1), nn.ReLU())
    assert told(net.forward, (X,), (X,), change=net.eval)[0].startswith("self[0].training was True, is False")
    hook = told(net.forward, (X,), (X,), change=lambda: net[0].register_forward_hook(lambda m, a, o: o))
    assert hook[0].startswith("self[0]._forward_hooks was empty, is OrderedDict")
    held = types.SimpleNamespace(k=1)
    assert told(lambda x: x * held.k, (X,), (X,), change=lambda: setattr(held, "k", 2))[0].startswith(
        "held.k was 1, is 2"
    )
    gone = told(lambda x: x * getattr(held, "k", 5), (X,), (X,), change=lambda: delattr(held, "k"))
    assert gone[0].startswith("held.k was there, is missing")

    def helper(x, by=1):
        return x * by

    change = lambda: setattr(helper, "__defaults__", (2,))  # noqa: E731
    assert "helper.__defaults__ was (1,), is (2,)" in told(lambda x: helper(x), (X,), (X,), change=change)[0]
    with torch.no_grad():
        assert told(lambda x: x + 1, (X,), (X,), change=lambda: torch.set_grad_enabled(True))[0].startswith(
            "grad mode was 0, is 1"
        )
    threads = torch.get_num_threads()
    try:
        (reason,) = told(
            lambda x: x + torch.get_num_threads(), (X,), (X,), change=lambda: torch.set_num_threads(threads + 1)
        )
    finally:
        torch.set_num_threads(threads)
    assert reason.startswith(f"get_num_threads() was {threads}, is {threads + 1}")


def test_a_repr_that_raises_is_harmless():
    class Odd:
        def __repr__(self):
            raise RuntimeError("no")

    (reason,) = told(lambda x, k: x + 2 if k is None else x + 1, (X, None), (X, Odd()))
    assert "whose repr raises RuntimeError" in reason


def test_the_log_names_each_version(monkeypatch, capsys):
    monkeypatch.setenv("SMELT_LOG", "recompiles")
    run = compiled(lambda x, k: x * k, dynamic=False)
    for k in (1, 2, 3):
        run(X, k)
    lines = [line for line in capsys.readouterr().err.splitlines() if " was " in line]
    assert len(lines) == 2 and "k was 1, is 2  # " in lines[0]
    assert "k was 1, is 3" in lines[1] and "k was 2, is 3" in lines[1]


def test_the_limit_names_the_guard_that_kept_failing():
    run = compiled(lambda x, k, m: x * k + m, dynamic=False, recompile_limit=4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for k, m in ((1, 0), (2, 0), (3, 0), (3, 1), (4, 1), (5, 1), (6, 1)):
            assert torch.equal(run(X, k, m), X * k + m)
    (message,) = [str(w.message) for w in caught if issubclass(w.category, SmeltWarning)]
    assert "the guard on k failed 3 times, for 1, 2, 3, 4  # " in message and "test_guard_failures.py:" in message


def test_of_facts_about_sizes_the_false_one_is_told_with_its_sizes_and_line():
    def run(x, y):
        if x.shape[0] > 4 and y.shape[1] % 2 == 0:
            return x.sum() + y.sum()
        return x.sum() - y.sum()

    reset_stats()
    run = compiled(run, dynamic=True)
    run(torch.ones(6, 3), torch.ones(5, 8))
    run(torch.ones(7, 3), torch.ones(5, 9))
    run(torch.ones(2, 3), torch.ones(5, 8))
    reasons = [reason.split(": ", 1)[1] for reason in stats()["recompile_reasons"]]
    assert reasons[0].startswith("(y.shape[1] % 2) == 0 was True, is False ((9 % 2) == 0)  # "), reasons
    assert "test_guard_failures.py:" in reasons[0]
    assert reasons[1].startswith("5 <= x.shape[0] was True, is False (5 <= 2)"), reasons


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (lambda: nn.Sequential(nn.Linear(3, 3))._call_impl, "Sequential"),
        (lambda: torch.sin, "_VariableFunctionsClass.sin"),
        (lambda: functools.partial(torch.add, 1), "partial"),
    ],
)
def test_callables_without_a_frame_of_their_own_are_called_by_their_names(made, name):
    reset_stats()
    run = compiled(made(), dynamic=False)
    run(torch.ones(2, 3))
    run(torch.ones(4, 3))
    (reason,) = stats()["recompile_reasons"]
    assert reason.split(": ", 1)[0] == name and reason.endswith(".shape[0] was 2, is 4")
