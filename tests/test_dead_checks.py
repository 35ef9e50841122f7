"""An operator whose result nobody uses raises for the values that eager refuses; nothing else of it is computed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.autograd.trace.joint import trace_joint
from smelt.base.options import Options
from smelt.graph.nodes.range_checks import IN_RANGE
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
    "put": lambda x, i: x.put(i * 4, x[0, : len(i)]),
    "index_fill": lambda x, i: x.index_fill(0, i, 1.0),
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
    "multinomial": lambda x: x.multinomial(2),
    "multinomial of rows": lambda x: torch.stack([x, x.abs() + 1]).multinomial(7, True),
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


DIVISIONS: dict[str, Dead] = {
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "number %": lambda a, b: 7 % b,
    "fmod": torch.fmod,
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floor": lambda a, b: torch.div(a, b, rounding_mode="floor") + 1,
    "true": lambda a, b: torch.div(a, b),
    "floats": lambda a, b: a.float() // b,
    "of nothing": lambda a, b: a[:0] // b[:1],
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("name", DIVISIONS)
def test_whole_numbers_over_zero(name: str, dtype: torch.dtype) -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        DIVISIONS[name](a, b)
        return a + 1

    for run in (smelt.compile(function), smelt.compile(function, dynamic=True)):
        for values in ([1, 2, 3], [0, 2, 3], [3, 3, 0, 1], [5, 1, 1]):
            b = torch.tensor(values, dtype=dtype)
            expected, got = outcome(function, b + 1, b), outcome(run, b + 1, b)
            assert got is expected if isinstance(expected, type) else torch.equal(got, expected)


MASKS: dict[str, Dead] = {
    "alike": lambda x, m: x.masked_scatter(m[:, None].expand(3, 4), x.flatten()[:6]),
    "mask repeated": lambda x, m: x.t().masked_scatter(m, x.flatten()[:6]),
    "x repeated": lambda x, m: x[:, :1].masked_scatter(m[:, None] & (x >= 0), x[0]),
    "rows": lambda x, m: x[:1].masked_scatter(m[:, None], x.flatten()[:8]),
    "no source": lambda x, m: x.masked_scatter(m[:, None], x[:0]),
    "of nothing": lambda x, m: x[:0].masked_scatter(m[:1, None], x[:0]),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_that_take_more_than_there_is(name: str) -> None:
    def function(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        MASKS[name](x, mask)
        return x + 1

    run, x = smelt.compile(function), torch.rand(3, 4)
    for values in ([True, False, False], [True, True, True], [False, True, True], [False, False, False]):
        mask = torch.tensor(values)
        expected, got = outcome(function, x, mask), outcome(run, x, mask)
        assert got is expected if isinstance(expected, type) else torch.equal(got, expected)


ALONE: dict[str, tuple[Callable[[torch.Tensor], Any], torch.Tensor, torch.Tensor]] = {
    "cholesky": (torch.linalg.cholesky, torch.eye(3), -torch.eye(3)),
    "inverse": (torch.linalg.inv, torch.eye(3), torch.zeros(3, 3)),
    "solve": (lambda a: torch.linalg.solve(a, a[0]), torch.eye(3), torch.zeros(3, 3)),
    "svd": (torch.linalg.svd, torch.eye(3), torch.eye(3) * math.nan),
    "eigh": (torch.linalg.eigh, torch.eye(3), torch.eye(3) * math.nan),
    "poisson": (torch.poisson, torch.ones(3), -torch.ones(3)),
    "histc": (torch.histc, torch.arange(3.0), torch.ones(3) * math.nan),
    "bincount": (lambda x: torch.bincount(x.long()), torch.arange(3.0), -torch.arange(3.0)),
    "embedding_bag": (
        lambda x: F.embedding_bag(x.long(), x.new_ones(3, 2), torch.tensor([0])),
        torch.arange(3.0),
        torch.arange(4.0),
    ),
    "margins": (lambda x: F.multi_margin_loss(torch.ones(3, 3), x.long()), torch.arange(3.0), torch.arange(3.0) + 1),
}


@pytest.mark.parametrize("name", ALONE)
def test_operators_that_alone_know_what_is_wrong(name: str) -> None:
    dead, right, wrong = ALONE[name]

    def function(x: torch.Tensor) -> torch.Tensor:
        dead(x)
        return x + 1

    run = smelt.compile(function)
    for x in (right, wrong, right):
        expected, got = outcome(function, x), outcome(run, x)
        assert got is expected if isinstance(expected, type) else torch.equal(got, expected)
    assert outcome(function, wrong) is not None


def test_repeats_that_are_negative() -> None:
    """The kernel of an operator that is told how many there are writes beside its result: this ended the process."""
    for function in (
        lambda x, n: torch.repeat_interleave(x, n, dim=0),
        lambda x, n: (torch.repeat_interleave(n), x + 1)[1],
        lambda x, n: x.repeat_interleave(n * 1),
    ):
        run, x = smelt.compile(function), torch.arange(2.0)
        for repeats in ([1, 2], [-1, 2], [3, -1], [-2, -1], [2, 1]):
            expected, got = (outcome(f, x, torch.tensor(repeats)) for f in (function, run))
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


def test_used_operation_has_no_separate_range_check() -> None:
    def function(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (F.cross_entropy(F.embedding(i, x), i),)

    inputs = (torch.rand(4, 4, requires_grad=True), torch.tensor([1]))
    graph = trace_joint(graph_of_call(function, 2), inputs, Options()).module.graph
    assert all(n.target is not IN_RANGE for n in graph.nodes)
