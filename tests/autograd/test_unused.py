"""Backwards for calls in which some results were not used."""

import itertools

import pytest
import torch

import smelt
from smelt.autograd import unused


@pytest.fixture(autouse=True)
def always_worth_it(monkeypatch):
    monkeypatch.setattr(unused, "WORTH", 1)


def several(a, b):
    y = torch.nn.functional.layer_norm(a * 2, (8,))
    z = torch.nn.functional.gelu(a @ b)
    return y.sum(-1), z, torch.softmax(z, -1)


@pytest.mark.parametrize("used", [u for u in itertools.product((False, True), repeat=3) if any(u)])
def test_gradients_are_those_of_eager_whatever_was_used(used):
    a, b = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    found = []
    for f in (several, smelt.compile(several)):
        a.grad = b.grad = None
        weighed = [(out * torch.arange(1.0, 1 + out.shape[-1])).sum() for out in f(a, b)]
        sum(itertools.compress(weighed, used)).backward()
        found.append((a.grad, b.grad))
    for mine, eager in zip(*found[::-1], strict=True):
        assert (mine is None) == (eager is None)
        if eager is not None:
            torch.testing.assert_close(mine, eager, atol=1e-4, rtol=1e-4)


def test_nothing_is_computed_from_what_is_absent(monkeypatch):
    made = []
    original = unused.without_tangents
    monkeypatch.setattr(unused, "without_tangents", lambda gm, absent: made.append(original(gm, absent)) or made[-1])

    def loss_and_logits(x, w):
        logits = x @ w
        return logits.pow(2).mean(), logits

    x, w = torch.randn(8, 16), torch.randn(16, 32, requires_grad=True)
    loss_and_logits_compiled = smelt.compile(loss_and_logits)
    for _ in range(2):
        loss_and_logits_compiled(x, w)[0].backward()
    (graph,) = made  # compiled once
    names = [n.name for n in graph.graph.nodes if n.op == "placeholder"]
    assert sum(name.startswith("tangents_") for name in names) == 1
    assert not any("full" in str(n.target) for n in graph.graph.nodes)


def test_small_results_are_filled_with_zeros(monkeypatch):
    monkeypatch.setattr(unused, "WORTH", 1 << 20)
    monkeypatch.setattr(unused, "without_tangents", lambda *_: pytest.fail("not worth it"))
    x = torch.randn(4, requires_grad=True)
    smelt.compile(lambda x: (x * 2, x * 3))(x)[0].sum().backward()
    assert x.grad.tolist() == [2.0] * 4
