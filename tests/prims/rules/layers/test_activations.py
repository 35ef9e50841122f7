"""Activations and their derivatives: against eager on both sides of every threshold, NaN, infinities, low precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.prims.aten_check import check

aten = torch.ops.aten
VALUES = [math.inf, -math.inf, 0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 2.9, -2.9, 6.0, 21.0, -30.0, 0.3]
X = torch.tensor(VALUES, dtype=torch.float64)
NAN = torch.tensor([math.nan], dtype=torch.float64)
G = torch.linspace(-2, 3, len(VALUES), dtype=torch.float64)

FORWARD: dict[str, list[tuple[Any, ...]]] = {
    "relu": [()],
    "threshold": [(0.5, 7.0), (-1.0, 0.0)],
    "leaky_relu": [(), (0.3,), (-1.0,)],
    "elu": [(), (0.5,), (1.5, 2.0, 0.5)],
    "celu": [(), (0.5,)],
    "silu": [()],
    "mish": [()],
    "softplus": [(), (2.0, 1.0), (0.5,)],
    "hardtanh": [(), (-0.5, 2.9)],
    "hardsigmoid": [()],
    "hardswish": [()],
    "hardshrink": [(), (0.3,), (0.0,)],
    "softshrink": [(), (0.3,), (0.0,)],
    "log_sigmoid_forward": [()],
}


@pytest.mark.parametrize("name", FORWARD)
def test_forward(name: str) -> None:
    op = getattr(aten, name).default
    for options in FORWARD[name]:
        for x in (X, X[5:].float(), X[:0], X[5]):
            check(op, x, *options)
        check(op, torch.tensor(math.nan), *options)
        check(op, X[2:].bfloat16(), *options, scale=2.0)


def test_of_whole_numbers_and_bools() -> None:
    whole = torch.tensor([-3, 0, 1, 2, 7])
    check(aten.relu.default, whole)
    check(aten.threshold.default, whole, 1, 5)
    check(aten.hardtanh.default, whole, -1, 2, fallback=True)


BACKWARD: dict[str, tuple[Callable[..., torch.Tensor], list[tuple[Any, ...]]]] = {
    "threshold": (lambda x, limit: F.threshold(x, limit, 0.0), [(0.5,), (0,)]),
    "hardsigmoid": (F.hardsigmoid, [()]),
    "hardswish": (F.hardswish, [()]),
    "hardtanh": (F.hardtanh, [(-1.0, 1.0), (-0.5, 2.9)]),
    "hardshrink": (F.hardshrink, [(0.5,), (0.3,)]),
    "softshrink": (F.softshrink, [(0.5,), (0.3,)]),
    "silu": (F.silu, [()]),
    "mish": (F.mish, [()]),
    "softplus": (F.softplus, [(1.0, 20.0), (2.0, 1.0)]),
}


@pytest.mark.parametrize("name", BACKWARD)
def test_backward(name: str) -> None:
    op = getattr(aten, f"{name}_backward").default
    function, calls = BACKWARD[name]
    for options in calls:
        prims = check(op, G, X, *options)
        check(op, G.bfloat16(), X.bfloat16(), *options, scale=2.0)
        check(op, G[:0], X[:0], *options)
        check(op, G[5], X[5], *options)
        check(op, G[:1], NAN, *options)  # eager's vectors have other answers for NaN than its loops
        smooth = torch.tensor([-2.3, 0.2, 0.7, 1.7, 4.0, 25.0], dtype=torch.float64, requires_grad=True)
        grad = G[: len(smooth)]
        (want,) = torch.autograd.grad(function(smooth, *options), smooth, grad)
        torch.testing.assert_close(prims(grad, smooth.detach(), torch.tensor(0))[0], want)


@pytest.mark.parametrize("of_result", [False, True])
def test_backward_of_a_result(of_result: bool) -> None:
    for options in ((1.0, 1.0, 1.0), (0.5, 2.0, 1.5)):
        check(aten.elu_backward.default, G, *options, of_result, X)
        check(aten.elu_backward.default, G[:1], *options, of_result, NAN)
    for slope in (0.01, 0.3):
        check(aten.leaky_relu_backward.default, G, X, slope, of_result)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate: str) -> None:
    for x, g in ((X, G), (X[:0], G[:0])):
        check(aten.gelu.default, x, approximate=approximate)
        check(aten.gelu_backward.default, g, x, approximate=approximate)
    check(aten.gelu.default, NAN, approximate=approximate)
    check(aten.gelu.default, X[2:].bfloat16(), approximate=approximate, scale=2.0)
    x = torch.linspace(-4, 4, 50, dtype=torch.float64)
    exact = x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    got = check(aten.gelu.default, x, approximate=approximate)(x, torch.tensor(0))[0]
    torch.testing.assert_close(got, exact, atol=1e-12 if approximate == "none" else 1e-3, rtol=0)


def test_slopes_of_results() -> None:
    y = torch.tensor([0.0, 0.3, 1.0, math.nan, -1.0], dtype=torch.float64)
    for name in ("sigmoid_backward", "tanh_backward"):
        check(getattr(aten, name).default, G[:5], y)
        check(getattr(aten, name).default, G[:5].bfloat16(), y.bfloat16(), scale=2.0)


@pytest.mark.parametrize("eps", [None, 0.0, 0.1])
def test_logit_backward(eps: float | None) -> None:
    x = torch.tensor([-0.1, -0.0, 0.0, 0.05, 0.1, 0.5, 0.9, 1.0, 1.1, math.nan], dtype=torch.float64)
    for g, at in zip(G, x, strict=False):
        check(aten.logit_backward.default, g, at, eps)
    check(aten.logit_backward.default, G[:5], x[3:8], eps)


def test_log_sigmoid_backward() -> None:
    _, buffer = aten.log_sigmoid_forward.default(X)
    check(aten.log_sigmoid_backward.default, G, X, buffer)


@pytest.mark.parametrize("shape", [(3,), (1,), (2, 3, 1)])
def test_prelu(shape: tuple[int, ...]) -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64) if len(shape) == 3 else X[:9].reshape(3, 3)
    weight = torch.rand(shape, dtype=torch.float64)
    full = weight.expand(x.shape)
    check(aten._prelu_kernel.default, x, full)
    check(aten._prelu_kernel_backward.default, torch.randn_like(x), x, full)


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_glu(dim: int, dtype: torch.dtype) -> None:
    x = torch.randn(4, 6).to(dtype)
    out = aten.glu.default(x, dim)
    check(aten.glu.default, x, dim, scale=2.0)
    check(aten.glu_backward.default, torch.randn_like(out), x, dim, scale=2.0)
    if dtype is torch.float64:
        check(aten.glu_jvp.default, out, x, torch.randn_like(x), dim)
    check(aten.glu.default, x[:, :0], 1)
