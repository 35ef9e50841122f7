"""Embedding lookup and its gradient, against eager."""

from __future__ import annotations

import pytest
import torch

from tests.prims.aten_check import check
from tests.prims.prim_check import names

aten = torch.ops.aten


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_lookup(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    places = torch.randint(0, 4, shape, dtype=dtype)
    assert set(names(check(aten.embedding.default, torch.randn(4, 3), places))) <= {"index", "full"}
    check(aten.embedding.default, torch.randn(4, 3).bfloat16(), places, 2)
    check(aten.embedding.default, torch.randn(4, 0), places)


@pytest.mark.parametrize("by_frequency", [False, True])
@pytest.mark.parametrize("padding", [-1, 0, 3])
@pytest.mark.parametrize("shape", [(0,), (1,), (6,), (2, 5)])
def test_gradient(shape: tuple[int, ...], padding: int, by_frequency: bool) -> None:
    places = torch.randint(0, 4, shape)
    for dtype, scale in ((torch.float64, 1.0), (torch.bfloat16, 3.0)):
        g = torch.randn(*shape, 3).to(dtype)
        if dtype is torch.float64 or not by_frequency:
            check(aten.embedding_dense_backward.default, g, places, 5, padding, by_frequency, scale=scale)


def test_rows_that_were_not_looked_up_are_zero() -> None:
    g, places = torch.ones(3, 2), torch.tensor([1, 1, 3])
    got = check(aten.embedding_dense_backward.default, g, places, 4, -1, False)(g, places, torch.tensor(0))[0]
    assert got.tolist() == [[0, 0], [2, 2], [0, 0], [1, 1]]
