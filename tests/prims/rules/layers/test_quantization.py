"""Simulated quantization against eager: ties, both ends of the range, NaN, infinities, low precision."""

from __future__ import annotations

import math

import pytest
import torch

from tests.prims.aten_check import check

aten = torch.ops.aten
X = torch.tensor([0.0, 0.24, 0.25, 0.75, -0.25, -0.75, 3.3, -3.3, 63.5, 64.0, -64.0, -64.3, 1e9, math.inf, -math.inf])
TENSOR = aten.fake_quantize_per_tensor_affine_cachemask.default
CHANNEL = aten.fake_quantize_per_channel_affine_cachemask.default
TENSORS = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default


@pytest.mark.parametrize(("zero", "low", "high"), [(0, -128, 127), (10, 0, 255), (-3, -8, 7), (0, 0, 1)])
@pytest.mark.parametrize("scale", [0.5, 0.1, 3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_per_tensor(dtype: torch.dtype, scale: float, zero: int, low: int, high: int) -> None:
    x = X.to(dtype)
    check(TENSOR, x, scale, zero, low, high)
    check(TENSOR, torch.tensor(math.nan, dtype=dtype), scale, max(zero, low), low, high)
    for enabled in (0, 1):
        zero_point = torch.tensor([zero if low <= zero <= high else low], dtype=torch.int32)
        check(TENSORS, x, torch.tensor([scale]), zero_point, torch.tensor([enabled]), low, high)


def test_values_are_whole_steps() -> None:
    value, inside = check(TENSOR, X, 0.5, 0, -128, 127)(X, torch.tensor(0))
    assert value[:6].tolist() == [0.0, 0.0, 0.0, 1.0, 0.0, -1.0]  # ties to even
    assert inside[8:12].tolist() == [True, False, True, False] and value[9].item() == 63.5


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_per_channel(axis: int, dtype: torch.dtype) -> None:
    x = (torch.randn(3, 4) * 50).to(dtype)
    count = x.shape[axis]
    scale, zero = torch.rand(count) + 0.1, torch.arange(count, dtype=torch.int32)
    check(CHANNEL, x, scale, zero, axis, -128, 127)
    check(CHANNEL, x, scale, zero.float(), axis, -128, 127, fallback=True)


def test_double_precision_stays() -> None:
    check(TENSOR, X.double(), 0.5, 0, -128, 127, fallback=True)
    one = torch.tensor([1])
    check(TENSORS, X.double(), torch.tensor([0.5]), one.int(), one, -128, 127, fallback=True)
    check(CHANNEL, X.double()[None], torch.tensor([0.5]), one.int(), 0, -128, 127, fallback=True)
