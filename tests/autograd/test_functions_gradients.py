"""Gradients of `torch.autograd.Function`s that are absent, of parts of results, and of written arguments: eager's."""

from __future__ import annotations

import pytest
import torch

import smelt

BACKENDS = ("aot_eager", "smelt")


class _First(torch.autograd.Function):
    """Gives gradients for its first argument alone."""

    @staticmethod
    def forward(ctx, x, y):
        return x * y, x + y

    @staticmethod
    def backward(ctx, first, second):
        return first * 3 + second, None


class _Views(torch.autograd.Function):
    """A result and a view of it, each with a gradient of its own."""

    @staticmethod
    def forward(ctx, x):
        out = x.exp()
        return out, out.t(), out[0]

    @staticmethod
    def backward(ctx, whole, transposed, row):
        return whole * 2 + transposed.t() * 3 + torch.stack([row, row]) * 5


class _Written(torch.autograd.Function):
    """Writes to its argument, and gives no gradient for it."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.mark_dirty(x)
        return x.mul_(2).add_(y)

    @staticmethod
    def backward(ctx, gradient):
        return None, gradient


class _Both(torch.autograd.Function):
    """Writes to its argument, and has two results."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.mark_dirty(x)
        return x.mul_(2), y * 2

    @staticmethod
    def backward(ctx, first, second):
        return first, second


def _gradients(f, used, leaf):
    leaves = [torch.tensor([[0.5, -1.0], [2.0, 0.25]]) * k for k in (1, 2)]
    given = [each.requires_grad_() if leaf else each.requires_grad_() * 1 for each in leaves]
    try:
        out = f(*given)
        total = sum(out[k].cos().sum() * (k + 1) for k in used)
        return torch.autograd.grad(total, leaves, allow_unused=True)
    except RuntimeError as error:
        return str(error)[:60]


_PROGRAMS = {
    "none beside a computed way": (lambda a, b: (*_First.apply(a, b + a), a + b, b * 2), 4, True),
    "none below": (lambda a, b: (*_First.apply(a * 1, b.sin()), *_First.apply(b * 1, a.sin())), 4, True),
    "zeros below a function": (lambda a, b: (*_First.apply(_First.apply(a, b)[1] * 2, b), a * b), 3, True),
    "parts of views": (
        lambda a, b: (lambda r: (*r, r[1][0], r[0][1], r[1].t(), r[2][:1]))(_Views.apply(a * b)),
        7,
        True,
    ),
    "written": (lambda a, b: (_Written.apply(a, b), a + b), 2, False),
    "written, several results": (lambda a, b: (*_Both.apply(a, b), a + b), 3, False),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [*_PROGRAMS])
def test_whatever_results_are_used(name, backend):
    program, count, leaves_too = _PROGRAMS[name]
    for leaf in (True, False) if leaves_too else (False,):
        f = smelt.compile(program, backend=backend)
        for used in [(k,) for k in range(count)] + [(0, count - 1), (1, count - 1), tuple(range(count))]:
            want, got = _gradients(program, used, leaf), _gradients(f, used, leaf)
            assert [each is None for each in got] == [each is None for each in want], (leaf, used)
            for a, b in zip(got, want, strict=True):
                if b is not None:
                    torch.testing.assert_close(a, b)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_function_of_several_results_may_not_write_to_a_view(backend):
    f = smelt.compile(lambda a, b: _Both.apply(a, b), backend=backend)
    x, y = torch.ones(2, 2, requires_grad=True), torch.ones(2, requires_grad=True)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="your Function cannot return more than one Tensor"):
            f((x * 2)[0], y)
        torch.testing.assert_close(f(y * 3, y)[0], torch.full((2,), 6.0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_wrong_number_of_gradients_is_an_error_of_the_backward(backend):
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    f = smelt.compile(lambda x, y: Wrong.apply(x, y) * 2, backend=backend)
    x = torch.ones(2, requires_grad=True)
    out = f(x, torch.ones(2))
    torch.testing.assert_close(out, torch.full((2,), 2.0))
    with pytest.raises(RuntimeError, match="incorrect number of gradients"):
        out.sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_defaults_reach_setup_context(backend):
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(x, k=4):
            return x * k

        @staticmethod
        def setup_context(ctx, inputs, output):
            _, ctx.k = inputs

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.k, None

    f = smelt.compile(lambda x: Scaled.apply(x) + Scaled.apply(x, 3), backend=backend, fullgraph=True)
    x = torch.ones(2, requires_grad=True)
    f(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((2,), 7.0))
