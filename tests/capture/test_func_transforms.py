"""Function transforms (`torch.func`, `torch.vmap`, `torch.autograd.functional`) are nodes of whole graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)
from torch.utils._pytree import tree_flatten

import smelt
from tests.capture.harness import check, compiled, raises

torch.manual_seed(0)
W = torch.randn(4, requires_grad=True)
NET = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 2))
CONV = nn.Conv2d(2, 3, 3, padding=1)
NETS = [nn.Linear(4, 2) for _ in range(3)]
X = torch.randn(3, 4)
LABELS = torch.tensor([0, 1, 1])
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}


def case(*args: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        CASES[fn.__name__] = fn, args or (X,)
        return fn

    return add


def summed(v: torch.Tensor) -> torch.Tensor:
    return NET(v).square().sum()


def written(t: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(t)
    out[1:] = t[1:].sin()
    return out.add_(t)


@case(torch.arange(3.0))
def gradients_of_numbers(x):
    """Each row is a number; `2 * t` casts the 2 as if it were a tensor."""

    def inner(t):
        y = t * 2
        y.add_(t.sum())
        return (y * t).sum()

    return vmap(grad(inner))(x)


def loss_of(params: Any, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(functional_call(NET, params, (x.unsqueeze(0),)), label.unsqueeze(0))


@case()
def vmap_over_a_captured_tensor(x):
    return vmap(lambda row: row * row.sum() * W)(x)


@case()
def vmap_dims(x):
    return vmap(lambda a, b: (a * a.sum(), {"one": b + 1}), in_dims=(1, None), out_dims=0)(x, x)


@case()
def vmap_out_dims(x):
    return torch.vmap(lambda a: {"a": a, "b": (a * 2, a.sum())}, out_dims={"a": 1, "b": (0, 0)})(x)


@case()
def vmap_of_a_dict(x):
    return vmap(lambda d, *, add: d["a"] * d["b"] + add, in_dims=({"a": 0, "b": None},))({"a": x, "b": x[0]}, add=x[1])


@case()
def vmap_in_chunks(x):
    calls: list[Any] = []

    def double(row):
        calls.append(tuple(row.shape))
        return row * 2

    return vmap(double, chunk_size=2)(x), calls


@case()
def vmap_in_vmap(x):
    return vmap(lambda row: vmap(lambda element: (x * element).sum(0) + row)(row))(x)


@case()
def vmap_that_writes(x):
    return vmap(written)(x)


@case(torch.randn(4, 2, 5, 5))
def vmap_of_a_convolution(images):
    return vmap(grad(lambda image: CONV(image).relu().square().sum()))(images)


@case(torch.randn(3, 2, 5, 4))
def vmap_of_attention(q):
    return vmap(grad(lambda a: F.scaled_dot_product_attention(a, a, a).square().sum()))(q)


@case(torch.tensor([[1, 2], [3, 0]]), torch.randn(2, 5))
def vmap_of_indexing(at, values):
    return vmap(lambda i, v: v[i])(at, values)


@case()
def random_numbers(x):
    different = vmap(lambda row: row + torch.rand(4), randomness="different")(x)
    return different, vmap(lambda row: F.dropout(row), randomness="same")(x)


@case()
def first_derivative(x):
    return grad(lambda t: (t**3 * W).sum())(x)


@case()
def derivative_by_several(x):
    return grad(lambda a, b, *, c: (a * b * c).sum(), argnums=(0, 1))(x, x * 2, c=x + 1)


@case()
def derivative_and_value(x):
    return grad_and_value(lambda t: ((t**3 * W).sum(), {"aux": t * 2}), has_aux=True)(x)


@case()
def derivative_of_a_derivative(x):
    return grad(lambda t: grad(lambda u: (u.sin() * W).sum())(t).square().sum())(x)


@case()
def derivative_past_no_grad(x):
    def inner(v):
        with torch.no_grad():
            constant = v * 2
        return (constant * v).sum()

    with torch.no_grad():
        outside = grad(lambda v: (v * v * W).sum())(x)
    return grad(inner)(x), outside


@case(X, LABELS)
def derivatives_of_samples(x, labels):
    params = {name: p.detach() for name, p in NET.named_parameters()}
    return vmap(grad(loss_of), in_dims=(None, 0, 0))(params, x, labels)


@case()
def derivatives_of_samples_by_closure(x):
    return vmap(grad_and_value(summed))(x)


@case()
def an_ensemble(x):
    params, buffers = stack_module_state(NETS)
    return vmap(lambda p, b: functional_call(NETS[0], (p, b), (x,)))(params, buffers)


@case()
def backward_jacobian(x):
    return jacrev(lambda v: NET(v).square(), chunk_size=2)(x), jacrev(written)(x)


@case()
def forward_jacobian(x):
    return jacfwd(lambda v: NET(v).square())(x)


@case()
def second_derivatives(x):
    return vmap(hessian(summed))(x)


@case()
def forward_derivative(x):
    out, tangent = jvp(lambda t: t.t().reshape(-1)[2:].view(2, 5).cumsum(0), (x,), (x * 2,))
    return out, tangent, *jvp(written, (x,), (x,)), *jvp(grad(lambda v: (v.sin() * W).sum()), (x,), (x,))


@case()
def pullbacks(x):
    out, pull = vjp(lambda a, b: (a.sin() * b, (a + b) * W), x, x * 2)
    one, pull_aux, aux = vjp(lambda a: (a * 3, a.sum()), x, has_aux=True)
    stacked = tuple(torch.stack([o, o * 2]) for o in out)
    return out, pull(out), vmap(pull)(stacked), pull_aux(one), aux


@case()
def functional(x):
    api, f = torch.autograd.functional, summed
    return (
        api.jacobian(lambda v: NET(v), x, create_graph=True),
        api.hessian(f, x, create_graph=True),
        api.vjp(NET, x, torch.ones(3, 2), create_graph=True),
        api.jvp(NET, x, x.detach(), create_graph=True),
        api.hvp(f, x, x.detach(), create_graph=True),
    )


@case()
def state_of_the_program(x):
    seen = {"calls": 0}
    return vmap(Scaler(seen, 3.0))(x), seen, vmap(NET.forward)(x), vmap(NET)(x)


MADE = vmap(lambda row: row.sum() * W)


@case()
def made_outside(x):
    return MADE(x)


class Scaler:
    def __init__(self, seen, scale):
        self.seen, self.scale = seen, scale

    def __call__(self, v):
        self.seen["calls"] += 1
        return v * self.scale


def leaves(value: Any) -> list[Any]:
    return tree_flatten(value)[0]


def run(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    """Results, and gradients of everything."""
    given = [a.clone().requires_grad_() if a.is_floating_point() else a for a in args]
    weights = [W, *NET.parameters(), *CONV.parameters(), *(p for net in NETS for p in net.parameters())]
    for weight in weights:
        weight.grad = None
    torch.manual_seed(0)
    out = leaves(fn(*given))
    heads = [o for o in out if isinstance(o, torch.Tensor) and o.requires_grad]
    if heads:
        sum((h * h).sum() for h in heads).backward()
    return out, [t.grad for t in (*given, *weights)]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "smelt"])
@pytest.mark.parametrize("name", CASES)
def test_whole_graphs_that_train(name: str, backend: str) -> None:
    fn, args = CASES[name]
    smelt.reset()
    try:
        expected, theirs = run(fn, args)
    except RuntimeError as error:  # as that of attention's kernels, from torch 2.15 on
        if "is not implemented" not in str(error):
            raise
        pytest.skip(f"eager has no such derivative: {error}")
    options = {"eager_rng": True} if backend == "smelt" else None
    ours, mine = run(smelt.compile(fn, backend=backend, fullgraph=True, options=options), args)
    assert smelt.stats()["graphs"] == 1 and smelt.stats()["breaks"] == 0
    exact = {"rtol": 0, "atol": 0} if backend == "eager" else {"rtol": 1e-4, "atol": 1e-5}
    assert len(ours) == len(expected)
    for a, b in zip((*ours, *mine), (*expected, *theirs), strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, **exact)
            assert a.requires_grad == b.requires_grad
        else:
            assert a == b


@pytest.mark.parametrize("name", CASES)
def test_once_more(name: str) -> None:
    """A second call takes the same version."""
    fn, args = CASES[name]
    check(fn, *args, graphs=1)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "smelt"])
def test_one_graph_for_every_size(backend: str) -> None:
    def fn(x):
        scaled = vmap(lambda row: row.reshape(-1) * row.shape[0] + x.shape[1])(x)
        return scaled, vmap(grad(lambda row: (row * W).square().sum()))(x), vmap(torch.sum, in_dims=1)(x)

    smelt.reset()
    run = smelt.compile(fn, backend=backend, fullgraph=True, dynamic=True)
    for n in (3, 5, 9):
        x = torch.randn(n, n + 1, 4)
        for a, b in zip(run(x), fn(x), strict=True):
            torch.testing.assert_close(a, b)
    assert smelt.stats()["graphs"] == 1


def test_reads_of_the_mapped_function_are_guarded() -> None:
    config = {"scale": 2.0}
    run = compiled(lambda x: vmap(lambda row: row * config["scale"])(x), fullgraph=True)
    assert torch.equal(run(X), X * 2)
    config["scale"] = 3.0
    assert torch.equal(run(X), X * 3)


@pytest.mark.parametrize(
    ("fn", "kind"),
    [
        (lambda x: vmap(lambda row: row * torch.rand(()))(x), RuntimeError),
        (lambda x: vmap(lambda row: row, in_dims=5)(x), ValueError),
        (lambda x: vmap(lambda row: row, randomness="often")(x), RuntimeError),
        (lambda x: vmap(lambda row: row, chunk_size=0)(x), ValueError),
        (lambda x: vmap(lambda row: 3)(x), ValueError),
        (lambda x: vmap(lambda row: W.detach().add_(row))(x), RuntimeError),
        (lambda x: grad(lambda t: t)(x), RuntimeError),
        (lambda x: grad(lambda t: t.sum(), argnums=3)(x), RuntimeError),
        (lambda x: grad(lambda t: t.sum().item())(x), RuntimeError),
        (lambda x: jvp(lambda t: t, (x,), (x[0],)), RuntimeError),
        (lambda x: vjp(lambda t: t, x)[1](x[0]), RuntimeError),
        (lambda x: vmap(lambda row: {}["missing"])(x), KeyError),
        (lambda x: vmap(1)(x), TypeError),
    ],
)
def test_errors_are_those_of_eager(fn: Callable[..., Any], kind: type[Exception]) -> None:
    raises(fn, kind, X)


def test_the_program_may_catch_them() -> None:
    def fn(x):
        try:
            return vmap(lambda row: row, in_dims=5)(x)
        except ValueError:
            return x + 1

    check(fn, X, graphs=1)


def test_breaks_come_before_the_transform() -> None:
    def needs_values(x):
        y = x * 2
        return grad(lambda t: t.sum() * float(t.detach().sum().item() > 0))(y) + 1

    check(needs_values, X, breaks=1)

    def leaks(x):
        kept = []

        def inner(row):
            kept.append(row.detach())
            return row * 2

        out = grad(lambda t: inner(t).sum())(x * 2)
        return out, kept[0].shape

    check(leaks, X, graphs=1)

    def gives_away(x):
        out, pull = vjp(torch.sin, x + 1)
        return out * 2, pull

    run = compiled(gives_away)
    out, pull = run(X)
    assert torch.equal(out, (X + 1).sin() * 2) and torch.equal(pull(X)[0], (X + 1).cos() * X)

    def linear(x):
        out, push = linearize(torch.sin, x * 2)
        return out, push(x)

    out, pushed = compiled(linear)(X)
    assert torch.equal(out, (X * 2).sin()) and torch.equal(pushed, linear(X)[1])


def test_a_tensor_that_leaves_the_function_by_a_side_door() -> None:
    def fn(x):
        kept = []

        def inner(t):
            kept.append(t * 2)
            return t.sum()

        return grad(inner)(x), kept[0] + 1

    run = compiled(fn)
    assert torch.equal(run(X)[1], X * 2 + 1)


@pytest.mark.parametrize("transform", [vmap, lambda f: grad(lambda x: f(x).sum()), jacrev, jacfwd])
def test_compiled_functions_inside_transforms(transform: Callable[..., Any]) -> None:
    """Outside of a compiled function the transform sees what it would see without compilation."""
    inside = smelt.compile(lambda v: NET(v).sin(), backend="eager")
    assert torch.equal(transform(inside)(X), transform(lambda v: NET(v).sin())(X))
    both = compiled(lambda x: transform(inside)(x), fullgraph=True)
    assert torch.equal(both(X), transform(inside)(X))
