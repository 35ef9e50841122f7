"""Hooks on what autograd saves, around compiled calls and inside; tangents of other layouts and dtypes."""

from __future__ import annotations

import sys

import pytest
import torch
from torch.autograd.function import once_differentiable
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import smelt
from smelt.runtime import memory
from smelt.runtime.library import externs
from tests.autograd.scenarios import X, gradients, model, same


def test_around_a_call():
    def run(compile):
        net, packed, unpacked = model(), [], []

        def pack(tensor):
            packed.append(tensor.shape)
            return tensor.detach().numpy().copy()

        def unpack(array):
            unpacked.append(array.shape)
            return torch.from_numpy(array)

        forward = compile(net)
        x = X.clone().requires_grad_()
        with saved_tensors_hooks(pack, unpack):
            out = forward(x)
        out.sum().backward()
        assert packed and len(unpacked) == len(packed)
        with save_on_cpu():
            forward(x).sum().backward()
        with torch.autograd.graph.disable_saved_tensors_hooks("none here"):
            forward(x).sum().backward()
        return x.grad, gradients(net)

    same(run)


def test_inside():
    def run(compile):
        def fn(x):
            with saved_tensors_hooks(lambda t: t.neg(), lambda t: t.neg()):
                return x.sin() * 2

        x = X.clone().requires_grad_()
        compile(fn)(x).sum().backward()
        return [x.grad]

    same(run, breaks=None)


def test_tangents():
    def run(compile):
        x, found = X.clone().requires_grad_(), []
        fn = compile(lambda x: x.sin() * 2)
        for tangent in (torch.ones(1, 1).expand(5, 4), torch.arange(20.0).reshape(4, 5).t(), torch.zeros(5, 8)[:, ::2]):
            found += torch.autograd.grad(fn(x), x, tangent)
        out = fn(x)
        found += torch.autograd.grad(out.double().sum() + out.half().sum(), x)
        return found

    same(run)


def test_unused_outputs_have_no_gradient():
    def run(compile):
        net = model()
        first, _ = compile(lambda x: (net[0](x), net[2](torch.ones(2, 6))))(X)
        first.sum().backward()
        return [g is None for g in gradients(net)]

    same(run)


def _deep(layers, size, seed=0):
    """A chain whose activations are as large as its gradients, which kernels of this project make."""
    torch.manual_seed(seed)
    weights = [torch.rand(size, size, requires_grad=True) for _ in range(layers)]
    mixed = torch.randn(size, size) / size**0.5

    def fn(x):
        for weight in weights:
            x = torch.tanh(x @ mixed) * weight
        return x.sum()

    return smelt.compile(fn), fn, weights, torch.randn(size, size)


@pytest.mark.skipif(not memory.RECYCLING, reason="the heap that counts bytes is off")
def test_the_backward_frees_what_it_has_read(monkeypatch):
    # of the products that are raced, some return a tensor of torch's own memory, which the heap does not count
    monkeypatch.setattr(externs, "remembered", lambda operation, names: names[0])
    layers, size = 16, 192
    run, _, weights, x = _deep(layers, size)
    run(x).backward()
    for weight in weights:
        weight.grad = None
    memory.trim()  # the peak begins anew
    loss = run(x)
    saved = memory.report()["live"]
    assert saved >= (layers - 1) * size * size * 4
    loss.backward()
    assert memory.report()["peak"] < 1.3 * saved  # gradients take the place of activations; both would be twice it


def test_a_retained_graph_keeps_what_its_backward_has_read():
    run, fn, weights, x = _deep(3, 8)
    loss = run(x)
    once = torch.autograd.grad(loss, weights, retain_graph=True)
    twice = torch.autograd.grad(loss, weights)
    wanted = torch.autograd.grad(fn(x), weights)
    for a, b, w in zip(once, twice, wanted, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, w)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, weights)


