"""Sums at places that meet, in types that no GPU adds atomically, against eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import smelt

pytest.importorskip("triton")

ROWS = torch.tensor([0, 2, 0, 1, 2, 0, 0, 1, 2])
PLACES = torch.stack([ROWS, ROWS.flip(0), ROWS.roll(1), ROWS], 1)
SUMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "scatter_add": lambda base, x: base.scatter_add(0, PLACES, x),
    "index_add": lambda base, x: base.index_add(0, ROWS, x),
    "index_put": lambda base, x: base.index_put((ROWS,), x, accumulate=True),
    "in place": lambda base, x: base.clone().index_put_((ROWS,), x, accumulate=True),
    "computed": lambda base, x: (base == 0).to(base.dtype).scatter_add(0, PLACES, (x != 0).to(x.dtype)),
}
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows": lambda x: x,
    "transposed": lambda x: x.t().contiguous().t(),
    "with gaps": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
    "expanded": lambda x: x[:, :1].expand_as(x),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16])
def test_narrow_sums(name: str, dtype: torch.dtype, layout: str):
    """Modulo 2^width as in eager, where 9 times 100 does not fit; of bools, whether one of them holds."""
    torch.manual_seed(0)
    high = 2 if dtype is torch.bool else 120 if dtype.itemsize == 1 else 30000
    base, x = (LAYOUTS[layout](torch.randint(0, high, (n, 4)).to(dtype)) for n in (3, 9))
    want = SUMS[name](base.contiguous(), x)
    got = smelt.compile(SUMS[name], options={"target": "triton"})(base.contiguous(), x)
    assert got.dtype is dtype and torch.equal(got, want)


ELEMENTS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "scatter_add": lambda base, places, x: base.scatter_add(0, places, x),
    "index_add": lambda base, places, x: base.index_add(0, places, x),
    "index_put": lambda base, places, x: base.index_put((places,), x, accumulate=True),
    "put": lambda base, places, x: base.put(places, x, accumulate=True),
    "one column": lambda base, places, x: base[:, None].index_add(0, places, x[:, None]),
}


@pytest.mark.parametrize("name", ELEMENTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 4, 3000])
def test_many_elements_of_one_index(name: str, dtype: torch.dtype, size: int):
    """As exact as the sum as a tree by which eager adds them on a GPU: the last digit of the result."""
    torch.manual_seed(0)
    base, places, x = torch.zeros(size, dtype=dtype), torch.zeros(1000, dtype=torch.int64), torch.rand(1000).to(dtype)
    want = ELEMENTS[name](base.double(), places, x.double())
    got = smelt.compile(ELEMENTS[name], options={"target": "triton"})(base, places, x)
    assert got.dtype is dtype and torch.equal(got, want.to(dtype))
