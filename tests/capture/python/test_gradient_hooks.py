"""Hooks on parameters, with the backward inside the compiled function and outside."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import smelt

BACKENDS = ("eager", "aot_eager")


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 3))


def _same(run, backend, breaks=0, fullgraph=True):
    """`run(compile)` gives the same with and without the compiler."""
    want = run(lambda f: f)
    smelt.reset()
    got = run(lambda f: smelt.compile(f, backend=backend, fullgraph=fullgraph))
    assert got[0] == want[0]
    torch.testing.assert_close(got[-1], want[-1])
    assert smelt.stats().get("breaks", 0) == breaks


X = torch.linspace(-1, 1, 20).reshape(5, 4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_backward_inside_calls_them_in_the_order_of_the_engine(backend):
    def run(compile):
        model, seen = _model(), []
        for name, p in model.named_parameters():
            p.register_hook(lambda grad, name=name: seen.append(name))
            p.register_hook(lambda grad: grad + 1)
            p.register_hook(lambda grad: grad * 2)
            p.register_post_accumulate_grad_hook(lambda p, name=name: seen.append(f"{name} has its gradient"))
        step = compile(lambda x: model(x).square().sum().backward())
        step(X)
        step(X)
        assert len(seen) == 16
        return seen, [p.grad for p in model.parameters()]

    _same(run, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_optimizers_in_hooks(backend):
    """The step of each parameter as soon as its gradient is there, which is then let go."""

    def run(compile):
        model = _model()
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

        def update(p):
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(update)

        def step(x):
            loss = model(x).square().sum()
            loss.backward()
            return loss

        step = compile(step)
        losses = [step(X).detach() for _ in range(3)]
        assert all(p.grad is None for p in model.parameters())
        return [], [*losses, *(p.detach() for p in model.parameters())]

    _same(run, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_come_and_go(backend):
    def run(compile):
        model = _model()
        step = compile(lambda x: model(x).sum().backward())
        step(X)
        first = model[0].weight.register_hook(lambda grad: grad * 3)
        step(X)
        second = model[0].weight.register_post_accumulate_grad_hook(lambda p: p.grad.clamp_(-1, 1) and None)
        second.remove()
        step(X)
        first.remove()
        step(X)
        return [], [p.grad for p in model.parameters()]

    _same(run, backend)


def test_invalid_return_value_of_a_hook_raises_as_in_eager():
    for hook, register in (
        (lambda p: p.grad, "register_post_accumulate_grad_hook"),
        (lambda grad: grad[0], "register_hook"),
    ):
        texts = []
        for compile in (lambda f: f, lambda f: smelt.compile(f, backend="aot_eager")):
            model = _model()
            getattr(model[0].weight, register)(hook)
            with pytest.raises(RuntimeError) as error:
                compile(lambda x, model=model: model(x).sum().backward())(X)
            texts.append(str(error.value))
        assert texts[0] == texts[1]


def test_torch_autograd_grad_calls_them():
    def run(compile):
        w = torch.ones(4, requires_grad=True)
        w.register_hook(lambda grad: grad * 5)
        return [], compile(lambda x: torch.autograd.grad((x * w).sum(), w)[0])(X)

    _same(run, "aot_eager", breaks=1, fullgraph=False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_backward_outside(backend):
    def run(compile):
        model, seen = _model(), []
        model[0].weight.register_hook(lambda grad: grad * 2)
        model[0].bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum().item()))
        forward = compile(model)
        for _ in range(2):
            out = forward(X)
            out.register_hook(lambda grad: grad * 3)
            out.sum().backward()
        return seen, [p.grad for p in model.parameters()]

    _same(run, backend)


_HOOKS = {"none": lambda grad: None, "changed": lambda grad: grad * 2, "clone": lambda grad: grad.clone().add_(1)}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("hook", [*_HOOKS])
@pytest.mark.parametrize("again", ("another loss", "the same graph", "a step between"))
def test_code_after_a_backward_with_hooks_still_records_gradients(again, hook, backend):
    """Hooks run without gradients; where `.grad` is added to after one, the graph stayed there."""

    def run(compile):
        w, v = torch.arange(1.0, 4.0).requires_grad_(), torch.ones(3, requires_grad=True)
        w.register_hook(_HOOKS[hook])

        def step(x):
            loss = (w * w * v * x).sum()
            loss.backward(retain_graph=again == "the same graph")
            if again == "a step between":
                with torch.no_grad():
                    w.sub_(0.01 * w.grad)
            more = loss * 3 if again == "the same graph" else (w * v).sum()
            more.backward()
            return loss.detach(), more.detach(), (w * x).sum()

        f, found = compile(step), []
        for _ in range(3):
            found += f(torch.ones(3))
            assert found[-1].requires_grad
            found += [each.grad.clone() for each in (w, v)]
            found += torch.autograd.grad(found[-3], w)
        return None, found

    _same(run, backend)
