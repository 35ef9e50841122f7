"""Normalisations and softmax, forward and backward, against eager: masks of gradients, absent weights, nothing, NaN."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from smelt.prims.rules.layers.normalization import _gradient_through_normalization
from tests.prims.aten_check import check, compare
from tests.prims.prim_check import evaluated

aten = torch.ops.aten
MASKS = [list(mask) for mask in itertools.product([True, False], repeat=3)]


def f(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


WEIGHTS = pytest.mark.parametrize("weights", [(True, True), (True, False), (False, True), (False, False)])


@WEIGHTS
@pytest.mark.parametrize(
    ("shape", "sizes"), [((3, 4), [4]), ((2, 3, 5), [3, 5]), ((1, 1), [1]), ((0, 4), [4]), ((4,), [4])]
)
def test_layer_norm(shape: tuple[int, ...], sizes: list[int], weights: tuple[bool, bool]) -> None:
    for dtype, scale in ((torch.float64, 1.0), (torch.bfloat16, 3.0)):
        x = f(*shape, dtype=dtype) + 2
        weight, bias = (f(*sizes, dtype=dtype) if given else None for given in weights)
        check(aten.native_layer_norm.default, x, sizes, weight, bias, 1e-3, scale=scale)
        _, mean, rstd = aten.native_layer_norm.default(x, sizes, weight, bias, 1e-3)
        if dtype is torch.bfloat16:
            continue
        for mask in MASKS[:-1]:
            mask = [mask[0], mask[1] and weights[0], mask[2] and weights[1]]
            if any(mask):
                check(aten.native_layer_norm_backward.default, f(*shape), x, sizes, mean, rstd, weight, bias, mask)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("eps", [None, 1e-2])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_rms_norm(weighted: bool, eps: float | None, dtype: torch.dtype) -> None:
    for shape, sizes in (((3, 4), [4]), ((2, 3, 5), [3, 5]), ((0, 4), [4])):
        x = (f(*shape) * (1e-5 if eps is None else 1)).to(dtype)  # as small as what is added to them
        check(aten._fused_rms_norm.default, x, sizes, f(*sizes, dtype=dtype) if weighted else None, eps, scale=3.0)


@pytest.mark.parametrize("mask", [[True, True], [True, False], [False, True]])
@pytest.mark.parametrize("weighted", [False, True])
def test_rms_norm_backward(weighted: bool, mask: list[bool]) -> None:
    """Eager has no kernel for it on a CPU: against autograd of the formula."""
    x, g, weight = f(2, 3, 5).requires_grad_(), f(2, 3, 5), f(5).requires_grad_() if weighted else None
    rstd = (x.square().mean(-1, keepdim=True) + 1e-2).rsqrt()
    y = x * rstd if weight is None else x * rstd * weight
    wanted = torch.autograd.grad(y, [x] if weight is None else [x, weight], g)
    dx, dw = wanted[0], wanted[1] if weighted and mask[1] else None
    args = (g, x.detach(), [5], rstd.detach(), None if weight is None else weight.detach(), mask)
    if mask[0] or weighted:
        compare(aten._fused_rms_norm_backward.default, args, {}, (dx if mask[0] else None, dw))


@WEIGHTS
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("space", [(), (3,), (2, 2)])
def test_group_norm(space: tuple[int, ...], groups: int, weights: tuple[bool, bool]) -> None:
    x = f(2, 6, *space) * 2 + 1
    count = math.prod(space)
    weight, bias = (f(6) if given else None for given in weights)
    sizes = (2, 6, count, groups)
    check(aten.native_group_norm.default, x, weight, bias, *sizes, 1e-3)
    _, mean, rstd = aten.native_group_norm.default(x, weight, bias, *sizes, 1e-3)
    for mask in MASKS[:4]:
        mask = mask if weights[0] else [True, False, False]
        check(aten.native_group_norm_backward.default, torch.randn_like(x), x, mean, rstd, weight, *sizes, mask)


def test_group_norm_of_nothing() -> None:
    x = f(2, 4, 0)
    sizes = (2, 4, 0, 2)
    mean = torch.zeros(2, 2, dtype=x.dtype)
    rstd = (mean + 1e-3).rsqrt()
    check(aten.native_group_norm_backward.default, x, x, mean, rstd, f(4), *sizes, [True, False, True])


BATCHES = [(5, 3), (4, 3, 2), (2, 3, 2, 2), (1, 3, 2)]


@WEIGHTS
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("shape", BATCHES)
def test_batch_norm(shape: tuple[int, ...], training: bool, weights: tuple[bool, bool]) -> None:
    x = f(*shape) * 2 + 1
    weight, bias = (f(3) if given else None for given in weights)
    mean, var = f(3), torch.rand(3, dtype=torch.float64) + 0.5
    for op in (aten._native_batch_norm_legit_functional.default,):
        check(op, x, weight, bias, mean, var, training, 0.3, 1e-3)
    out, saved_mean, saved_rstd, *_ = aten._native_batch_norm_legit_functional.default(
        x, weight, bias, mean, var, training, 0.3, 1e-3
    )
    for mask in MASKS[:4]:
        args = (torch.randn_like(out), x, weight, mean, var, saved_mean, saved_rstd, training, 1e-3, mask)
        check(aten.native_batch_norm_backward.default, *args)
    check(aten._native_batch_norm_legit_no_training.default, x, weight, bias, mean, var, 0.3, 1e-3)
    check(aten._native_batch_norm_legit.no_stats, x, weight, bias, True, 0.3, 1e-3)


def test_batch_norm_in_low_precision_with_wide_statistics() -> None:
    x, mean, var = f(4, 3, 2, dtype=torch.bfloat16), f(3, dtype=torch.float32), torch.rand(3) + 0.5
    weight = f(3, dtype=torch.float32)
    check(aten._native_batch_norm_legit_functional.default, x, weight, None, mean, var, True, 0.1, 1e-3, scale=3.0)


def test_one_value_a_channel_has_no_unbiased_variance() -> None:
    args = (f(1, 3), None, None, f(3), f(3).abs(), True, 0.5, 1e-3)
    got = check(aten._native_batch_norm_legit_functional.default, *args)
    assert got(*(a for a in args if isinstance(a, torch.Tensor)), torch.tensor(0))[4].isnan().all()


def test_the_gradient_of_normal_rows() -> None:
    x, g = f(4, 5).requires_grad_(), f(4, 5)
    mean, rstd = x.mean(1, keepdim=True), (x.var(1, keepdim=True, correction=0) + 0.1).rsqrt()
    normal = (x - mean) * rstd
    (want,) = torch.autograd.grad(normal, x, g)
    args = (g, normal.detach(), rstd.detach(), (1,))
    torch.testing.assert_close(evaluated(_gradient_through_normalization, *args), want)


# -- softmax

ROWS = [f(3, 4), f(3, 4) * 300, f(1, 1), f(2, 0), torch.tensor([[math.inf, 1.0], [math.nan, 1.0]]).double()]
HIDDEN = torch.tensor([[-math.inf, -math.inf], [-math.inf, 1.0]], dtype=torch.float64)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax(dim: int) -> None:
    for x in (*ROWS, HIDDEN):
        for op in (aten._softmax.default, aten._log_softmax.default):
            check(op, x, dim, False)
            y = op(x, dim, False)
            back = getattr(aten, op.overloadpacket.__name__ + "_backward_data").default
            check(back, torch.randn_like(y), y, dim, torch.float64)
        check(aten._safe_softmax.default, x, dim)
    x = f(3, 4, dtype=torch.bfloat16)
    check(aten._softmax.default, x, dim, False, scale=2.0)
    check(aten._safe_softmax.default, x, dim, torch.float32)


def test_softmax_of_a_number() -> None:
    for value in (2.0, math.inf, math.nan, -math.inf):
        x = torch.tensor(value, dtype=torch.float64)
        for op in (aten._softmax.default, aten._log_softmax.default):
            check(op, x, 0, False)
            back = getattr(aten, op.overloadpacket.__name__ + "_backward_data").default
            check(back, torch.tensor(3.0).double(), op(x, 0, False), 0, torch.float64)
        check(aten._safe_softmax.default, x, -1)


def test_rows_that_are_all_hidden_weigh_nothing() -> None:
    got = check(aten._safe_softmax.default, HIDDEN, 1)(HIDDEN, torch.tensor(0))[0]
    assert got.tolist() == [[0, 0], [0, 1]]
