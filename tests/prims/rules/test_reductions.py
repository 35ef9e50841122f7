"""Reductions against eager: dims of every form, nothing, one element, types, NaN, and sums far from zero."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import fx

from smelt.prims.registry import Lowering
from smelt.prims.rules.reductions import count_over, moments, norm_of, shifted_moments
from tests.prims.aten_check import check
from tests.prims.prim_check import evaluated

aten = torch.ops.aten


def f(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


SHAPES = [(3, 4), (1, 5), (), (1,), (2, 0, 3), (4, 3, 2)]
DIMS: list[Any] = [None, [], [0], [-1], [0, -1]]


def valid(shape: tuple[int, ...], dims: Any) -> bool:
    return not dims or len({d % max(len(shape), 1) for d in dims}) == len(dims)


def compare(op: Any, *args: Any, scale: float = 1.0, **kwargs: Any) -> None:
    """Where eager takes it, which refuses extremes of nothing."""
    try:
        op(*args, **kwargs)
    except (RuntimeError, IndexError, NotImplementedError):
        return
    check(op, *args, scale=scale, **kwargs)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_means_extremes(shape: tuple[int, ...], dims: Any, keepdim: bool) -> None:
    if not valid(shape, dims):
        return
    others = [f(2, 3, 4).permute(2, 1, 0), f(*shape).bfloat16()] if shape == (4, 3, 2) else []
    for x in (f(*shape), *others):
        for op in (aten.sum.dim_IntList, aten.mean.dim, aten.nansum.default):
            compare(op, x, dims, keepdim)
        compare(aten.amax.default, x, dims or [], keepdim)
        compare(aten.amin.default, x, dims or [], keepdim)
        compare(aten.logsumexp.default, x, dims or [], keepdim)
        for correction in (0, 1.5) if keepdim else (1, 3):
            for op in (aten.var.correction, aten.std.correction, aten.var_mean.correction, aten.std_mean.correction):
                compare(op, x, dims, correction=correction, keepdim=keepdim, scale=2.0)
        for order in (2, 0, math.inf, 3) if keepdim else (1, -math.inf, 0.5):
            compare(aten.linalg_vector_norm.default, x, order, dims, keepdim, scale=2.0)
    whole = torch.randint(-3, 3, shape)
    compare(aten.sum.dim_IntList, whole, dims, keepdim)
    compare(aten.sum.dim_IntList, whole > 0, dims, keepdim)
    compare(aten.sum.dim_IntList, whole.to(torch.int8), dims, keepdim, dtype=torch.int8)
    compare(aten.mean.dim, whole, dims, keepdim, dtype=torch.float32)
    compare(aten.nansum.default, whole, dims, keepdim)
    compare(aten.amax.default, whole, dims or [], keepdim)
    compare(aten.amin.default, whole > 0, dims or [], keepdim)
    compare(aten.amax.default, whole > 0, dims or [], keepdim)
    compare(aten.logsumexp.default, whole, dims or [], keepdim)
    for value in (whole, whole > 0, f(*shape)):
        compare(aten.any.dims, value, dims, keepdim)
        compare(aten.all.dims, value, dims, keepdim)
        compare(aten.count_nonzero.dim_IntList, value, dims or [])


@pytest.mark.parametrize("shape", SHAPES)
def test_over_everything(shape: tuple[int, ...]) -> None:
    for x in (f(*shape), torch.randint(-3, 3, shape), torch.randint(0, 2, shape).bool()):
        for name in "sum mean prod max min any all argmax argmin count_nonzero aminmax var std".split():
            compare(getattr(aten, name).default, x)
        compare(aten.var.default, x, False)
        compare(aten.std.default, x, False)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("shape", SHAPES)
def test_along_a_dimension(shape: tuple[int, ...], dim: int, keepdim: bool) -> None:
    for x in (f(*shape), torch.randint(-3, 3, shape), torch.randint(0, 2, shape).bool(), f(*shape).bfloat16()):
        for op in (
            aten.argmax.default,
            aten.argmin.default,
            aten.max.dim,
            aten.min.dim,
            aten.prod.dim_int,
            aten.any.dim,
            aten.all.dim,
        ):
            compare(op, x, dim, keepdim)
        compare(aten.aminmax.default, x, dim=dim, keepdim=keepdim)
        compare(aten.var.dim, x, [dim], True, keepdim)
        compare(aten.std.dim, x, [dim], False, keepdim)


def test_nan_in_argmax_argmin_max_min_and_nansum() -> None:
    x = torch.tensor([[1.0, math.nan, 3.0, math.nan], [2.0, 2.0, -1.0, -1.0]])
    for op in (aten.argmax.default, aten.argmin.default, aten.max.dim, aten.min.dim):
        check(op, x, 1)
    check(aten.max.default, x)
    check(aten.nansum.default, x, [1])


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.int64, torch.bfloat16], ids=str)
def test_types_that_are_asked_for(dtype: torch.dtype | None) -> None:
    for x in (
        torch.tensor([1.75, 2.5, -3.25]),
        torch.tensor([1.75, 2.5, 300.25]).bfloat16(),
        torch.tensor([1, 2, 300]),
    ):
        for op in (aten.sum.default, aten.prod.default):
            check(op, x, dtype=dtype)
        for op in (aten.cumsum.default, aten.cumprod.default):
            check(op, x, 0, dtype=dtype)
            check(op, x[0], -1, dtype=dtype)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_orders(dim: int) -> None:
    for x in (f(4, 5), torch.randint(0, 99, (4, 5)), torch.tensor([[1.0, math.nan], [math.inf, -1.0]])):
        for descending in (False, True):
            check(aten.sort.default, x, dim, descending)
            check(aten.sort.stable, x, stable=True, dim=dim, descending=descending)
        for largest in (False, True):
            check(aten.topk.default, x, 2, dim, largest)
            check(aten.topk.default, x, 0, dim, largest)
    check(aten.sort.default, torch.tensor(2.0), 0)
    check(aten.topk.default, torch.tensor(2.0), 1)


@pytest.mark.parametrize("shape", [(3, 3), (2, 4), (4, 2), (1, 1), (0, 3), (3, 0)])
def test_trace(shape: tuple[int, int]) -> None:
    check(aten.trace.default, f(*shape))
    check(aten.trace.default, torch.randint(-9, 9, shape))


def test_norms_under_old_names() -> None:
    x = f(3, 4)
    for order in (2, 1, 0, math.inf, 3):
        check(aten.norm.Scalar, x, order)
        check(aten.norm.ScalarOpt_dim, x, order, [1], True)
        check(aten.norm.ScalarOpt_dtype, x, order, dtype=torch.float64)
    check(aten.norm.ScalarOpt_dim, x, None, [0])


# -- what others use


@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1), ()])
@pytest.mark.parametrize("offset", [0.0, 1e4, -3e6])
def test_moments_far_from_zero(offset: float, dims: tuple[int, ...]) -> None:
    x = (torch.randn(64, 9) + offset).float()
    exact = x.double()
    for function in (moments, shifted_moments) if dims else (moments,):
        var, mean = evaluated(lambda p, x: function(p, x, dims), x)  # noqa: B023
        want = exact.var(dims, correction=0, keepdim=True) if dims else torch.zeros(64, 9)
        np.testing.assert_allclose(var, want, rtol=2e-2, atol=1e-3)
        np.testing.assert_allclose(mean, exact.mean(dims, keepdim=True) if dims else x, rtol=1e-6, atol=1e-6)


def test_equal_elements_have_no_variance() -> None:
    x = torch.full((3, 7), 0.1)
    got = check(aten.var.correction, x, [1], correction=1)(x, torch.tensor(0))[0]
    assert got.tolist() == [0, 0, 0]


@pytest.mark.parametrize("order", [math.inf, -math.inf, 0, 1, 2, 3, 0.5, -1])
def test_norms(order: float) -> None:
    x = f(3, 4)
    got = evaluated(lambda p, x: norm_of(p, x, order, (1,), True), x)
    np.testing.assert_allclose(got, np.linalg.norm(x.numpy(), order, axis=1, keepdims=True))


def test_counts() -> None:
    def count(p: Lowering, x: fx.Node) -> fx.Node:
        return p.full((), count_over(x, (0, 2)), torch.int64, torch.device("cpu"))

    assert evaluated(count, f(2, 3, 4)).item() == 8
