"""Second derivatives through compiled functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.base.errors import SmeltError

BACKENDS = ["aot_eager", "smelt"]


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(self.first(x))
        return self.second(hidden).sin(), hidden.square()


class Barriers(nn.Module):
    """Parts that have no derivative."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = x.square().mean()
        return (x.detach() * x * scale).sin() + x**3


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(3, 1)
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layers": (lambda: nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.LayerNorm(8), nn.Linear(8, 1)), (3, 4)),
    "heads": (TwoHeads, (3, 4)),
    "barriers": (Barriers, (3, 4)),
    "batch norm": (conv, (4, 2, 4, 4)),
    "attention": (lambda: nn.TransformerEncoderLayer(4, 2, 8, 0.0, F.gelu, batch_first=True), (2, 3, 4)),
}


def orders(run: Callable[..., Any], model: nn.Module, data: torch.Tensor, third: bool = True) -> list[Any]:
    """Values, first and second derivatives by the input, and (with `third`) third ones by the parameters."""
    model.zero_grad()
    x = data.clone().requires_grad_()
    outs = run(x)
    outs = outs if isinstance(outs, tuple) else (outs,)
    (first,) = torch.autograd.grad(sum(o.square().sum() for o in outs), x, create_graph=True)
    if not third:
        first.square().sum().backward()
        return [*outs, first, x.grad, *(p.grad for p in model.parameters()), *model.buffers()]
    (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
    (second.square().sum() + first.sum()).backward()
    return [*outs, first, second, x.grad, *(p.grad for p in model.parameters()), *model.buffers()]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MODELS)
def test_every_order(name: str, backend: str) -> None:
    make, shape = MODELS[name]
    torch.manual_seed(0)
    reference = make().double()
    model = make().double()
    model.load_state_dict(reference.state_dict())
    run = smelt.compile(model, backend=backend, fullgraph=True)
    for rows in (shape[0], shape[0], shape[0] + 1):
        data = torch.randn(rows, *shape[1:], dtype=torch.float64)
        # eager's fused attention has no second derivative
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            third = name != "batch norm"  # eager has no third one from torch 2.15 on
            expected, found = orders(reference, reference, data, third), orders(run, model, data, third)
        for a, b in zip(found, expected, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_across_graphs(backend: str) -> None:
    """Two graphs of one function, with eager code between them."""

    def fn(x):
        hidden = (x * 2).sin()
        smelt.graph_break()
        return hidden.square() * x

    run = smelt.compile(fn, backend=backend)
    x = torch.randn(5, requires_grad=True, dtype=torch.float64)
    assert torch.autograd.gradcheck(run, (x,))
    assert torch.autograd.gradgradcheck(run, (x,))


@pytest.mark.parametrize("backend", BACKENDS)
def test_tangents_and_unused_outputs(backend: str) -> None:
    run = smelt.compile(lambda x, y: (x * y, y.sin()), backend=backend, fullgraph=True)
    x, y = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    v = torch.randn(3, dtype=torch.float64, requires_grad=True)
    by_x, by_y = torch.autograd.grad(run(x, y)[1], (x, y), v, create_graph=True, allow_unused=True)
    assert by_x is None
    torch.testing.assert_close(by_y, v * y.cos())
    torch.testing.assert_close(torch.autograd.grad(by_y.sum(), v)[0], y.cos())
    assert torch.autograd.gradgradcheck(run, (x, y))


def test_under_autocast() -> None:
    model = nn.Linear(4, 4)
    run = smelt.compile(model, backend="aot_eager", fullgraph=True)
    x = torch.randn(3, 4, requires_grad=True)
    found = []
    for each in (model, run):
        with torch.autocast("cpu", torch.bfloat16):
            out = each(x).square()
        (first,) = torch.autograd.grad(out.float().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), list(model.parameters()), allow_unused=True))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.05)


def test_nothing_is_compiled_before_it_is_needed() -> None:
    smelt.reset()
    run = smelt.compile(torch.exp, backend="smelt", fullgraph=True)
    x = torch.randn(3, requires_grad=True)
    run(x).sum().backward()
    before = str(smelt.stats()["compile_s"])
    run(x).sum().backward()
    assert str(smelt.stats()["compile_s"]) == before
    torch.autograd.grad(run(x).sum(), x, create_graph=True)
    assert str(smelt.stats()["compile_s"]) != before


