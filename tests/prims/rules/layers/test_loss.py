"""Losses against eager: every reduction, weights, ignored classes, values at the ends, nothing at all."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.prims.aten_check import check
from tests.prims.prim_check import names

aten = torch.ops.aten
NONE, MEAN, SUM = 0, 1, 2
REDUCTIONS = pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])


def f(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype)


@REDUCTIONS
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [-100, 1])
def test_classes(weighted: bool, ignored: int, reduction: int) -> None:
    weight = torch.rand(4, dtype=torch.float64) if weighted else None
    for x, target in (
        (f(3, 4), torch.tensor([0, 1, 3])),
        (f(1, 4), torch.tensor([2])),
        (f(4), torch.tensor(3)),
        (f(4), torch.tensor(1)),
        (f(2, 4, 3, 2), torch.randint(0, 4, (2, 3, 2))),
        (f(3, 4), torch.full((3,), ignored)),
        (f(0, 4), torch.zeros(0, dtype=torch.int64)),
    ):
        if (target < 0).any() and ignored >= 0:
            continue
        two = "2d" if x.dim() == 4 else ""
        forward = getattr(aten, f"nll_loss{two}_forward").default
        check(forward, x, target, weight, reduction, ignored)
        loss, total = forward(x, target, weight, reduction, ignored)
        grad = torch.randn_like(loss)
        back = getattr(aten, f"nll_loss{two}_backward").default
        prims = check(back, grad, x, target, weight, reduction, ignored, total)
        assert not {"scatter", "scatter_add", "index_put"} & set(names(prims))


@REDUCTIONS
def test_classes_in_low_precision(reduction: int) -> None:
    x, target = f(3, 4).bfloat16(), torch.tensor([0, 1, 3])
    check(aten.nll_loss_forward.default, x, target, None, reduction, -100, scale=2.0)


PAIRS: dict[str, list[tuple[Any, ...]]] = {
    "mse_loss": [()],
    "smooth_l1_loss": [(1.0,), (0.5,), (0.0,)],
    "huber_loss": [(1.0,), (0.5,)],
    "soft_margin_loss": [()],
}


@REDUCTIONS
@pytest.mark.parametrize("name", PAIRS)
def test_differences(name: str, reduction: int) -> None:
    op, back = getattr(aten, name).default, getattr(aten, f"{name}_backward").default
    for options in PAIRS[name]:
        for x, t in ((f(3, 4) * 2, f(3, 4)), (f(), f()), (f(3, 4).bfloat16(), f(3, 4).bfloat16()), (f(0, 2), f(0, 2))):
            scale = 3.0 if x.dtype is torch.bfloat16 else 1.0
            check(op, x, t, reduction, *options, scale=scale)
            check(back, torch.randn_like(op(x, t, reduction, *options)), x, t, reduction, *options, scale=scale)
        ends = torch.tensor([1.0, -1.0, 0.5, -0.5, 0.0, math.nan, math.inf], dtype=torch.float64)
        check(op, ends, torch.zeros_like(ends), NONE, *options)
        check(back, torch.ones_like(ends), ends, torch.zeros_like(ends), NONE, *options)


@REDUCTIONS
def test_pairs_that_broadcast(reduction: int) -> None:
    check(aten.mse_loss.default, f(3, 1), f(4), reduction)
    check(aten.smooth_l1_loss.default, f(3, 1), f(4).float(), reduction)


@REDUCTIONS
@pytest.mark.parametrize("weighted", [False, True])
def test_binary_cross_entropy(weighted: bool, reduction: int) -> None:
    x = torch.tensor([0.0, 1.0, 0.3, 1e-60, 0.999], dtype=torch.float64)
    for t in (torch.tensor([0.0, 1.0, 0.5, 1.0, 0.0], dtype=torch.float64), torch.rand(5, dtype=torch.float64)):
        weight = torch.rand(5, dtype=torch.float64) if weighted else None
        check(aten.binary_cross_entropy.default, x, t, weight, reduction)
        grad = torch.randn_like(aten.binary_cross_entropy.default(x, t, weight, reduction))
        check(aten.binary_cross_entropy_backward.default, grad, x, t, weight, reduction)


def test_probabilities_outside_of_0_and_1() -> None:
    good, zero = torch.tensor([0.5, 0.5]), torch.tensor(0)
    prims = check(aten.binary_cross_entropy.default, good, good)
    for wrong in (1.1, -0.1, math.nan):
        with pytest.raises(RuntimeError, match="all elements of input"):
            prims(torch.tensor([wrong, 0.5]), good, zero)
        if wrong == wrong:
            with pytest.raises(RuntimeError, match="all elements of target"):
                prims(good, torch.tensor([0.5, wrong]), zero)


@REDUCTIONS
@pytest.mark.parametrize("weight", [None, (4,), (3, 1)])
@pytest.mark.parametrize("positive", [None, (4,), (1,)])
def test_logits(weight: Any, positive: Any, reduction: int) -> None:
    x, t = f(3, 4) * 30, torch.rand(3, 4, dtype=torch.float64)
    extra = [None if shape is None else torch.rand(shape, dtype=torch.float64) for shape in (weight, positive)]
    check(aten.binary_cross_entropy_with_logits.default, x, t, *extra, reduction)
    big = torch.tensor([1000.0, -1000.0, 0.0], dtype=torch.float64)
    check(
        aten.binary_cross_entropy_with_logits.default,
        big,
        torch.tensor([0.0, 1.0, 0.5]).double(),
        None,
        None,
        reduction,
    )
