"""Autocast inside and outside of compiled functions, gradient scaling, accumulation, clipping, retained graphs."""

from __future__ import annotations

import pytest
import torch

from tests.autograd.scenarios import X, gradients, model, same


def test_autocast_inside():
    def run(compile):
        net = model()

        def fn(x):
            with torch.autocast("cpu", torch.bfloat16):
                y = net(x)
                with torch.autocast("cpu", enabled=False):
                    return y, net[0](x)

        a, b = compile(fn)(X)
        (a.float().sum() + b.sum()).backward()
        assert a.dtype is torch.bfloat16 and b.dtype is torch.float32
        return a, b, gradients(net)

    same(run, rtol=0.02, atol=0.02)


def test_autocast_outside():
    def run(compile):
        net = model()
        forward = compile(net)
        with torch.autocast("cpu", torch.bfloat16):
            out = forward(X)
        again = forward(X)
        assert (out.dtype, again.dtype) == (torch.bfloat16, torch.float32)
        (out.float().sum() + again.sum()).backward()
        return out, again, gradients(net)

    same(run, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("inside", [False, True])
def test_gradient_scaler(inside):
    """Also with a step that overflows and is left out."""

    def run(compile):
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
        forward = net if inside else compile(net)

        def step(x):
            optimizer.zero_grad()
            loss = forward(x).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            return loss

        step = compile(step) if inside else step
        losses = [step(X * (float("inf") if i == 1 else 1)).detach() for i in range(4)]
        return torch.stack(losses).nan_to_num(), [p.detach() for p in net.parameters()], scaler.get_scale()

    same(run, breaks=None)


def test_accumulation_and_clipping():
    def run(compile):
        net = model()
        forward = compile(net)
        for shift in range(3):
            (forward(X + shift).square().mean() / 3).backward()

        @compile
        def clip():
            torch.nn.utils.clip_grad_value_(net.parameters(), 0.1)
            return torch.nn.utils.clip_grad_norm_(net.parameters(), 0.2, foreach=False)

        return clip(), gradients(net)

    same(run)


def test_retained_graphs():
    def run(compile):
        net = model()
        loss = compile(net)(X).square().mean()
        loss.backward(retain_graph=True)
        first = [g.clone() for g in gradients(net)]
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        return first, gradients(net)

    same(run)
