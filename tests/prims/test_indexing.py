"""Reads and writes at data-dependent places, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from smelt.base.errors import CompileError
from smelt.prims.table import PRIMS
from tests.prims.prim_check import checked, to_meta

DTYPES = [torch.int32, torch.int64]


def numbered(*shape: int) -> torch.Tensor:
    return torch.arange(float(np.prod(shape, dtype=int)), dtype=torch.float64).reshape(shape)


def places(high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(0, high, shape, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_gather_and_index_select(dtype: torch.dtype, dim: int, count: int) -> None:
    x = numbered(3, 4, 5)
    shape = [3, 4, 5]
    shape[dim] = count
    index = places(x.shape[dim], *shape, dtype=dtype)
    got = checked("gather", x, dim, index)
    np.testing.assert_array_equal(got, np.take_along_axis(x.numpy(), index.numpy().astype(np.int64), dim))
    row = places(x.shape[dim], count, dtype=dtype)
    np.testing.assert_array_equal(checked("index_select", x, dim, row), np.take(x.numpy(), row.numpy(), dim))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1])
def test_scatters(dtype: torch.dtype, dim: int) -> None:
    x, src = numbered(4, 5), -numbered(3, 3) - 1
    index = torch.tensor([[0, 3, 1], [2, 0, 3], [1, 2, 0]], dtype=dtype)
    wanted = x.numpy().copy()
    for (i, j), to in np.ndenumerate(index.numpy()):
        wanted[(to, j) if dim == 0 else (i, to)] = src[i, j]
    np.testing.assert_array_equal(checked("scatter", x, dim, index, src), wanted)
    index[:, :2] = 1  # several meet
    wanted = x.numpy().copy()
    for (i, j), to in np.ndenumerate(index.numpy()):
        wanted[(to, j) if dim == 0 else (i, to)] += float(src[i, j])
    np.testing.assert_array_equal(checked("scatter_add", x, dim, index, src), wanted)
    assert x[0, 1] == 1  # the operand is as it was


INDICES: list[tuple[Any, ...]] = [
    (places(3, 2), None, None),
    (None, places(4, 2, 3), None),
    (None, places(4, 2), places(5, 2)),
    (places(3, 2, 2), places(4, 2, 2), None),
    (places(3, 2), None, places(5, 2)),
    (places(3, 1), places(4, 1), places(5, 1)),
    (None, None, places(5)),
    (torch.tensor([-1, -3]), None, None),
    (None, torch.tensor([], dtype=torch.int64), None),
]


def as_numpy(indices: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(slice(None) if i is None else i.numpy() for i in indices)


@pytest.mark.parametrize("indices", INDICES, ids=range(len(INDICES)))
def test_index_and_index_put(indices: tuple[Any, ...]) -> None:
    x = numbered(3, 4, 5)
    picked = x.numpy()[as_numpy(indices)]
    np.testing.assert_array_equal(checked("index", x, indices), picked)
    values = torch.from_numpy(np.asarray(-1.0 - np.arange(picked.size).reshape(picked.shape)))
    added = x.numpy().copy()
    np.add.at(added, as_numpy(indices), values.numpy())
    np.testing.assert_array_equal(checked("index_put", x, indices, values, True), added)
    one = torch.full_like(values, -1.0)
    put = x.numpy().copy()
    put[as_numpy(indices)] = -1
    np.testing.assert_array_equal(checked("index_put", x, indices, one, False), put)


def test_index_put_of_a_transposed_operand() -> None:
    x, rows = numbered(4, 3).t(), torch.tensor([2, 0])
    wanted = x.numpy().copy()
    wanted[[2, 0]] = 9
    np.testing.assert_array_equal(
        checked("index_put", x, (rows, None), torch.full((2, 4), 9.0).double(), False), wanted
    )


@pytest.mark.parametrize(
    ("starts", "stops", "steps"), [((0, 1), (4, 5), (1, 2)), ((3, 0), (3, 5), (1, 1)), ((1, 2), (4, 3), (2, 1))]
)
def test_slice_scatter(starts: tuple[int, ...], stops: tuple[int, ...], steps: tuple[int, ...]) -> None:
    x = numbered(4, 5)
    at = tuple(map(slice, starts, stops, steps))
    wanted = x.numpy().copy()
    src = -1 - numbered(*wanted[at].shape)
    wanted[at] = src
    np.testing.assert_array_equal(checked("slice_scatter", x, src, starts, stops, steps), wanted)
    assert x[1, 1] == 6


X, LONG, INT8 = numbered(3, 4), places(3, 2, 4), places(3, 2, 4, dtype=torch.int8)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("gather", (X, 0, INT8)),
        ("gather", (X, 0, LONG[0])),
        ("index_select", (X, 0, LONG)),
        ("index_select", (X, 0, INT8[0])),
        ("scatter", (X, 0, LONG, X[:1])),
        ("scatter", (X, 0, LONG, X[:2].float())),
        ("scatter", (X, 0, INT8, X[:2])),
        ("scatter_add", (X, 0, LONG, X[:1])),
        ("scatter_add", (X, 0, LONG, X[:2].float())),
        ("scatter_add", (X, 0, INT8, X[:2])),
        ("index", (X, (None, None))),
        ("index", (X, (INT8, None))),
        ("index", (X, (LONG, LONG[0]))),
        ("index_put", (X, (LONG[0], None), X[:2], False)),
        ("index_put", (X, (LONG[0, :2], None), X[:2].float(), False)),
        ("slice_scatter", (X, X, (0, 0), (2, 4), (1, 1))),
        ("slice_scatter", (X, X.float(), (0, 0), (3, 4), (1, 1))),
    ],
)
def test_wrong_operands(name: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(CompileError, match=f"prim {name}"):
        PRIMS[name].meta(*map(to_meta, args))
