"""What the backward of a `torch.autograd.Function` reads of the program's objects: eager reads it when it runs."""

from __future__ import annotations

import types

import pytest
import torch

import smelt

BACKENDS = ("aot_eager", "smelt")


class _Held:
    scale = 2.0


def _places():
    """For each kind of place: an expression that reads it, and a function that writes it."""
    held, box, table = types.SimpleNamespace(scale=2.0), [2.0], {"scale": 2.0}
    inner = types.SimpleNamespace(held=held)
    cell = 2.0

    class Own:
        scale = 2.0

    def in_cell(value=None):
        nonlocal cell
        if value is not None:
            cell = value
        return cell

    def write(target):
        return lambda value: setattr(target, "scale", value)

    return {
        "global": ("SCALE", lambda value: globals().__setitem__("SCALE", value)),
        "closure": (lambda: cell, in_cell),
        "attribute": (lambda: held.scale, write(held)),
        "of an attribute": (lambda: inner.held.scale, write(held)),
        "class": (lambda: Own.scale, write(Own)),
        "list": (lambda: box[0], lambda value: box.__setitem__(0, value)),
        "dictionary": (lambda: table["scale"], lambda value: table.__setitem__("scale", value)),
        "length": (lambda: len(box), lambda value: box.__setitem__(slice(None), [0.0] * int(value))),
        "missing": (lambda: getattr(held, "other", 2.0), lambda value: setattr(held, "other", value)),
    }


SCALE = 2.0


def _global_scale():
    return SCALE


def _function(read):
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 3

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient * read() * x

    return Scaled.apply


def _steps(run, write, values):
    found = []
    for value in values:
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        out = run(x.sin()).sum()
        write(value)
        out.backward()
        found.append(x.grad)
    return found


KINDS = [*_places()]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_backward_reads_what_is_there_when_it_runs(kind, backend):
    values = (2.0, 5.0, 7.0, 7.0, 2.0, 3.0)

    def steps(compile):
        read, write = _places()[kind]
        apply = _function(_global_scale if kind == "global" else read)
        write(2.0)
        return _steps(compile(lambda x: apply(x) * 2), write, values)

    want = steps(lambda f: f)
    torch.testing.assert_close(steps(lambda f: smelt.compile(f, backend=backend)), want)


@pytest.mark.parametrize("backend", BACKENDS)
def test_unchanged_global_causes_no_graph_break(backend):
    apply = _function(lambda: SCALE)
    globals()["SCALE"] = 2.0
    f = smelt.compile(lambda x: apply(x) * 2, backend=backend, fullgraph=True)
    for _ in range(3):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        f(x).sum().backward()
        torch.testing.assert_close(x.grad, 4 * x.detach())


@pytest.mark.parametrize("backend", BACKENDS)
def test_second_derivatives_read_it_too(backend):
    def steps(compile):
        held = types.SimpleNamespace(scale=2.0)
        apply = _function(lambda: held.scale)
        f, found = compile(lambda x: apply(x.sin())), []
        for value in (2.0, 5.0, 5.0, 3.0):
            x = torch.tensor([1.0, 2.0], requires_grad=True)
            out = f(x).sum()
            held.scale = value
            (first,) = torch.autograd.grad(out, x, create_graph=True)
            held.scale = value + 1
            found += [first.detach(), *torch.autograd.grad(first.square().sum(), x)]
        return found

    torch.testing.assert_close(steps(lambda f: smelt.compile(f, backend=backend)), steps(lambda f: f))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_forward_that_reads_it_too_is_not_traced_again(backend):
    held = types.SimpleNamespace(scale=2.0)

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * held.scale

        @staticmethod
        def backward(ctx, gradient):
            return gradient * held.scale

    f = smelt.compile(lambda x: Scaled.apply(x.sin()), backend=backend)
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    out = f(x).sum()
    held.scale = 5.0
    with pytest.raises(smelt.SmeltError, match="the backward of Scaled reads what was changed since its forward ran"):
        out.backward()
    for scale in (5.0, 7.0):
        out = f(x).sum()
        held.scale = scale
        (found,) = torch.autograd.grad(out, x)
        torch.testing.assert_close(found, scale * x.detach().cos())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ("attribute", "list", "closure", "global"))
def test_written_inside_before_a_backward_inside(kind, backend):
    def steps(compile):
        read, write = _places()[kind]
        apply = _function(_global_scale if kind == "global" else read)
        write(2.0)

        def f(x):
            out = apply(x * 2).sum()
            write(5.0)
            out.backward()
            write(2.0)
            return out.detach()

        run, x = compile(f), torch.tensor([1.0, 2.0], requires_grad=True)
        return [run(x), run(x), x.grad]

    torch.testing.assert_close(steps(lambda f: smelt.compile(f, backend=backend)), steps(lambda f: f))


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_that_change_between_calls_are_read_at_each(backend):
    """A float in a dictionary is an input of the graph from the second value on; a function reads it by itself."""

    def steps(compile):
        table = {"scale": 2.0, "count": 3}

        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * table["scale"] * table["count"]

            @staticmethod
            def backward(ctx, gradient):
                return gradient * table["scale"]

        f, found = compile(lambda x: Scaled.apply(x) * table["scale"]), []
        for i in range(5):
            table["scale"], table["count"] = 2.0 + i, 3 + i
            x = torch.tensor([1.0, 2.0], requires_grad=True)
            out = f(x)
            out.sum().backward()
            found += [out.detach(), x.grad]
        return found

    torch.testing.assert_close(steps(lambda f: smelt.compile(f, backend=backend)), steps(lambda f: f))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("forward", ("x * held.t", "x * 2"))
@pytest.mark.parametrize("backward", ("gradient * held.t", "(held.t.add_(1), gradient * held.t)[1]", "gradient * 3"))
@pytest.mark.parametrize("how", ("write", "rebind", "written inside"))
def test_tensors_that_a_function_is_not_given(forward, backward, how, backend):
    """They may be written or replaced between calls, between forward and backward, and by the program itself."""

    def steps(compile):
        held = types.SimpleNamespace(t=torch.tensor([2.0]))
        scope = {"torch": torch, "held": held}
        exec(
            "class Scaled(torch.autograd.Function):\n"
            f"    forward = staticmethod(lambda ctx, x: {forward})\n"
            f"    backward = staticmethod(lambda ctx, gradient: {backward})\n",
            scope,
        )

        def change():
            if how == "rebind":
                held.t = held.t + 1
            else:
                held.t.add_(1)

        def f(x):
            if how == "written inside":
                held.t.mul_(2)
            return scope["Scaled"].apply(x.sin())

        run, found = compile(f), []
        for _ in range(4):
            x = torch.tensor([1.0, 2.0], requires_grad=True)
            out = run(x)
            change()
            out.sum().backward()
            change()
            found += [out.detach(), x.grad, held.t.clone()]
        return found

    torch.testing.assert_close(steps(lambda f: smelt.compile(f, backend=backend)), steps(lambda f: f))
