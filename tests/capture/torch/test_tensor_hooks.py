"""Hooks that a compiled function registers on tensors: of its own, of the caller, on parameters; kept gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_flatten
from torch.utils.hooks import RemovableHandle

import smelt

BACKENDS = ("eager", "aot_eager", "smelt")
X = torch.linspace(-1, 1, 20).reshape(5, 4)


def _same(run, backend, breaks=0):
    """`run(compile)` gives the same with and without the compiler, in one graph a function unless told."""
    want = run(lambda f: f)
    smelt.reset()
    got = run(lambda f: smelt.compile(f, backend=backend, fullgraph=not breaks))
    (values, spec), (wanted, wanted_spec) = tree_flatten(got), tree_flatten(want)
    assert spec == wanted_spec
    for value, expected in zip(values, wanted, strict=True):
        if isinstance(expected, (torch.Tensor, float)):
            torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
        else:
            assert value == expected or isinstance(expected, RemovableHandle)
    assert smelt.stats().get("breaks", 0) == breaks


@pytest.mark.parametrize("backend", BACKENDS)
def test_on_a_tensor_in_the_middle(backend):
    """Several in order, one removed, one returned; a gradient that is kept."""

    def run(compile):
        seen = []

        def fn(x):
            h = x * 2
            early = h.cos()
            gone = h.register_hook(lambda grad: seen.append("gone"))
            h.register_hook(lambda grad: grad * 3)
            y = h.sin() + early
            gone.remove()
            handle = h.register_hook(lambda grad: seen.append(grad.sum().item()))
            h.register_hook(lambda grad: grad + 1)
            h.retain_grad()
            assert h.retains_grad
            return y.exp(), h, handle

        fn, found = compile(fn), []
        for keep in (True, False):
            x = X.clone().requires_grad_()
            y, h, handle = fn(x)
            if not keep:
                handle.remove()
            y.sum().backward()
            found += [x.grad, h.grad]
        assert len(seen) == 1
        return seen, found

    _same(run, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_on_outputs_inputs_views_and_slices(backend):
    def run(compile):
        net, seen = nn.Linear(4, 6), []
        nn.init.constant_(net.weight, 0.1)
        nn.init.constant_(net.bias, 0.2)

        def fn(x, leaf):
            x.register_hook(lambda grad: seen.append(("input", grad.sum().item())))
            leaf.register_hook(lambda grad: grad * 2)
            net.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.mean().item()))
            a, b = net(x * leaf).split(3, dim=1)
            b.register_hook(lambda grad: grad * 5)
            view = a[1:]
            view.register_hook(lambda grad: grad.clamp(-0.5, 0.5))
            y = view.sin().sum() + b.square().sum() + a.sum()
            y.register_hook(lambda grad: grad * 7)
            x.retain_grad()
            return y

        start, leaf = X.clone().requires_grad_(), torch.full((4,), 0.5, requires_grad=True)
        x = start * 1
        compile(fn)(x, leaf).backward()
        return seen, start.grad, leaf.grad, x.grad, net.weight.grad

    _same(run, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_under_autocast_and_grad_modes(backend):
    """A region is left and entered again where the graph is cut."""

    def run(compile):
        w = torch.full((4, 3), 0.3, requires_grad=True)

        def fn(x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                h = x @ w
                h.register_hook(lambda grad: grad * 2)
                with torch.no_grad():
                    scale = h.mean() + 1
                    with torch.enable_grad():
                        y = h * 3
                        y.register_hook(lambda grad: grad - 1)
                        z = y * scale
                out = z @ w.t()
            return out, z.requires_grad, scale

        x = X.clone().requires_grad_()
        out, requires_grad, scale = compile(fn)(x)
        out.sum().backward()
        assert out.dtype == torch.bfloat16 and requires_grad and not scale.requires_grad
        return x.grad, w.grad

    _same(run, backend)


def test_the_closure_is_the_programs():
    """What a hook reads is read when it runs, as the program left it."""

    def run(compile):
        class Scaler:
            factor = 2.0

        scaler = Scaler()

        def fn(x):
            h, total = x * 2, x.sum()
            h.register_hook(lambda grad: grad * scaler.factor + total)
            return h.sin()

        fn, found = compile(fn), []
        for factor in (3.0, 4.0):
            x = X.clone().requires_grad_()
            y = fn(x)
            scaler.factor = factor
            y.sum().backward()
            found.append(x.grad)
        return found

    _same(run, "aot_eager")


def test_a_write_after_the_hook():
    """The hook is for what the tensor was: the graph ends."""

    def run(compile):
        def fn(x):
            h = x * 2
            h.register_hook(lambda grad: grad * 3)
            h.mul_(5)
            return h.sin()

        x = X.clone().requires_grad_()
        compile(fn)(x).sum().backward()
        return x.grad

    _same(run, "aot_eager", breaks=1)


def test_a_write_before_the_hook():
    def run(compile):
        def fn(x):
            h = x * 2
            early = h + 1
            h.view(-1).mul_(5)
            h.register_hook(lambda grad: grad * 3)
            h.retain_grad()
            return h.cos() + early, h

        x = X.clone().requires_grad_()
        y, h = compile(fn)(x)
        y.sum().backward()
        return x.grad, h.grad

    _same(run, "aot_eager")


@pytest.mark.parametrize("backend", BACKENDS)
def test_registered_and_called_in_one_step(backend):
    """Hooks on parameters that the function registers before its own backward."""

    def run(compile):
        w, seen = torch.full((4,), 0.5, requires_grad=True), []

        def step(x):
            handle = w.register_hook(lambda grad: grad * 2)
            late = w.register_post_accumulate_grad_hook(lambda p: seen.append(p.shape))
            (x * w).sum().backward()
            handle.remove()
            late.remove()

        step = compile(step)
        step(X)
        step(X)
        assert not w._backward_hooks and not w._post_accumulate_grad_hooks
        return len(seen), w.grad

    _same(run, backend)


def test_refused_hook_registrations_raise_as_in_eager():
    for refused in (
        lambda x: (x.detach() * 2).register_hook(print),
        lambda x: (x * 2).register_post_accumulate_grad_hook(print),
        lambda x: (x.detach() * 2).retain_grad(),
    ):
        texts = []
        for compile in (lambda f: f, lambda f: smelt.compile(f, backend="aot_eager")):
            with pytest.raises(RuntimeError) as error:
                compile(refused)(X.clone().requires_grad_())
            texts.append(str(error.value))
        assert texts[0] == texts[1]


def test_backward_inside_ends_the_graph():
    def run(compile):
        w = torch.full((4,), 0.5, requires_grad=True)

        def step(x):
            h = x * w
            h.register_hook(lambda grad: grad * 2)
            h.sin().sum().backward()
            with torch.no_grad():
                w.sub_(w.grad)

        compile(step)(X)
        return w.detach()

    _same(run, "aot_eager", breaks=1)


def _two_results(x, y):
    return x * 2, y.sin()


def _no_gradient(x, y):
    return x * y.detach(), x * 3


def _two_graphs(x, y):
    h = y.cos()
    smelt.graph_break()
    return x * 2, h * y


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", (_two_results, _no_gradient, _two_graphs))
def test_hooks_of_arguments_that_no_used_result_depends_on(fn, backend):
    """Neither those of the arguments, whenever they are registered, nor those of what they were computed from."""

    def run(compile):
        seen = []

        def watch(tensor, name):
            tensor.register_hook(lambda grad: seen.append((name, grad.tolist())))

        call = compile(fn)
        for chosen in (0, 1):
            leaves = [torch.ones(2, requires_grad=True) for _ in "xy"]
            x, y = leaves[0] * 2, leaves[1] * 3
            watch(leaves[1], "leaf"), watch(y, "before")
            out = call(x, y)
            watch(y, "after")
            out[chosen].sum().backward()
        return seen

    _same(run, backend, breaks=int(fn is _two_graphs))


@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_of_what_no_used_result_depends_on(backend):
    """They are not called: neither those that were there before nor those that the function registers."""

    def run(compile):
        a, b = (torch.full((4,), 0.5, requires_grad=True) for _ in "ab")
        seen = []

        def fn(x):
            h = x * b
            h.register_hook(lambda grad: seen.append(grad.sum().item()))
            a.register_hook(lambda grad: grad * 2)
            return (x * a).sin(), h.cos()

        b.register_hook(lambda grad: seen.append(grad.mean().item()))
        fn, found = compile(fn), []
        for chosen in (0, 1):
            fn(X)[chosen].sum().backward()
            found += [None if each.grad is None else each.grad.clone() for each in (a, b)]
        assert len(seen) == 2
        return seen, found

    _same(run, backend)
