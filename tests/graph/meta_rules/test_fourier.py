"""The strides of Fourier transforms, against the real operators."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from smelt.graph.meta_rules.infer import infer_meta
from smelt.graph.trace.trace import trace_like

aten = torch.ops.aten
DIMS = [list(d) for n in (1, 2, 3) for d in itertools.permutations(range(3), n)]


def compare(op: Any, x: torch.Tensor, *rest: Any) -> None:
    layout, real = infer_meta(op, (trace_like(x), *rest), {}), op(x, *rest)
    assert (layout.val.shape, layout.val.dtype, layout.val.stride) == (tuple(real.shape), real.dtype, real.stride())


@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)], ids=str)
def test_order_of_dimensions(dims: list[int], order: tuple[int, ...]) -> None:
    x = torch.randn(4, 5, 6).permute(order)
    wide = torch.randn(4, 5, 6, dtype=torch.complex64).permute(order)
    compare(aten._fft_r2c.default, x, dims, 0, True)
    compare(aten._fft_r2c.default, x, dims, 0, False)
    compare(aten._fft_c2c.default, wide, dims, 0, True)
    compare(aten._fft_c2r.default, wide, dims, 0, 2 * wide.shape[dims[-1]] - 2)
    compare(aten._fft_c2r.default, wide, dims, 0, 2 * wide.shape[dims[-1]] - 1)


def test_lengths_of_one_and_repeated_elements() -> None:
    compare(aten._fft_r2c.default, torch.randn(1, 5, 6), [0, 1, 2], 0, True)
    compare(aten._fft_r2c.default, torch.randn(4, 1, 6).expand(4, 5, 6), [0, 2], 0, True)
    compare(aten._fft_c2r.default, torch.randn(4, 1, dtype=torch.complex64), [0, 1], 0, 1)


def test_eigenvectors_are_columns() -> None:
    x = torch.randn(2, 4, 4)
    layouts, real = infer_meta(aten.linalg_eig.default, (trace_like(x),), {}), torch.linalg.eig(x)
    assert [layout.val.stride for layout in layouts] == [r.stride() for r in real]
