"""Evenly spaced numbers whose ends are tensors, against eager."""

from __future__ import annotations

import pytest
import torch

from tests.prims.aten_check import check

aten = torch.ops.aten
ENDS = [(0.0, 1.0), (3.0, -2.5), (2.0, 2.0), (-100.0, 300.0)]


def t(value: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(value, dtype=dtype)


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 6, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_spaced(steps: int, dtype: torch.dtype) -> None:
    for start, stop in ENDS:
        prims = check(aten.linspace.Tensor_Tensor, t(start), t(stop), steps, dtype=dtype)
        if steps > 1:
            assert prims(t(start), t(stop), torch.tensor(0))[0][-1].item() == stop
        check(aten.linspace.Tensor_Scalar, t(start), stop, steps, dtype=dtype)
        check(aten.linspace.Scalar_Tensor, start, t(stop), steps, dtype=dtype)
    for base in (10.0, 2.0, 0.5):
        for overload, ends in (
            ("Tensor_Tensor", (t(-1), t(2))),
            ("Tensor_Scalar", (t(-1), 2)),
            ("Scalar_Tensor", (-1, t(2))),
        ):
            check(getattr(aten.logspace, overload), *ends, steps, base, dtype=dtype, scale=50.0)


def test_ends_of_whole_numbers() -> None:
    whole = torch.tensor(3)
    check(aten.linspace.Tensor_Tensor, whole, torch.tensor(-4), 5, dtype=torch.float64)
    check(aten.linspace.Tensor_Scalar, whole, 10, 5, dtype=torch.float32)


def test_unsupported_linspace_and_logspace_fall_back() -> None:
    for dtype in (torch.int64, torch.bfloat16):
        check(aten.linspace.Tensor_Tensor, t(0), t(7), 4, dtype=dtype, fallback=True)
        check(aten.logspace.Tensor_Tensor, t(0), t(2), 4, 10.0, dtype=dtype, fallback=True)
    for base in (0.0, -2.0):
        check(aten.logspace.Tensor_Tensor, t(0), t(2), 3, base, dtype=torch.float32, fallback=True)