def fails(fn: Callable[..., Any], x: torch.Tensor, why: str, between: Callable[[], object] = lambda: None) -> None:
    """The first derivative is right, the second one says why there is none."""
    run = smelt.compile(fn, backend="aot_eager", fullgraph=True)
    out = run(x)
    between()
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    assert first.shape == x.shape
    with pytest.raises(SmeltError, match=f"(?s)second derivative.*{why}"):
        first.sum().backward()


@pytest.mark.parametrize(
    ("backend", "options"), [("aot_eager", {}), ("smelt", {}), ("smelt", {"eager_rng": True})], ids=str
)
def test_random_numbers_are_the_same_again(backend: str, options: dict[str, Any]) -> None:
    def fn(x):
        torch.rand(4)  # nobody uses it
        noise = torch.rand_like(x)
        return F.dropout(x, 0.5).sin() * noise + torch.randn_like(x) * x**2, torch.rand(3)

    run = smelt.compile(fn, backend=backend, options=options, fullgraph=True)
    for shift in (0.0, 1.0):
        x = (torch.linspace(0.5, 1, 40, dtype=torch.float64) + shift).requires_grad_()
        out = run(x)[0]
        state = torch.get_rng_state()
        (first,) = torch.autograd.grad(out.sum(), x, retain_graph=True)
        (again,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        assert torch.equal(torch.get_rng_state(), state)
        torch.testing.assert_close(again, first)
        (second,) = torch.autograd.grad(again.sum(), x, create_graph=True)
        (third,) = torch.autograd.grad(second.sum(), x)
        kept = third != 0  # sin(2x) n + r x^2: 2 cos(2x) n + 2 r x, then -4 sin(2x) n + 2 r, then -8 cos(2x) n
        noise = -third / (8 * (2 * x).cos())
        r = (second + 4 * (2 * x).sin() * noise) / 2
        torch.testing.assert_close(first, 2 * (2 * x).cos() * noise + 2 * r * x)
        assert 5 < int(kept.sum()) < 35 and bool((noise[kept] > 0).all()) and bool((noise < 1).all())


def test_numbers_from_the_generator_are_the_same_again() -> None:
    """Beside numbers that follow from a seed, some operators stay torch's, and draw from its generator."""

    def fn(x):
        return F.dropout(x, 0.2) * (x * x)[torch.randperm(20)]

    x = torch.linspace(1, 2, 20, requires_grad=True)
    out = smelt.compile(fn, fullgraph=True)(x)
    (first,) = torch.autograd.grad(out.sum(), x, retain_graph=True)
    (again,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    torch.testing.assert_close(again, first)


def test_reasons_for_absent_second_derivatives() -> None:
    x = torch.randn(3, requires_grad=True)
    weight = torch.ones(3)
    fails(lambda x: (x * x + weight.exp()).sin(), x, "was written to", between=lambda: weight.add_(0))


@pytest.mark.parametrize("budget", [0.0, 0.5, 1.0])
def test_no_partition_forbids_them(budget: float) -> None:
    """Second derivatives begin again from the inputs, whatever the first ones save."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x.sin().exp() @ x.cos()).tanh()

    run = smelt.compile(fn, options={"activation_memory_budget": budget}, fullgraph=True)
    x = torch.randn(3, 3, requires_grad=True, dtype=torch.float64)
    assert torch.autograd.gradgradcheck(run, (x,))


def test_the_option_that_forbids_them_is_named() -> None:
    """A graph for changing numbers has none; the error says which option makes graphs without."""
    for dynamic in (True, False):
        run = smelt.compile(lambda x, by: (x * by).sin(), backend="aot_eager", dynamic=dynamic)
        x = torch.randn(3, requires_grad=True)
        for by in (0.5, 0.25, 0.75):
            (first,) = torch.autograd.grad(run(x, by).sum(), x, create_graph=True)
        if dynamic:
            with pytest.raises(SmeltError, match="(?s)second derivative.*dynamic=False"):
                first.sum().backward()
        else:
            first.sum().backward()


def test_an_input_that_only_the_graph_before_had() -> None:
    """Its values do not matter to the gradients, and nobody has kept it; but it has gradients."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * x.detach().sum().item()

    x = torch.randn(3, requires_grad=True)
    run = smelt.compile(fn, backend="aot_eager", dynamic=False)
    (first,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, -x.sin() * x.sum())
