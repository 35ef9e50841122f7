"""smelt/capture/conditionals.py: branches on tensors' values that the graph takes when it runs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.graph.conditional import conditionals
from tests.capture.harness import check, compiled, same

X = torch.arange(6.0).reshape(2, 3)


def unbounded(x: Any) -> Any:
    y = x * 2
    if x.sum() > 0:
        y = y.sqrt()
    return y


def unset(x: Any) -> Any:
    if x.sum() > 0:
        y = x + 1
    else:
        y = x - 1
    return y


def draws(x: Any) -> Any:
    y = x
    if x.sum() > 0:
        y = torch.rand_like(x)
    return y + torch.rand(())


def returns(x: Any) -> Any:
    if x.sum() > 0:
        return x + 1, 3
    return x - 1, 3


def number(x: Any) -> Any:
    k, y = 1, x * 2
    if x.sum() > 0:
        k = 2
    return y, k


def flag(x: Any) -> Any:
    skip = False
    if x.sum() > 0:
        skip = True
    return x * 2 if skip else x + 1


def both(x: Any) -> Any:
    return x + 1 if x.sum() > 0 and x.max() < 9 else x - 1


def nested(x: Any) -> Any:
    if x.sum() > 0:
        x = x * 3
        if x.max() > 9:
            x = x - 1
        else:
            x = x + 1
    return x


def pair(x: Any) -> Any:
    h, state = x, (x, 0)
    for _ in range(3):
        if h.sum() > 20:
            continue
        h = h + 2
        state = (h, 0)
    return h, state


def kept(x: Any) -> Any:
    held = {"last": None, "count": 0}
    for row in x:
        if row.sum() > 3:
            held["last"] = row * 2
            held["count"] = 1
    return held


class Box:
    pass


def filled(x: Any) -> Any:
    box = Box()
    if x.sum() > 0:
        box.value, box.kind = x * 2, "double"
    return box


def inlined(x: Any) -> Any:
    return unbounded(x) + nested(x)


PROGRAMS = [unbounded, unset, draws, returns, flag, both, nested, pair, kept, filled, inlined]


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("x", [X, -X, X * 4], ids=["positive", "negative", "large"])
def test_one_graph_for_both_ways(fn: Any, x: Any) -> None:
    check(fn, x, graphs=1)


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_one_version_serves_both_ways(fn: Any) -> None:
    run = compiled(fn, fullgraph=True)
    for x in (X, -X, X * 4, X / 9):
        torch.manual_seed(1)
        expected = fn(x)
        torch.manual_seed(1)
        assert same(run(x), expected)
    (place,) = run._smelt_session.places.values()
    assert len(place.versions) == 1
    assert conditionals(place.versions[0].residual.gm.graph)


class Layers(nn.Module):
    """Skips layers at random, with statistics and dropout in them."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)) for _ in range(4)]
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Any) -> Any:
        seen = ()
        for layer in self.layers:
            seen += (x,)
            chance = torch.rand([])
            skip = self.training and chance < 0.5
            if not skip:
                outputs = (layer(x), None)
                x = outputs[0]
            if skip:
                outputs = (None, None)
        return x + 1, seen


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "smelt"])
def test_layers_that_are_skipped_at_random(backend: str) -> None:
    model = Layers()
    expected = copy.deepcopy(model)
    options = {"eager_rng": True} if backend == "smelt" else None
    run = smelt.compile(model, backend=backend, fullgraph=True, options=options)
    before = smelt.stats()["graphs"]
    for seed in range(8):
        found = []
        for each in (run, expected):
            torch.manual_seed(seed)
            x = torch.randn(5, 4, requires_grad=True)
            out, seen = each(x)
            parameters = (run is each and model or expected).parameters()
            gradients = torch.autograd.grad(out.square().sum(), [x, *parameters], allow_unused=True)
            found.append((out, seen, gradients, torch.get_rng_state()))
        torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(dict(model.named_buffers()), dict(expected.named_buffers()))
    assert smelt.stats()["graphs"] - before == 1


def other_shape(x: Any) -> Any:
    y = x * 2
    if x.sum() > 0:
        y = y[0] - 1
    return y


def reads(x: Any) -> Any:
    k = 1
    if x.sum() > 0:
        k = 2
    return x * k


def writes(x: Any) -> Any:
    y = x * 2
    if x.sum() > 0:
        y[0] = 1
    return y


def written_later(x: Any) -> Any:
    y = x * 2
    z = y
    if x.sum() > 0:
        z = y + 1
    z += 1
    return y, z


def consumes(x: Any) -> Any:
    rows = iter(x)
    y = x.sum()
    if y > 0:
        y = y + next(rows)
    return y + next(rows)


def repeats(x: Any) -> Any:
    while x.sum() < 100:
        x = x * 2 + 1
    return x


@pytest.mark.parametrize(
    "fn",
    [other_shape, reads, number, writes, written_later, consumes, repeats],
    ids=lambda fn: fn.__name__,
)
def test_other_branches_end_the_graph(fn: Any) -> None:
    for x in (X, -X):
        run = compiled(fn)
        if fn is repeats and x is not X:
            continue
        for _ in range(2):
            assert same(run(x.clone()), fn(x.clone()))
        assert run._smelt_session.breaks


def test_effects_outside_end_the_graph() -> None:
    def fn(x: Any, seen: list[int]) -> Any:
        y = x * 2
        if x.sum() > 0:
            seen.append(1)
            y = y + 1
        return y

    check(fn, X, [], breaks=1)
    check(fn, -X, [], breaks=1)


def test_sizes_that_change() -> None:
    run = smelt.compile(unbounded, fullgraph=True, dynamic=True)
    for length in range(2, 7):
        for x in (torch.ones(length, 3), -torch.ones(length, 3)):
            torch.testing.assert_close(run(x), unbounded(x), equal_nan=True)
