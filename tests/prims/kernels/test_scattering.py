"""Reductions of what meets at one place, by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from smelt.base.errors import CompileError
from smelt.graph.ir.meta import meta_of
from smelt.prims.table import PRIMS
from tests.prims.prim_check import checked, to_meta

REDUCE: dict[str, Callable[[list[float]], float]] = {
    "sum": sum,
    "prod": math.prod,
    "mean": lambda v: sum(v) / len(v),
    "amax": max,
    "amin": min,
}


def by_hand(x: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, reduce: str, own: bool) -> torch.Tensor:
    met: dict[tuple[int, ...], list[float]] = {}
    for at, to in np.ndenumerate(index.numpy()):
        place = tuple(int(to) if d == dim else i for d, i in enumerate(at))
        met.setdefault(place, [x[place].item()] if own else []).append(src[at].item())
    result = x.clone()
    for place, values in met.items():
        result[place] = REDUCE[reduce](values)
    return result


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("reduce", REDUCE)
@pytest.mark.parametrize("dim", [0, 1])
def test_scatter_reduce(dim: int, reduce: str, own: bool) -> None:
    x, src = torch.randn(4, 5, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)
    for index in (torch.tensor([[0, 3, 1], [2, 3, 3], [1, 3, 0]]), torch.zeros(0, 3, dtype=torch.int64)):
        got = checked("scatter_reduce", x, dim, index, src, reduce, own)
        torch.testing.assert_close(got, by_hand(x, dim, index, src, reduce, own))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("reduce", [name for name in REDUCE if name != "sum"])
@pytest.mark.parametrize("dim", [0, 1])
def test_index_reduce(dim: int, reduce: str, own: bool) -> None:
    x, rows = torch.randn(4, 5, dtype=torch.float64), torch.tensor([1, 3, 1])
    src = torch.randn((3, 5) if dim == 0 else (4, 3), dtype=torch.float64)
    index = (rows[:, None] if dim == 0 else rows[None]).expand(src.shape)
    got = checked("index_reduce", x, dim, rows, src, reduce, own)
    torch.testing.assert_close(got, by_hand(x, dim, index, src, reduce, own))


@pytest.mark.parametrize("name", ["scatter_reduce", "index_reduce"])
def test_wrong_operands(name: str) -> None:
    x, index = torch.ones(3), torch.tensor([0, 1])
    for src, reduce in ((torch.ones(2).double(), "prod"), (torch.ones(2), "median")):
        args: tuple[Any, ...] = (x, 0, index, src, reduce, True)
        with pytest.raises(CompileError, match=f"prim {name}"):
            PRIMS[name].meta(*map(to_meta, args))


def test_the_result_has_the_layout_of_the_operand() -> None:
    x, index = torch.ones(3, 4).t(), torch.zeros(4, 3, dtype=torch.int64)
    for name, at in (("scatter_reduce", index), ("index_reduce", index[:, 0])):
        assert PRIMS[name].meta(meta_of(x), 0, meta_of(at), meta_of(x), "prod", True).stride == (1, 4)
