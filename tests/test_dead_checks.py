"""An operator whose result nobody uses raises for the values that eager refuses; nothing else of it is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.autograd.joint import trace_joint
from smelt.base.options import Options
from smelt.graph.ranges import IN_RANGE
from tests.autograd.joint_examples import graph_of_call


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return type(error)


Dead = Callable[[torch.Tensor, torch.Tensor], Any]
BY_INDEX: dict[str, Dead] = {
    "index": lambda x, i: x[i],
    "index, then arithmetic": lambda x, i: (x[i] * 2).sum(),
    "two indices": lambda x, i: x[i, i % 3],
    "after a mask": lambda x, i: x[None, x[0] > 5, i],
    "index of an index": lambda x, i: x[torch.arange(6)[i] - i],
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(1, i[:, None]),
    "take": lambda x, i: x.take(i * 4),
    "embedding": lambda x, i: F.embedding(i, x),
    "cross_entropy": lambda x, i: F.cross_entropy(x[: len(i)], i),
    "nll_loss, some ignored": lambda x, i: F.nll_loss(x[: len(i)], i, ignore_index=2),
    "index_add": lambda x, i: x.index_add(0, i, x[: len(i)]),
    "index_put": lambda x, i: x.index_put((i,), x[0]),
    "scatter": lambda x, i: x.scatter(1, i[:, None], 1.0),
}
BAD = ([0, 6, 1], [-7, 0, 0], [0, 1, 2**40], [-(2**62), 1, 1])


@pytest.mark.parametrize("name", BY_INDEX)
def test_an_index_of_an_unused_result(compiled: Any, name: str) -> None:
    dead = BY_INDEX[name]

    def function(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        dead(x, i)
        return x * 2

    run, x = compiled(function), torch.rand(4, 4).tile(2, 1)[:6]
    for values in ([0, 1, 2], *BAD, [1, 1, 3]):
        index = torch.tensor(values)
        expected, got = outcome(function, x, index), outcome(run, x, index)
        if isinstance(expected, type):
            assert isinstance(got, type) and issubclass(got, (IndexError, RuntimeError)), (values, got)
        else:
            torch.testing.assert_close(got, expected)


BY_VALUE: dict[str, Callable[[torch.Tensor], Any]] = {
    "bce": lambda x: F.binary_cross_entropy(x, torch.ones_like(x)),
    "bce, target": lambda x: F.binary_cross_entropy(x.clamp(0, 1), x),
    "bernoulli": torch.bernoulli,
    "normal": lambda x: torch.normal(torch.zeros_like(x), x),
}


@pytest.mark.parametrize("name", BY_VALUE)
@pytest.mark.parametrize("wrong", [-0.5, float("nan")])
def test_values_of_an_unused_result(compiled: Any, name: str, wrong: float) -> None:
    dead = BY_VALUE[name]

    def function(x: torch.Tensor) -> torch.Tensor:
        dead(x)
        return x * 2

    run, right = compiled(function), torch.rand(5)
    bad = right.clone()
    bad[3] = wrong
    for x in (right, bad, right):
        expected, got = outcome(function, x), outcome(run, x)
        assert got is expected if isinstance(expected, type) else torch.equal(got, expected)


def test_with_gradients_sizes_and_writes() -> None:
    def function(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        y = x * 3
        y[i]
        F.cross_entropy(y, i)
        y.add_(1)
        return y.sum()

    for dynamic in (None, True):
        run = smelt.compile(function, dynamic=dynamic)
        for size in (3, 5, 4):
            x, index = torch.rand(size, size, requires_grad=True), torch.arange(size)
            assert outcome(run, x, index + 1) in (IndexError, RuntimeError)
            run(x, index).backward()
            torch.testing.assert_close(x.grad, torch.full((size, size), 3.0))


def test_nothing_is_returned() -> None:
    def function(x: torch.Tensor, i: torch.Tensor) -> int:
        x[i]
        return 3

    run = smelt.compile(function)
    assert run(torch.rand(4), torch.tensor([1])) == 3
    assert outcome(run, torch.rand(4), torch.tensor([4])) is IndexError


def test_only_the_check_is_kept_and_each_once() -> None:
    def function(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x[i].exp().sum()
        x[i].log()
        return (x * 2,)

    inputs = (torch.rand(4, 1000), torch.tensor([1]))
    graph = trace_joint(graph_of_call(function, 2), inputs, Options()).module.graph
    targets = [n.target for n in graph.nodes if n.op == "call_function"]
    assert targets.count(IN_RANGE) == 1 and len(targets) == 2


def test_what_is_used_has_no_check_of_its_own() -> None:
    def function(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (F.cross_entropy(F.embedding(i, x), i),)

    inputs = (torch.rand(4, 4, requires_grad=True), torch.tensor([1]))
    graph = trace_joint(graph_of_call(function, 2), inputs, Options()).module.graph
    assert all(n.target is not IN_RANGE for n in graph.nodes)