SAVED_LAYOUTS = {
    "transposed": lambda c: c.t(), "columns": lambda c: c[:, 1:6].t(), "every second": lambda c: c[:, ::2],
    "repeated": lambda c: c[:, :1].expand(8, 8), "contiguous": lambda c: c,
}  # fmt: skip


@pytest.mark.parametrize("layout", SAVED_LAYOUTS)
@pytest.mark.parametrize("hook", ["cpu", "contiguous", "transposed", "elsewhere"])
def test_hooks_that_keep_values_but_not_strides(layout, hook):
    """A backward program reads its saved tensors by address."""

    def run(compile):
        x = torch.arange(64.0).view(8, 8).div(64).requires_grad_()
        view = SAVED_LAYOUTS[layout](x)
        w = torch.linspace(-1, 1, view.shape[1]).requires_grad_()
        unpack = {
            "contiguous": lambda t: t.contiguous(), "transposed": lambda t: t.mT.contiguous().mT if t.dim() > 1 else t,
            "elsewhere": lambda t: torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape),
        }  # fmt: skip
        hooks = save_on_cpu() if hook == "cpu" else saved_tensors_hooks(lambda t: t, unpack[hook])
        with hooks:
            out = compile(lambda v, w: (v * w).tanh() * v)(view, w)
        out.sum().backward()
        return out, x.grad, w.grad

    same(run)


@pytest.mark.parametrize(
    ("unpack", "told"),
    [
        (lambda t: t.double(), r"float64\[8, 8\] on cpu.*packed as float32\[8, 8\] on cpu"),
        (lambda t: t[:2], r"float32\[2, 8\]"),
        (lambda t: t.to("meta"), r"on meta"),
    ],
)
def test_hooks_that_give_back_something_else(unpack, told):
    x = torch.randn(8, 8, requires_grad=True)
    with saved_tensors_hooks(lambda t: t, unpack):
        out = smelt.compile(lambda x: (x @ x).tanh())(x)
    with pytest.raises(RuntimeError, match=told):
        out.sum().backward()


class Unsteady(torch.autograd.Function):
    """It breaks the graph, so its forward runs in eager, and its backward is captured when it runs."""

    @staticmethod
    def forward(ctx, x, y):
        sys._getframe()
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return gradient * y, (gradient * x * y).sum_to_size(y.shape)


def _apply(x, y):
    return Unsteady.apply(x * 2, y + 1) * x


def _checkpointed(x, y):
    return checkpoint(_apply, x, y, use_reentrant=False)


@pytest.mark.parametrize("backend", ["eager", "smelt"])
def test_hooks_are_asked_once_for_each_backward_of_a_function_in_eager(backend):
    """Capture, guards and residual code read `ctx.saved_tensors`; hooks see one of them."""
    unpacked = []
    compiled = smelt.compile(_apply, backend=backend)

    def unpack(tensor):
        unpacked.append(tuple(tensor.shape))
        return tensor

    for _ in range(2):
        x, y = (torch.full((3, n), 2.0, requires_grad=True) for n in (5, 1))
        with saved_tensors_hooks(lambda tensor: tensor, unpack):
            out = compiled(x, y)
        for _ in range(2):
            unpacked.clear()
            found = torch.autograd.grad(out.sum(), (x, y), retain_graph=True)
            assert unpacked.count((3, 1)) == 1
        want = torch.autograd.grad(_apply(x, y).sum(), (x, y))
        torch.testing.assert_close(found, want)


@pytest.mark.parametrize("backend", ["eager", "smelt"])
def test_a_checkpoint_around_a_function_in_eager(backend):
    compiled = smelt.compile(_checkpointed, backend=backend)
    for _ in range(2):
        x, y = (torch.full((3, 2), float(n), requires_grad=True) for n in (1, 2))
        found, want = (torch.autograd.grad(run(x, y).sum(), (x, y)) for run in (compiled, _checkpointed))
        torch.testing.assert_close(found, want)
