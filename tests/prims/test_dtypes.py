"""Promotion is torch's own, for every pair of dtypes, ranks and numbers."""

from __future__ import annotations

import itertools

import pytest
import torch

import smelt
from smelt.graph.ir.meta import meta_of
from smelt.prims.dtypes import PLAIN, compute_dtype, floating, is_float, is_integral, result_dtype

OPERANDS = [torch.ones(shape, dtype=d) for d in PLAIN for shape in ((), (2,))] + [True, 3, 2.5]


def test_pairs():
    for a, b in itertools.product(OPERANDS, OPERANDS):
        if not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor):
            continue
        metas = [meta_of(x) if isinstance(x, torch.Tensor) else x for x in (a, b)]
        assert result_dtype(*metas) is torch.result_type(a, b), (a, b)


def test_three_operands():
    half, wide = meta_of(torch.ones(2, dtype=torch.bfloat16)), meta_of(torch.ones(()))
    assert result_dtype(half, wide, 1) is torch.bfloat16
    assert result_dtype(meta_of(torch.ones(2, dtype=torch.int32)), wide, 2) is torch.float32


def test_no_operand():
    with pytest.raises(TypeError):
        result_dtype()


def test_classes():
    assert compute_dtype(torch.bfloat16) is torch.float32 and compute_dtype(torch.float64) is torch.float64
    assert floating(torch.int32) is torch.float32 and floating(torch.float16) is torch.float16
    assert is_integral(torch.bool) and is_float(torch.float16) and not is_float(torch.int8)


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_whole_numbers_beside_low_precision_are_rounded_first(low: torch.dtype):
    whole, small = torch.tensor([257, 70000, 2**40, -3]), torch.tensor([2**-9, 2**-8, 0.0, 1.0]).to(low)

    def mixed(whole: torch.Tensor, small: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return whole * small, whole + small, whole[0] * small, whole < small

    for got, want in zip(smelt.compile(mixed, fullgraph=True)(whole, small), mixed(whole, small), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
