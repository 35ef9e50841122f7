"""Operators that are another one under a second name, or with a result more, against eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from smelt.base.options import Options
from smelt.prims.decompose import decompose, fallbacks
from tests.prims.aten_check import aten_graph, check, run_prims
from tests.prims.prim_check import names

aten = torch.ops.aten


def f(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


def test_second_names() -> None:
    check(aten._stack.default, [f(2, 3), f(2, 3)], 1)
    check(aten._logcumsumexp.default, f(3, 4), -1)
    for value in (torch.tensor([True, False]), torch.tensor([True]), torch.zeros(0, dtype=torch.bool)):
        check(aten._is_all_true.default, value)
        check(aten._is_any_true.default, value)
    check(aten.zero.default, f(2, 3))


def test_lowest_and_highest() -> None:
    for x in (f(3, 4), f(), torch.tensor([[1, -2], [3, 0]]), torch.tensor([[1.0, torch.nan]])):
        check(aten._aminmax.default, x)
        for keepdim in (False, True):
            check(aten._aminmax.dim, x, 0, keepdim)
            check(aten._aminmax.dim, x, -1, keepdim)


@pytest.mark.parametrize("alpha", [1, 2, -0.5])
def test_add_relu(alpha: float) -> None:
    check(aten._add_relu.Tensor, f(3, 4).float(), f(3, 4).float(), alpha=alpha)
    check(aten._add_relu.Scalar, f(3, 4).float(), 0.5, alpha)


@pytest.mark.parametrize("invert", [False, True])
def test_membership_of_numbers(invert: bool) -> None:
    for x in (torch.tensor([[1, 2], [2, 3]]), torch.tensor([1.0, 2.0, torch.nan]), torch.tensor(2), torch.zeros(0)):
        for number in (2, 7):
            check(aten.isin.Tensor_Scalar, x, number, invert=invert)
            check(aten.isin.Scalar_Tensor, number, x, invert=invert, fallback=0 in x.shape)


def batch() -> tuple[Any, ...]:
    return f(4, 3, 2), f(3), f(3), f(3), torch.rand(3, dtype=torch.float64) + 0.5


@pytest.mark.parametrize("training", [False, True])
def test_batch_norms_with_a_reserve(training: bool) -> None:
    x, weight, bias, mean, var = batch()
    if training:
        check(aten._batch_norm_with_update_functional.default, x, weight, bias, mean, var, 0.3, 1e-3)
    else:
        check(aten._batch_norm_no_update.default, x, weight, bias, mean, var, 0.3, 1e-3)
    out, saved_mean, saved_rstd, *_ = aten._native_batch_norm_legit_functional.default(
        x, weight, bias, mean, var, training, 0.3, 1e-3
    )
    reserve = torch.zeros(0, dtype=torch.uint8)
    for mask in ([True, True, True], [True, False, False]):
        args = (f(4, 3, 2), x, weight, mean, var, saved_mean, saved_rstd, training, 1e-3, mask, reserve)
        check(aten.batch_norm_backward.default, *args)


def test_batch_norm_of_nothing_stays() -> None:
    _, weight, bias, mean, var = batch()
    got = check(aten._batch_norm_no_update.default, f(0, 3), weight, bias, mean, var, 0.3, 1e-3)
    assert "full" in names(got)


@pytest.mark.parametrize("training", [False, True])
def test_slopes_that_are_drawn(training: bool) -> None:
    x, noise = f(40), torch.zeros(40, dtype=torch.float64)
    call = (x, noise, 0.2, 0.6, training)
    if not training:
        check(aten.rrelu_with_noise_functional.default, *call)
        check(aten.rrelu_with_noise_functional.default, x, noise)
        return
    op = aten.rrelu_with_noise_functional.default
    gm, inputs = aten_graph(op, call, {}, op(*call))
    prims = decompose(gm, Options())
    assert not fallbacks(prims) and fallbacks(decompose(gm, Options(eager_rng=True)))
    out, slopes = run_prims(prims, inputs)
    torch.testing.assert_close(out, x * slopes)
    below = slopes[x <= 0]
    assert (slopes[x > 0] == 1).all() and 0.2 <= below.min() < 0.35 and 0.45 < below.max() <= 0.6


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("lower", "upper"), [(0.2, 0.6), (0.3, 0.3)])
def test_their_gradient(training: bool, lower: float, upper: float) -> None:
    g, x, noise = f(9), torch.cat([f(8), torch.zeros(1).double()]), torch.rand(9, dtype=torch.float64)
    check(aten.rrelu_with_noise_backward.default, g, x, noise, lower, upper, training, False)
