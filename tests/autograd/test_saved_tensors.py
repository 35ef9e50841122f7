"""Hooks on what autograd saves, around compiled calls and inside; tangents of other layouts and dtypes."""

from __future__ import annotations

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

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
