"""smelt/capture/control_flow/branches.py: branches that only clamp are computed both ways."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import smelt
from tests.capture.harness import check, compiled, same

X = torch.arange(6.0).reshape(2, 3)
INPUTS = [X, -X, X / 0, X.clone().fill_(float("nan")), X.to(torch.float16) * 60000]


def finite(x: Any) -> Any:
    y = x * 2
    if not torch.isfinite(y).all():
        limit = torch.finfo(y.dtype).max - 1000
        y = torch.clamp(y, min=-limit, max=limit)
    return y + 1


def method(x: Any) -> Any:
    y = x * 2
    if y.isinf().any():
        y = y.clamp(-9.0, 9.0)
        y = y.nan_to_num(1.0)
    z = y + 1
    return z


def inlined(x: Any) -> Any:
    return finite(x) + method(x)


@pytest.mark.parametrize("fn", [finite, method, inlined], ids=lambda fn: fn.__name__)
def test_one_graph_for_both_arms(fn: Any) -> None:
    check(fn, X, graphs=1)
    run = compiled(fn, fullgraph=True)
    for x in INPUTS:
        assert torch.equal(run(x).nan_to_num(5.0), fn(x).nan_to_num(5.0))
    assert len(run._smelt_session.sites) == 1


@pytest.mark.parametrize("scale", [1.0, float("inf")])
def test_gradients(scale: float) -> None:
    found = []
    for run in (method, smelt.compile(method, fullgraph=True), compiled(method)):
        x = (X + 1).requires_grad_()
        run(x * scale).sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(found[0], found[2], rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(found[0], found[1], equal_nan=True)


def other_shape(x: Any) -> Any:
    y = x * 2
    if x.sum() > 0:
        y = y[0] - 1
    return y


def effects(x: Any, seen: list[int]) -> Any:
    y = x * 2
    if x.sum() > 0:
        seen.append(1)
        y = y + 1
    return y


@pytest.mark.parametrize("fn", [other_shape], ids=lambda fn: fn.__name__)
def test_other_branches_break(fn: Any) -> None:
    check(fn, X, breaks=1)
    check(fn, -X, breaks=1)


def test_a_branch_with_effects_breaks() -> None:
    check(effects, X, [], breaks=1)
    check(effects, -X, [], breaks=1)


def test_variables_of_a_refused_branch_are_not_set() -> None:
    def fn(x: Any) -> Any:
        k = 1
        y = x * 2
        if x.sum() > 0:
            k = 5
            y = y.sqrt()
        return y + k

    check(fn, X, breaks=1)
    check(fn, -X, breaks=1)


def test_a_failing_branch_that_is_not_taken() -> None:
    def fn(x: Any) -> Any:
        y = x * 2
        if x.sum() < 0:
            y = y + torch.ones(7)
        return y

    assert same(compiled(fn)(X), fn(X))
