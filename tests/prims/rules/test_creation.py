"""Constants, ranges and triangles against eager, at sizes 0 and 1 and beyond."""

from __future__ import annotations

import pytest
import torch

from tests.prims.aten_check import check
from tests.prims.prim_check import names

aten = torch.ops.aten
DTYPES = [torch.float64, torch.bfloat16, torch.int64, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [[], [0], [1, 3]])
def test_constants(shape: list[int], dtype: torch.dtype) -> None:
    x = torch.ones(shape, dtype=torch.int32)
    check(aten.zeros.default, shape, dtype=dtype)
    check(aten.ones.default, shape, dtype=dtype)
    check(aten.full.default, shape, 3, dtype=dtype)
    check(aten.zeros_like.default, x, dtype=dtype)
    check(aten.ones_like.default, x, dtype=dtype)
    check(aten.full_like.default, x, 3, dtype=dtype)
    check(aten.new_zeros.default, x, [2, 2], dtype=dtype)
    check(aten.new_ones.default, x, [2, 2], dtype=dtype)
    check(aten.new_full.default, x, [2, 2], 3, dtype=dtype)
    check(aten.fill.Scalar, x.to(dtype), 2)
    check(aten.fill.Tensor, x.to(dtype), torch.tensor(2.75))


def test_memory_without_values_is_zero() -> None:
    for op, *args in (
        (aten.empty.memory_format, [2, 3]),
        (aten.empty_like.default, torch.ones(2, 3)),
        (aten.new_empty.default, torch.ones(1), [2, 3]),
        (aten.empty_strided.default, [2, 3], [1, 2]),
        (aten.new_empty_strided.default, torch.ones(1), [2, 3], [1, 2]),
        (aten.empty_permuted.default, [2, 3], [1, 0]),
    ):
        prims = check(op, *args)
        assert not prims(*(a for a in args if isinstance(a, torch.Tensor)), torch.tensor(0))[0].any()


@pytest.mark.parametrize("dtype", [None, torch.float64, torch.int32, torch.bfloat16], ids=str)
def test_ranges(dtype: torch.dtype | None) -> None:
    for stop in (0, 1, 5, 4.5, 0.3):
        check(aten.arange.default, stop, dtype=dtype)
    for start, stop in ((2, 2), (-3, 4), (0.5, 4.5), (7, 8)):
        check(aten.arange.start, start, stop, dtype=dtype)
    for start, stop, step in ((5, -4, -3), (0, 1, 2), (1, 9, 3)):
        check(aten.arange.start_step, start, stop, step, dtype=dtype)
    for start, stop, step in ((0.5, 3, 0.25), (2.9, 6.1, 1.9)):
        check(aten.arange.start_step, start, stop, step, dtype=dtype)


def test_ranges_of_large_whole_numbers() -> None:
    check(aten.arange.start_step, 2**62, 2**62 + 9, 3)


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 6, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_evenly_spaced(steps: int, dtype: torch.dtype) -> None:
    for start, stop in ((0.0, 1.0), (3, -2.5), (2.0, 2.0), (-100.0, 300.0)):
        prims = check(aten.linspace.default, start, stop, steps, dtype=dtype)
        if steps > 1:
            assert prims(torch.tensor(0))[0][-1] == torch.tensor(stop, dtype=dtype)
    for base in (10.0, 2.0, 0.5):
        check(aten.logspace.default, -1.0, 2.0, steps, base, dtype=dtype, scale=50.0)


def test_spaced_numbers_that_stay_eager() -> None:
    check(aten.linspace.default, 0, 7, 4, dtype=torch.int64, fallback=True)
    check(aten.logspace.default, 0.0, 2.0, 3, -2.0, dtype=torch.float32, fallback=True)
    check(aten.logspace.default, 0.0, 2.0, 3, 0.0, dtype=torch.float32, fallback=True)
    check(aten.logspace.default, 0.0, 2.0, 3, 10.0, dtype=torch.bfloat16, fallback=True)


@pytest.mark.parametrize("shape", [(0, 0), (1, 1), (3, 3), (2, 4), (4, 2), (3, 0), (2, 0, 3), (2, 3, 4)])
@pytest.mark.parametrize("diagonal", [-4, -1, 0, 1, 4])
def test_triangles(shape: tuple[int, ...], diagonal: int) -> None:
    for dtype in DTYPES:
        x = torch.randn(shape).to(dtype)
        check(aten.triu.default, x, diagonal)
        check(aten.tril.default, x, diagonal)
    nan = torch.full(shape, torch.nan)
    check(aten.triu.default, nan, diagonal)  # what is not kept is 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_eye(dtype: torch.dtype) -> None:
    for n in (0, 1, 3):
        check(aten.eye.default, n, dtype=dtype)
    for n, m in ((2, 3), (3, 2), (0, 2), (2, 0)):
        assert "eq" in names(check(aten.eye.m, n, m, dtype=dtype)) or 0 in (n, m)


@pytest.mark.parametrize("shape", [(3,), (0,), (1,), (2, 3), (2, 0, 3)])
@pytest.mark.parametrize("offset", [-2, -1, 0, 1, 3])
def test_diagonals(shape: tuple[int, ...], offset: int) -> None:
    x = torch.randn(shape)
    rank = len(shape) + 1
    for dim1, dim2 in ((-2, -1), (-1, -2), (0, 1), (1, 0), (0, -1), (rank - 1, 0)):
        if dim1 % rank != dim2 % rank:
            check(aten.diag_embed.default, x, offset, dim1, dim2)
    check(aten.diag_embed.default, torch.ones(shape, dtype=torch.bool), offset)
