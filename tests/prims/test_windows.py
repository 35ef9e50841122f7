"""Pooling in two dimensions: counts of windows, values and layouts are eager's."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from smelt.base.errors import CompileError
from smelt.graph.ir.meta import meta_of
from smelt.prims import ops
from smelt.prims.windows import pooled_size
from tests.prims.prim_check import checked


@pytest.mark.parametrize("ceil", [False, True])
def test_how_many_windows(ceil: bool) -> None:
    for kernel, stride, dilation in itertools.product((1, 2, 3), (1, 2, 3), (1, 2)):
        for padding in range(kernel // 2 + 1):
            for size in range(dilation * (kernel - 1) + 1, 9):
                args = (size, kernel, stride, padding, dilation, ceil)
                x = torch.zeros(1, 1, size)
                want = F.max_pool1d(x, kernel, stride, padding, dilation, ceil).shape[-1]
                assert pooled_size(*args) == want, args


CASES = [
    ((2, 2), (2, 2), (0, 0), (1, 1), False),
    ((3, 2), (2, 1), (1, 0), (1, 2), False),
    ((2, 3), (2, 2), (1, 1), (1, 1), True),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_maxima(case: tuple[Any, ...], batch: tuple[int, ...]) -> None:
    kernel, stride, padding, dilation, ceil = case
    x = torch.randn(*batch, 3, 7, 6, dtype=torch.float64, requires_grad=True)
    want, places = F.max_pool2d(x, kernel, stride, padding, dilation, ceil, return_indices=True)
    got = checked("max_pool2d", x.detach(), *case)
    assert torch.equal(got[0], want) and torch.equal(got[1], places)
    grad = torch.randn_like(want)
    (wanted,) = torch.autograd.grad(want, x, grad)
    torch.testing.assert_close(checked("max_pool2d_backward", grad, places, tuple(x.shape), *case[:4]), wanted)


def test_the_first_maximum_and_nan() -> None:
    x = torch.tensor([[[1.0, 1.0], [1.0, 1.0]], [[1.0, math.nan], [math.inf, math.nan]]])
    values, places = checked("max_pool2d", x, (2, 2), (2, 2), (0, 0), (1, 1), False)
    assert places.flatten()[0] == 0 and values[1].isnan().all()


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("divisor", [None, 5])
@pytest.mark.parametrize("case", CASES)
def test_means(case: tuple[Any, ...], divisor: int | None, counted: bool) -> None:
    kernel, stride, padding, _, ceil = case
    x = torch.randn(2, 3, 7, 6, dtype=torch.float64, requires_grad=True)
    options = (kernel, stride, padding, ceil, counted, divisor)
    want = F.avg_pool2d(x, *options)
    torch.testing.assert_close(checked("avg_pool2d", x.detach(), *options), want.detach())
    grad = torch.randn_like(want)
    (wanted,) = torch.autograd.grad(want, x, grad)
    torch.testing.assert_close(checked("avg_pool2d_backward", grad, tuple(x.shape), *options), wanted)


def test_channels_last_stays() -> None:
    last = torch.channels_last
    x = torch.randn(2, 3, 6, 8).to(memory_format=last)
    pool = ((2, 2), (2, 2), (0, 0))
    values, places = ops.max_pool2d(x, *pool, (1, 1), False)
    for meta, value in zip(ops.max_pool2d.meta(meta_of(x), *pool, (1, 1), False), (values, places), strict=True):
        assert meta.stride == value.stride() and value.is_contiguous(memory_format=last)
    grad = torch.randn_like(values)
    back = ops.max_pool2d_backward.meta(meta_of(grad), meta_of(places), (2, 3, 6, 8), *pool, (1, 1))
    assert back.stride == x.stride() and back.dtype is x.dtype
    mean = ops.avg_pool2d.meta(meta_of(x), *pool, False, True, None)
    assert mean.stride == ops.avg_pool2d(x, *pool, False, True, None).stride()
    assert ops.avg_pool2d.meta(meta_of(x.contiguous()), *pool, False, True, None).stride == (36, 12, 4, 1)


def test_wrong_operands() -> None:
    pool = ((2, 2), (2, 2), (0, 0))
    with pytest.raises(CompileError, match="pooling of shape"):
        ops.avg_pool2d.meta(meta_of(torch.ones(4, 4)), *pool, False, True, None)
    grad, places = meta_of(torch.ones(1, 2, 2)), meta_of(torch.ones(1, 2, 3).long())
    with pytest.raises(CompileError, match="prim max_pool2d_backward"):
        ops.max_pool2d_backward.meta(grad, places, (1, 4, 4), *pool, (1, 1))
    with pytest.raises(CompileError, match="prim avg_pool2d_backward"):
        ops.avg_pool2d_backward.meta(grad, (2, 4, 4), *pool, False, True, None)


def test_a_mean_of_zeros_is_zero() -> None:
    assert ops.avg_pool2d.facts.linear_in == (0,) and ops.max_pool2d.facts.linear_in == ()
