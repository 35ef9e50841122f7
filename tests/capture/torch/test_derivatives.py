"""`torch.autograd.grad` inside captured functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from tests.capture.harness import compiled, raises

torch.manual_seed(0)
NET = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
X = torch.randn(5, 3)


def forces(x):
    """Energies and their derivative by positions, which is trained as well."""
    energy = NET(x).square()
    (slope,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
    return energy, -slope


def residual(x):
    """A differential equation of second order, as in physics-informed networks."""
    own = x.detach().requires_grad_()
    out = NET(own)
    slope = torch.autograd.grad(out, own, torch.ones_like(out), create_graph=True)[0]
    curvature = torch.autograd.grad(slope.sum(), own, create_graph=True)[0]
    return (curvature + out * slope).square().mean()


def penalty(x):
    """Of gradients by the weights of a module."""
    loss = NET(x).square().mean()
    slopes = torch.autograd.grad(loss, list(NET.parameters()), create_graph=True)
    return loss + sum(s.square().sum() for s in slopes)


def without_history(x):
    loss = NET(x).square().mean()
    with_none = torch.autograd.grad(loss, [x, torch.ones(2, requires_grad=True)], allow_unused=True)
    assert with_none[1] is None
    return loss.detach() * 2, with_none[0]


def batched(x):
    out = NET(x)
    return torch.autograd.grad(out, x, torch.eye(5).unsqueeze(2), is_grads_batched=True, create_graph=True)[0]


CASES = [forces, residual, penalty, without_history, batched]


def run(fn: Callable[..., Any]) -> list[Any]:
    x = X.clone().requires_grad_()
    NET.zero_grad()
    out = fn(x)
    out = out if isinstance(out, tuple) else (out,)
    heads = [o for o in out if o.requires_grad]
    if heads:
        sum((h * h).sum() for h in heads).backward()
    return [*out, x.grad, *(p.grad for p in NET.parameters())]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "smelt"])
@pytest.mark.parametrize("fn", CASES)
def test_derivatives_are_nodes(fn: Callable[..., Any], backend: str, dynamic: bool | None) -> None:
    smelt.reset()
    once = smelt.compile(fn, backend=backend, fullgraph=True, dynamic=dynamic)
    for _ in range(2):
        for a, b in zip(run(once), run(fn), strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                exact = {"rtol": 0, "atol": 0} if backend == "eager" else {"rtol": 1e-4, "atol": 1e-6}
                torch.testing.assert_close(a, b, **exact)
                assert a.requires_grad == b.requires_grad
    assert smelt.stats()["graphs"] == 1 and smelt.stats()["breaks"] == 0


def test_a_history_from_before_is_followed() -> None:
    def fn(x, y):
        return torch.autograd.grad((x + y).square().sum(), x, retain_graph=True)[0]

    once = compiled(fn)
    x, z = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    for y in (z, x * 2, z):  # the second one leads to x again
        assert torch.equal(once(x, y), fn(x, y))


def test_hooks_of_arguments_are_called() -> None:
    def fn(x):
        return torch.autograd.grad(x.square().sum(), x)[0]

    once = compiled(fn)
    x = torch.randn(3, requires_grad=True)
    assert torch.equal(once(x), x.detach() * 2)
    x.register_hook(lambda g: g * 3)
    assert torch.equal(once(x), fn(x))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.autograd.grad(x.sum(), x),
        lambda x: torch.autograd.grad(NET(x), list(NET.parameters())),
        lambda x: torch.autograd.grad(NET(x).sum(), torch.ones(2, requires_grad=True)),
    ],
)
def test_errors_are_those_of_eager(fn: Callable[..., Any]) -> None:
    raises(fn, RuntimeError, X)


_AGAIN = {
    "another function of the leaf": lambda w, x: ((w * w).sum().backward(), (w * x).sum())[1],
    "a graph that saved nothing": lambda w, x: (loss := (w * 2).sum(), loss.backward(), loss)[2],
    "a graph that is used up": lambda w, x: (loss := (w * w).sum(), loss.backward(), loss)[2],
    "a part that saved nothing": lambda w, x: (h := w * 2, (h * h).sum().backward(), h)[2],
    "a part that is used up": lambda w, x: (h := w.sin(), (h * 2).sum().backward(), h)[2],
    "after grad": lambda w, x: (h := w * x, torch.autograd.grad(h.sum(), w), h)[2],
    "beside grad": lambda w, x: (h := w * x, torch.autograd.grad(h.sum(), w), w + x)[2],
}


@pytest.mark.parametrize("backend", ("eager", "aot_eager", "smelt"))
@pytest.mark.parametrize("kind", [*_AGAIN])
def test_a_backward_outside_after_one_inside(kind, backend):
    def run(compile):
        w, x, found = torch.arange(1.0, 4.0).requires_grad_(), torch.full((3,), 2.0), []
        f = compile(_AGAIN[kind])
        for _ in range(2):
            out = f(w, x)
            try:
                out.sum().backward()
            except RuntimeError as error:
                found.append(str(error).split("(")[0])
            found.append(None if w.grad is None else w.grad.tolist())
        return found

    want, got = run(lambda f: f), run(lambda f: smelt.compile(f, backend=backend))
    assert [type(each) for each in got] == [type(each) for each in want]
    for a, b in zip(got, want, strict=True):
        assert a == (pytest.approx(b, rel=1e-5) if isinstance(b, list) else b)
