"""Full backward hooks of modules: called as in eager, at the same moment, in one graph."""

from __future__ import annotations

import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

import smelt
from tests.capture.torch.test_tensor_hooks import BACKENDS, X, _same


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_of_submodules_and_of_the_module(backend):
    """They see and change gradients; one is put before the others; the order and the arguments are eager's."""

    def run(compile):
        net, seen = _model(), []

        def note(name):
            return lambda module, given, made: seen.append(
                (name, *(g.sum().item() for g in (*given, *made) if g is not None))
            )

        net[0].register_full_backward_hook(note("first"))
        net[1].register_full_backward_hook(note("middle"))
        net[2].register_full_backward_hook(lambda module, given, made: (given[0] * 2,))
        net[2].register_full_backward_hook(note("last"), prepend=True)
        net[2].register_full_backward_pre_hook(lambda module, made: (made[0] * 3,))
        net.register_full_backward_hook(note("whole"))
        whole, inside = compile(net), compile(lambda x: net(x).sin())
        x = X.clone().requires_grad_()
        for forward in (whole, inside, inside):
            forward(x).sum().backward()
        assert [name for name, *_ in seen[:4]] == ["last", "middle", "first", "whole"]
        return seen, x.grad, [p.grad for p in net.parameters()]

    _same(run, backend)


def test_they_come_and_go():
    """Others take their place without a new version; without any the module is plain again."""

    def run(compile):
        net, found = _model(), []
        handle = net[1].register_full_backward_hook(lambda module, given, made: (given[0] * 2,))
        forward = compile(lambda x: net(x))
        for factor in (3, 4):
            forward(X).sum().backward()
            handle.remove()
            handle = net[1].register_full_backward_hook(lambda module, given, made, factor=factor: (given[0] * factor,))
        forward(X).sum().backward()
        handle.remove()
        forward(X).sum().backward()
        found += [p.grad for p in net.parameters()]
        return found

    _same(run, "aot_eager")
    assert smelt.stats()["graphs"] == 2


def test_of_all_modules():
    def run(compile):
        net, seen = _model(), []
        handles = [
            torch_module.register_module_full_backward_hook(
                lambda module, given, made: seen.append((type(module).__name__, made[0].sum().item()))
            ),
            torch_module.register_module_full_backward_pre_hook(lambda module, made: (made[0] * 2,)),
            torch_module.register_module_forward_hook(lambda module, args, out: out + 1),
            torch_module.register_module_forward_pre_hook(lambda module, args: (args[0] * 2,)),
        ]
        try:
            compile(lambda x: net(x) * 2)(X).sum().backward()
        finally:
            for handle in handles:
                handle.remove()
        torch_module._global_is_full_backward_hook = None
        return seen, [p.grad for p in net.parameters()]

    _same(run, "aot_eager")


def test_arguments_and_results_of_all_kinds():
    """Others than tensors count as None; results in tuples; a module that is called twice."""

    class Pair(nn.Module):
        def forward(self, x, factor, mask, scale=1.0):
            return x * factor * scale, mask.logical_not(), None, x.sum()

    def run(compile):
        pair, seen = Pair(), []
        pair.register_full_backward_hook(
            lambda module, given, made: seen.append([None if g is None else g.sum().item() for g in (*given, *made)])
        )
        mask = torch.ones(3, dtype=torch.bool)

        def fn(x):
            a, flags, none, total = pair(x, 3, mask, scale=2.0)
            b, *_ = pair(a, 4, flags)
            assert none is None
            return b.sum() + total

        x = X.clone().requires_grad_()
        compile(fn)(x).backward()
        assert len(seen) == 2
        return seen, x.grad

    _same(run, "aot_eager")


def test_without_gradients():
    def run(compile):
        net, seen = _model(), []
        net[0].register_full_backward_hook(lambda module, given, made: seen.append(given))
        forward = compile(net)
        with torch.no_grad():
            out = forward(X)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            forward(X).sum().backward()
        assert len(seen) == 1 and "no inputs require gradients" in str(told[0].message)
        return out, seen

    _same(run, "aot_eager")


def test_invalid_return_value_of_a_backward_hook_raises_as_in_eager():
    texts = []
    for compile in (lambda f: f, lambda f: smelt.compile(f, backend="aot_eager")):
        net = _model()
        net[1].register_full_backward_hook(lambda module, given, made: (given[0], given[0]))
        with pytest.raises(RuntimeError) as error:
            compile(net)(X.clone().requires_grad_()).sum().backward()
        texts.append(str(error.value))
    assert texts[0] == texts[1]


