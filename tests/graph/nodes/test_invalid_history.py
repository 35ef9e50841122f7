"""Results whose history needs a value that the function overwrote: eager returns them, and raises in their backward."""

from __future__ import annotations

import pytest
import torch

import smelt

BACKENDS = ("aot_eager", "smelt")


def _fn(x):
    h = x * 2
    early = h.sin()
    shown = early[1:]
    late = h.add_(1).cos()
    return early, shown, late


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_others_have_their_gradients(backend):
    found = []
    for run in (_fn, smelt.compile(_fn, backend=backend, fullgraph=True)):
        x = torch.linspace(-1, 1, 6).requires_grad_()
        early, shown, late = run(x)
        assert early.requires_grad and shown.requires_grad and early.grad_fn is not None
        late.sum().backward()
        found.append((early.detach(), shown.detach(), late.detach(), x.grad))
        for spoilt in (early, shown):
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                spoilt.sum().backward()
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("backend", BACKENDS)
def test_when_no_other_is_left(backend):
    def fn(x):
        h = x.exp()
        early = h * h
        h.zero_()
        return early

    found = []
    for run in (fn, smelt.compile(fn, backend=backend, fullgraph=True)):
        x = torch.linspace(-1, 1, 6).requires_grad_()
        out = run(x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()
        found.append(out.detach())
    torch.testing.assert_close(*found)


def test_across_a_cut():
    def fn(x):
        h = x * 2
        early = h.sin()
        h.add_(1)
        h.register_hook(lambda grad: grad * 3)
        return h.cos(), early.detach()

    found = []
    for run in (fn, smelt.compile(fn, backend="aot_eager", fullgraph=True)):
        x = torch.linspace(-1, 1, 6).requires_grad_()
        out, early = run(x)
        out.sum().backward()
        found.append((out.detach(), early, x.grad))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("backend", BACKENDS)
def test_derivatives_by_what_it_comes_from(backend):
    def fn(x, y):
        h = x * 2
        h.mul_(h)
        return h, y * 3

    for run in (fn, smelt.compile(fn, backend=backend, fullgraph=True)):
        x, y = torch.linspace(-1, 1, 6).requires_grad_(), torch.ones(6).requires_grad_()
        spoilt, other = run(x, y)
        total = (spoilt + other).sum()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(total, [x], allow_unused=True, retain_graph=True)
        (found,) = torch.autograd.grad(total, [y])
        assert torch.equal(found, torch.full((6,), 3.0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_operators_without_a_derivative_raise_in_the_backward(backend):
    def fn(x):
        return x.unique(), x * 2

    for run in (fn, smelt.compile(fn, backend=backend)):
        x = torch.linspace(-1, 1, 6).requires_grad_()
        values, doubled = run(x)
        with pytest.raises(NotImplementedError, match="the derivative for '_unique2' is not implemented"):
            values.sum().backward()
        doubled.sum().backward()
        assert torch.equal(x.grad, torch.full((6,), 2.0))


def test_derivatives_of_what_a_backward_has_used_up():
    def fn(x):
        y = (x * x).sum()
        y.backward()
        return y

    messages = []
    for run in (fn, smelt.compile(fn, backend="aot_eager", fullgraph=True)):
        x = torch.ones(3, requires_grad=True)
        y = run(x)
        for differentiate in (y.backward, lambda y=y, x=x: torch.autograd.grad(y, [x], allow_unused=True)):
            with pytest.raises(RuntimeError, match="a second time") as caught:
                differentiate()
            messages.append(str(caught.value))
    assert len(set(messages)) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_history_that_begins_inside(backend):
    def fn(x):
        leaf = torch.ones(3).requires_grad_()
        return leaf * 2 + x, leaf + 1, (leaf * 3)[1:]

    for given in (torch.ones(3), torch.ones(3).requires_grad_()):
        for run in (fn, smelt.compile(fn, backend=backend, fullgraph=True)):
            results = run(given)
            assert all(each.requires_grad and not each.is_leaf for each in results)
            sum(each.sum() for each in results).backward()
            assert given.grad is None or torch.equal(given.grad, torch.ones(3))
            given.grad = None


def _square(t, w):
    t.mul_(t)


def _part(t, w):
    part = t[:2]
    part.mul_(part)
    return t + 1


def _joined(t, w):
    t = t.detach()
    t.mul_(w)
    t.mul_(t)
    return w * 2


@pytest.mark.parametrize("fn", [_square, _part, _joined])
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_argument_that_is_written(backend, fn):
    found = []
    for run in (fn, smelt.compile(fn, backend=backend, fullgraph=True)):
        leaf, w = torch.arange(1.0, 4.0).requires_grad_(), torch.ones(3, requires_grad=True)
        t = leaf * 2
        out = run(t, w)
        assert t.requires_grad and not t.is_leaf
        if fn is _joined:
            (2 * out).sum().backward()
            assert torch.equal(w.grad, torch.full((3,), 4.0))
        else:
            for each in (t, out) if out is not None else (t,):
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    each.sum().backward()
        found.append(t.detach())
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_argument_gets_a_history_that_begins_inside(backend):
    def fn(x):
        x.mul_(torch.full((3,), 2.0, requires_grad=True))

    for run in (fn, smelt.compile(fn, backend=backend, fullgraph=True)):
        x = torch.ones(3)
        run(x)
        assert x.requires_grad and not x.is_leaf and torch.equal(x.detach(), torch.full((3,), 2.0))
        x.sum().backward()
