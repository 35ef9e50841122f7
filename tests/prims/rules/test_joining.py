"""Several tensors put into one, against eager."""

from __future__ import annotations

import pytest
import torch

from tests.prims.aten_check import check

aten = torch.ops.aten


@pytest.mark.parametrize(
    "shapes", [[(2, 3)], [(2, 3), (1, 1), (3, 1)], [(2,), (), (1, 3)], [(0, 2), (2, 0), (1, 1)], [(), ()]]
)
def test_blocks(shapes: list[tuple[int, ...]]) -> None:
    check(aten.block_diag.default, [torch.randn(shape) for shape in shapes])
    dtypes = (torch.int64, torch.bool, torch.float64)
    check(aten.block_diag.default, [torch.ones(s).to(d) for s, d in zip(shapes, dtypes, strict=False)])


@pytest.mark.parametrize("chunks", [1, 2, 3, 5])
@pytest.mark.parametrize("dim", [0, 1])
def test_slices_side_by_side(chunks: int, dim: int) -> None:
    lead = (3,) if dim else ()
    shapes = [(*lead, n, *rest) for n, rest in ((4, ()), (1, (2,)), (5, (2, 3)), (6, (1,)))]
    tensors = [torch.randn(shape) for shape in shapes]
    check(aten._chunk_cat.default, tensors, dim, chunks)
    check(aten._chunk_cat.default, tensors[2:], dim, chunks)
    check(aten._chunk_cat.default, [t.bfloat16() for t in tensors], dim, chunks)