def test_a_write_to_what_a_hook_sees():
    """An error in eager, and so here."""
    texts = []
    for compile in (lambda f: f, lambda f: smelt.compile(f, backend="aot_eager")):
        relu = nn.ReLU(inplace=True)
        relu.register_full_backward_hook(lambda module, given, made: None)
        with pytest.raises(RuntimeError) as error:
            compile(lambda x, relu=relu: relu(x * 2))(X.clone().requires_grad_())
        texts.append(str(error.value))
    assert texts[0] == texts[1]


def test_hooks_of_the_old_kind_end_the_graph():
    def run(compile):
        net, seen = _model(), []
        net[1].register_backward_hook(lambda module, given, made: seen.append(made[0].sum().item()))
        x = X.clone().requires_grad_()
        compile(net)(x).sum().backward()
        return seen, x.grad

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _same(run, "aot_eager", breaks=1)


def test_a_break_where_a_variable_has_a_finalizer_is_one_break():
    """The frame itself then runs the call at which the graph ended."""

    def run(compile):
        net, seen = _model(), []
        net[1].register_backward_hook(lambda module, given, made: seen.append(made[0].sum().item()))
        run.kept = weakref.ref(net[1], lambda _: None), net
        x = X.clone().requires_grad_()
        compile(net)(x).sum().backward()
        return seen, x.grad

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _same(run, "aot_eager", breaks=1)


def test_backward_inside_ends_the_graph():
    def run(compile):
        net, seen = _model(), []
        net[1].register_full_backward_hook(lambda module, given, made: seen.append(made[0].sum().item()))

        def step(x):
            net(x).sum().backward()
            with torch.no_grad():
                for p in net.parameters():
                    p.sub_(p.grad)

        compile(step)(X)
        return seen, [p.detach() for p in net.parameters()]

    _same(run, "aot_eager", breaks=1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_of_what_no_used_result_depends_on(backend):
    """The hooks of a head that is not used are not called, and its parameters get no gradient."""

    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 2)

        def forward(self, x):
            hidden = self.body(x).tanh()
            return self.first(hidden), self.second(hidden)

    def run(compile):
        torch.manual_seed(0)
        net, seen = Heads(), []
        for name in ("body", "first", "second"):
            part = getattr(net, name)
            part.register_full_backward_hook(lambda module, given, made, name=name: seen.append((name, len(made))))
            part.register_full_backward_pre_hook(lambda module, made: (made[0] * 2,))
            part.weight.register_hook(lambda grad, name=name: seen.append((f"{name}.weight", grad.sum().item())))
        forward, found = compile(net), []
        for chosen in (0, 1):
            forward(X)[chosen].sum().backward()
            found += [None if p.grad is None else p.grad.clone() for p in net.parameters()]
            net.zero_grad()
        assert {name for name, _ in seen[:4]} == {"first", "first.weight", "body", "body.weight"}
        return seen, found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _same(run, backend)


def _of_the_forward(x, net):
    seen = []
    handles = [
        net.register_forward_hook(lambda module, given, out: seen.append(len(given)) or out * 2),
        net[0].register_forward_pre_hook(lambda module, given, named: ((given[0] + 1,), named), with_kwargs=True),
    ]
    inside = net(x)
    for each in handles:
        each.remove()
    return inside, seen, net(x)


def _of_all(x, net):
    handle = torch_module.register_module_forward_hook(lambda module, given, out: out * 3)
    inside = net(x)
    handle.remove()
    return inside, net(x)


def _of_the_backward(x, net):
    seen = []
    handle = net.register_full_backward_hook(lambda module, given, made: seen.append(len(made)))
    out = net(x)
    out.sum().backward()
    handle.remove()
    return out, seen, net(x)


def _other_table(x, net):
    before = net._forward_hooks
    net._forward_hooks = {99: lambda module, given, out: out + 100}
    inside = net(x)
    net._forward_hooks = before
    return inside, net(x)


def _removed_inside(x, net):
    first = net(x)
    for handle in net.handles:
        handle.remove()
    net.handles.clear()
    return first, net(x)


@pytest.mark.parametrize("fn", [_of_the_forward, _of_all, _of_the_backward, _other_table, _removed_inside])
def test_registered_in_the_function(fn):
    """A call of the module calls the hooks that the function has registered, and none that it has removed."""
    results = []
    for run in (fn, smelt.compile(fn)):
        net = _model()
        net.handles = [net.register_forward_hook(lambda module, given, out: out * 5)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results.append([run(X.detach(), net) for _ in range(3)])
    torch.testing.assert_close(*results)
