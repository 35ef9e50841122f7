"""smelt/capture/control_flow/conditionals.py: branches on tensors' values that the graph takes when it runs."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.graph.nodes.conditional import conditionals
from tests.capture.harness import check, compiled, same

X = torch.arange(6.0).reshape(2, 3)


class Holder:
    """Holds what a branch sets."""

    a: Any
    b: Any


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
def test_one_graph_for_both_arms(fn: Any, x: Any) -> None:
    check(fn, x, graphs=1)


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_one_version_serves_both_arms(fn: Any) -> None:
    run = compiled(fn, fullgraph=True)
    for x in (X, -X, X * 4, X / 9):
        torch.manual_seed(1)
        expected = fn(x)
        torch.manual_seed(1)
        assert same(run(x), expected)
    (site,) = run._smelt_session.sites.values()
    assert len(site.versions) == 1
    assert conditionals(site.versions[0].residual.gm.graph)


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


@pytest.mark.parametrize("way", [1.0, -1.0])
def test_the_order_of_items_and_attributes(way: float) -> None:
    def items(x: Any) -> dict[str, Any]:
        made, y = {}, x * 2
        if x.sum() > 0:
            made["a"], made["b"] = 1, y + 1
        else:
            made["b"], made["a"] = y + 2, 1
        return made

    def attributes(x: Any) -> dict[str, Any]:
        made, y = Holder(), x * 2
        if x.sum() > 0:
            made.a, made.b = 1, y + 1
        else:
            made.b, made.a = y + 2, 1
        return vars(made)

    for fn in (items, attributes):
        run = compiled(fn)
        for _ in range(2):
            made, expected = run(X * way), fn(X * way)
            assert list(made) == list(expected) and same(made, expected)


def test_sizes_that_change() -> None:
    run = smelt.compile(unbounded, fullgraph=True, dynamic=True)
    for length in range(2, 7):
        for x in (torch.ones(length, 3), -torch.ones(length, 3)):
            torch.testing.assert_close(run(x), unbounded(x), equal_nan=True)


ANSWERS: list[Callable[..., Any]] = []


def _answered(f: Callable[..., Any]) -> Callable[..., Any]:
    ANSWERS.append(f)
    return f


@_answered
def _equal_in_an_if(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a = a * 2
    if torch.equal(a, b):
        a = a + 1
    else:
        a = a - 1
    return a * 3


@_answered
def _close_and_not(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if not torch.allclose(a * 2, b, rtol=1e-3):
        return a.sin()
    return a.cos() if a.equal(a) else a


@_answered
def _kept_in_a_variable(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    same = torch.equal(a * 2, b)
    a = a.exp()
    if same:
        a = a + 1
    return a


@_answered
def _returned(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a * 2, b)


@_answered
def _shapes_differ(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a + 1 if torch.equal(a, b[:2]) else a - 1


@pytest.mark.parametrize("f", ANSWERS, ids=lambda f: f.__name__)
def test_answers_about_values_are_conditions(f: Callable[..., Any]) -> None:
    smelt.reset()
    compiled = smelt.compile(f, fullgraph=True)
    a = torch.randn(4, 3)
    nan = a.clone()
    nan[0, 0] = float("nan")
    for given in ((a, a * 2), (a, a + 1), (nan, nan * 2), (a, a * 2 + 1e-7)):
        got, want = compiled(*given), f(*given)
        assert got == want if isinstance(want, bool) else torch.allclose(got, want, equal_nan=True)
    assert smelt.stats()["break_reasons"] == {} and smelt.stats()["recompiles"] == 0


def test_answers_used_otherwise_cost_their_operation() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> tuple[Any, ...]:
        a = a * 2
        return torch.equal(a, b) + 1, f"{torch.allclose(a, b)}", a.sin()

    smelt.reset()
    compiled, a = smelt.compile(f), torch.randn(3)
    for b in (a * 2, a):
        got, want = compiled(a, b), f(a, b)
        assert got[:2] == want[:2]
        torch.testing.assert_close(got[2], want[2])
    assert any("torch.equal needs the values" in reason for reason in smelt.stats()["break_reasons"])


def test_an_assertion_of_closeness_is_checked_by_the_graph() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if not torch.allclose(a, b):  # as `assert` does it, which pytest would rewrite
            raise AssertionError("not close")
        return a + 1

    compiled, a = smelt.compile(f, fullgraph=True), torch.randn(3)
    assert torch.equal(compiled(a, a.clone()), a + 1)
    with pytest.raises(AssertionError, match="not close"):
        compiled(a, a + 1)


def test_two_dtypes_are_compared_as_in_eager() -> None:
    a = torch.ones(3)
    compiled = smelt.compile(lambda a, b: (a * 2).equal(b))
    assert compiled(a, a * 2) and not compiled(a, a.double())


def _extended(items: Any) -> list[Any]:
    held: list[Any] = []
    held.extend(items)
    return held


@pytest.mark.parametrize(
    "use",
    [
        lambda: list(itertools.count()),
        lambda: _extended(itertools.cycle([1, 2])),
        lambda: [sum(itertools.repeat(1))],
        lambda: list(map(abs, itertools.count())),
        lambda: (lambda first, *rest: rest)(*zip(itertools.count(), itertools.cycle("ab"))),  # noqa: B905
    ],
)
def test_an_endless_arm_that_is_not_taken(use: Callable[[], Any]) -> None:
    def fn(x: Any) -> Any:
        if x.sum() > 0:
            return x + 1
        return x + len(use())

    assert torch.equal(compiled(fn)(torch.ones(2)), torch.full((2,), 2.0))
