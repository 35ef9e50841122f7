"""What arguments had before the call: history, derivatives of the caller, modes that no graph can hold."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

import smelt
from tests.capture.harness import compiled

BACKENDS = ("eager", "aot_eager")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_computed_argument_is_written_in_place(backend):
    def fn(x):
        x.mul_(2)
        return x.sin()

    run = smelt.compile(fn, backend=backend, fullgraph=True)
    found = []
    for each in (fn, run, run):
        leaf = torch.linspace(0, 1, 3).requires_grad_()
        x = leaf * 1
        out = each(x)
        (out.sum() + x.square().sum()).backward()
        found.append((out.detach(), x.detach(), leaf.grad))
    torch.testing.assert_close(found[1:], [found[0]] * 2)


def test_is_leaf_is_asked_of_each_argument():
    run = compiled(lambda x: x + (1 if x.is_leaf else 2), fullgraph=True)
    x = torch.zeros((), requires_grad=True)
    assert [float(run(x)), float(run(x * 1)), float(run(x))] == [1, 2, 1]


def test_detaching_an_argument():
    def fn(x):
        y = x * 2
        x.detach_()
        return y

    x = torch.ones(3, requires_grad=True) * 1
    out = compiled(fn)(x)
    assert not x.requires_grad and out.requires_grad


def test_writes_through_elements_that_share_memory():
    def fn(x):
        x.add_(1)
        x[0] = 5
        return x * 1

    seen = []
    for each in (fn, smelt.compile(fn, backend="aot_eager")):
        base = torch.zeros(4)
        try:
            each(base.unfold(0, 2, 1)[:, :1].expand(3, 2))
        except RuntimeError as error:
            seen.append(str(error))
    assert len(seen) == 2 and seen[0] == seen[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_forward_mode_derivatives_of_the_caller(backend):
    weight = torch.linspace(1, 2, 3)
    run = smelt.compile(lambda x: x.sin() * weight, backend=backend, fullgraph=True)
    x, direction = torch.linspace(0, 1, 3), torch.ones(3)
    for _ in range(2):
        run(x)  # compiled code is there, and does not apply to dual numbers
        with forward_ad.dual_level():
            out = forward_ad.unpack_dual(run(forward_ad.make_dual(x, direction)))
            torch.testing.assert_close(out.tangent, x.cos() * weight)


def test_forward_mode_derivatives_inside():
    def fn(x):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(forward_ad.make_dual(x, torch.ones(3)).sin()).tangent * 1

    x = torch.linspace(0, 1, 3)
    torch.testing.assert_close(compiled(fn)(x), x.cos())


def test_inference_mode_inside():
    def fn(x):
        with torch.inference_mode():
            y = x * 3
            z = y + 1
        return y, z.clone(), x * 2

    x = torch.ones(3, requires_grad=True)
    run = smelt.compile(fn, backend="aot_eager")
    for _ in range(2):
        for a, b in zip(run(x), fn(x), strict=True):
            assert (a.is_inference(), a.requires_grad) == (b.is_inference(), b.requires_grad)
            torch.testing.assert_close(a, b)
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("backend", BACKENDS)
def test_detaching_a_result(backend):
    def fn(x):
        y, z = x * 2, x * 3
        y.detach_()
        torch.detach_(z)
        return y, z, y * x.sin()

    run = smelt.compile(fn, backend=backend, fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    assert [t.requires_grad for t in run(x)] == [False, False, True]
    torch.testing.assert_close(torch.autograd.grad(run(x)[2].sum(), x), torch.autograd.grad(fn(x)[2].sum(), x))


def test_a_view_that_autograd_forbids_to_use():
    base = torch.ones(3, requires_grad=True) * 1
    with torch.no_grad():
        view = base[0]
    base.mul_(2)
    run = compiled(lambda x, view: (x * 2, view))
    assert run(torch.ones(2), view)[1] is view


def test_a_graph_that_writes_to_a_result_is_not_for_a_leaf():
    """Eager appends, and then refuses to write."""

    def fn(x, seen):
        seen.append(1)
        x.mul_(2)

    run = compiled(fn)
    leaf = torch.ones(3, requires_grad=True)
    run(leaf * 1, [])
    seen = []
    with pytest.raises(RuntimeError, match="leaf Variable"):
        run(leaf, seen)
    assert seen == [1]


@pytest.mark.parametrize("part", (lambda x: x, lambda x: x[1]))
def test_an_argument_that_shares_memory_with_a_written_one_requires_gradients(part):
    def fn(x, other, w):
        x.mul_(w)
        return (x * 2, 1) if other.requires_grad else (x * 3, 0)

    run = smelt.compile(fn, backend="aot_eager")
    for call in (fn, run, run):
        x = torch.ones(3, 4)
        out, way = call(x, part(x), torch.full((3, 4), 2.0, requires_grad=True))
        assert way == 1 and float(out[0, 0].detach()) == 4
        assert call(x.detach(), torch.ones(3), torch.full((3, 4), 2.0, requires_grad=True))[1] == 0


def test_the_history_of_a_written_argument_is_there():
    def fn(x, w):
        before = x.grad_fn is None, x.is_leaf
        x.mul_(w)
        return *before, x.grad_fn is None, x.is_leaf, (w * 2).detach().grad_fn is None

    for call in (fn, compiled(fn)):
        assert call(torch.ones(3), torch.ones(3, requires_grad=True)) == (True, True, False, False, True)
