"""torch.autograd.Function in captured code: one node with its own derivative, or eager with a captured backward."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import smelt
from smelt.capture.torch.escapes import graph_break
from tests.capture.core.test_breaks import marked, operators

BACKENDS = ("eager", "aot_eager", "smelt")


class Scaled(Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return x * x * k

    @staticmethod
    def backward(ctx, grad):
        return 3 * ctx.saved_tensors[0] * grad * ctx.k, None


class ScaledWithSetup(Function):
    @staticmethod
    def forward(x, k):
        return x * x * k

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.k = inputs[1]

    @staticmethod
    def backward(ctx, grad):
        return 3 * ctx.saved_tensors[0] * grad * ctx.k, None


class WithIndices(Function):
    @staticmethod
    def forward(ctx, x, _):
        indices = x.argsort()
        ctx.mark_non_differentiable(indices)
        return x * 2, indices

    @staticmethod
    def backward(ctx, grad, _):
        return grad * 5, None


class OnlyWhatIsNeeded(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        first, second = ctx.needs_input_grad
        return grad * w * 2 if first else None, grad * x * 3 if second else None


class WithoutZeros(Function):
    @staticmethod
    def forward(ctx, x, _):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, a, b):
        return a * 10 if b is None else a + b, None


class Once(Function):
    @staticmethod
    def forward(ctx, x, _):
        return x.exp()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return grad * 7, None


class InPlace(Function):
    @staticmethod
    def forward(ctx, x, _):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 11, None


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "function", [Scaled, ScaledWithSetup, WithIndices, OnlyWhatIsNeeded, WithoutZeros, Once, InPlace]
)
def test_one_node_with_its_own_derivative(function, backend):
    def fn(x, k):
        out = function.apply(x * 1, k)
        return (out if isinstance(out, torch.Tensor) else out[0]) + 1

    k = torch.tensor(3.0)
    x, y = (torch.arange(6.0).requires_grad_() for _ in range(2))
    run = smelt.compile(fn, backend=backend, fullgraph=True)
    want, got = fn(x, k), run(y, k)
    assert torch.allclose(want, got)
    want.sum().backward()
    got.sum().backward()
    assert torch.allclose(x.grad, y.grad)


class Setting:
    forward, backward = 3, 5


class ReadsSettings(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.forward = Setting.forward
        return x * Setting.forward

    @staticmethod
    def backward(ctx, grad):
        return grad * Setting.backward + ctx.forward


@pytest.mark.parametrize("backend", BACKENDS)
def test_settings_read_by_an_autograd_function_are_guarded(backend, monkeypatch):
    def fn(x):
        return ReadsSettings.apply(x * 2) + 1

    run = smelt.compile(fn, backend=backend, fullgraph=True)
    for name in (None, "forward", "backward"):
        if name is not None:
            monkeypatch.setattr(Setting, name, 7)
        x, y = (torch.ones(3, requires_grad=True) for _ in range(2))
        want, got = fn(x), run(y)
        want.sum().backward()
        got.sum().backward()
        assert torch.equal(want, got) and torch.equal(x.grad, y.grad)


class ByItsSize(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.rows = x.shape[0]
        return x * ctx.rows + x.new_ones(ctx.rows, 1)

    @staticmethod
    def backward(ctx, grad):
        return grad / ctx.rows


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_may_be_symbolic(backend):
    run = smelt.compile(lambda x: ByItsSize.apply(x * 2) + 1, backend=backend, fullgraph=True, dynamic=True)
    for rows in (3, 5, 8):
        x, y = (torch.ones(rows, 2, requires_grad=True) for _ in range(2))
        (ByItsSize.apply(x * 2) + 1).sum().backward()
        out = run(y)
        out.sum().backward()
        assert torch.equal(out, ByItsSize.apply(x * 2) + 1) and torch.allclose(x.grad, y.grad)


CALLS: list[str] = []


class HasEffects(Function):
    @staticmethod
    def forward(ctx, x):
        CALLS.append("forward")
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        CALLS.append("backward")
        return grad * 3


def test_effects_of_a_function_happen_at_each_call():
    run = smelt.compile(lambda x: HasEffects.apply(x * 2) + 1)
    for _ in range(2):
        CALLS.clear()
        x = torch.ones(3, requires_grad=True)
        run(x).sum().backward()
        assert CALLS == ["forward", "backward"] and torch.equal(x.grad, torch.full((3,), 6.0))


@torch.jit.script
def scripted_forward(x: torch.Tensor) -> torch.Tensor:
    return x.mul(torch.sigmoid(x))


@torch.jit.script
def scripted_backward(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    return grad * x * 2


class Scripted(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return scripted_forward(x)

    @staticmethod
    def backward(ctx, grad):
        return scripted_backward(ctx.saved_tensors[0], grad)


@pytest.mark.parametrize("backend", BACKENDS)
def test_scripted_functions_are_nodes(backend):
    def fn(x):
        return Scripted.apply(x * 2) + scripted_forward(x)

    run = smelt.compile(fn, backend=backend, fullgraph=True)
    x, y = (torch.arange(3.0).requires_grad_() for _ in range(2))
    want, got = fn(x), run(y)
    want.sum().backward()
    got.sum().backward()
    assert torch.allclose(want, got) and torch.allclose(x.grad, y.grad)


class ReadsValues(Function):
    """Its forward cannot be traced; its backward can be captured."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.max().item()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        y = (x.sin() + 1).cos() * grad
        graph_break()
        return y.sin() * 2


@pytest.mark.parametrize("call", [ReadsValues.apply, lambda x: ReadsValues.apply(*(x,))], ids=["plain", "star"])
def test_backward_of_a_function_in_eager_is_captured(call):
    def fn(x):
        return call(x * 2) + 1

    x, y = (torch.arange(1.0, 7.0).requires_grad_() for _ in range(2))
    run = smelt.compile(fn, backend=lambda gm, inputs: marked(gm, inputs, None, None))
    fn(x).sum().backward()
    run(y).sum().backward()
    assert torch.equal(x.grad, y.grad)
    out = run(y)
    assert type(out.grad_fn.next_functions[0][0]).__name__ == "ReadsValuesBackward"
    inside, outside = operators(lambda: out.sum().backward())
    assert inside == 6 and not {"sin", "cos"} & set(outside)
    assert torch.equal(y.grad, 2 * x.grad)


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Reversible(Function):
    """As in Reformer: nothing is saved; backward runs the layers again, with the same random numbers."""

    @staticmethod
    def forward(ctx, x, layers):
        with torch.no_grad():
            for seed, layer in enumerate(layers):
                torch.manual_seed(seed)
                x = x + layer(x)
        ctx.layers = layers
        ctx.save_for_backward(x.detach())
        return x

    @staticmethod
    def backward(ctx, grad):
        pair = Pair(ctx.saved_tensors[0], grad)
        for seed in reversed(range(len(ctx.layers))):
            with torch.enable_grad():
                x = pair.left.detach().requires_grad_()
                torch.manual_seed(seed)
                y = ctx.layers[seed](x)
                y.backward(pair.right)
            pair = Pair(pair.left - y.detach(), pair.right + x.grad)
        return pair.right, None


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layer = [torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.GELU()]
        self.layers = torch.nn.ModuleList(torch.nn.Sequential(*layer) for _ in range(3))

    def forward(self, x):
        return Reversible.apply(x * 2, self.layers) + 1


def test_recomputed_dropout_draws_the_same_numbers():
    torch.manual_seed(0)
    model, x = Encoder(), torch.randn(4, 8, requires_grad=True)
    run = smelt.compile(model)
    want = None
    for call in (model, run, run):
        model.zero_grad()
        call(x).square().sum().backward()
        grads = [p.grad.clone() for p in model.parameters()]
        want = want or grads
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(want, grads, strict=True))


class Chained(Function):
    """Takes its layers as an argument, which no node could hold."""

    @staticmethod
    def forward(ctx, x, layers):
        for layer in layers:
            x = layer(x) + 1
        ctx.save_for_backward(x)
        return x, x.sum()

    @staticmethod
    def backward(ctx, grad, _):
        return grad, None


class Unchanged(Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


def test_without_gradients_a_function_is_its_forward():
    layers = torch.nn.ModuleList([torch.nn.Linear(3, 3) for _ in range(2)])

    def fn(x):
        return Chained.apply(x * 2, layers)

    x = torch.randn(2, 3)
    run = smelt.compile(fn, backend="eager", fullgraph=True)
    with torch.no_grad():
        assert all(map(torch.equal, run(x), fn(x)))
        unchanged = smelt.compile(lambda x: Unchanged.apply(x) is x, backend="eager")
        assert unchanged(x) == (Unchanged.apply(x) is x)
    assert smelt.stats()["graphs"] == 1
