"""Running extremes, ranks, searches and histograms, against numpy and by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from smelt.base.errors import CompileError
from smelt.graph.ir.meta import meta_of
from smelt.prims.table import PRIMS
from tests.prims.prim_check import checked, to_meta

CPU = torch.device("cpu")
SHAPES = [(3, 4), (1, 5), (5, 1), (0, 3)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_running_extremes(shape: tuple[int, ...], dim: int) -> None:
    x = torch.randint(0, 3, shape).double()
    for name, running, last in (("cummax", np.maximum, np.greater_equal), ("cummin", np.minimum, np.less_equal)):
        values, places = checked(name, x, dim)
        np.testing.assert_array_equal(values, running.accumulate(x.numpy(), axis=dim))
        np.testing.assert_array_equal(np.take_along_axis(x.numpy(), places.numpy(), dim), values)
        before = np.arange(shape[dim]).reshape([-1 if d == dim % 2 else 1 for d in range(2)])
        hits = last(x.numpy(), values.numpy())
        latest = np.maximum.accumulate(np.where(hits, before, -1), axis=dim)
        np.testing.assert_array_equal(places, latest)
    got = checked("logcumsumexp", x, dim)
    np.testing.assert_allclose(got, np.logaddexp.accumulate(x.numpy(), axis=dim))


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize(("shape", "dim"), [((3, 5), 0), ((3, 5), -1), ((1, 4), 1), ((4, 1, 2), 1), ((), 0)])
def test_ranks(shape: tuple[int, ...], dim: int, keepdim: bool) -> None:
    x = torch.randint(0, 4, shape).double()
    axes, ordered = dim if shape else None, np.sort(x.numpy().reshape(shape or (1,)), axis=dim)
    size = ordered.shape[dim]
    for name, k in (("kthvalue", 1), ("kthvalue", size), ("median_dim", (size + 1) // 2)):
        args = (x, k, dim, keepdim) if name == "kthvalue" else (x, dim, keepdim)
        values, places = checked(name, *args)
        want = np.take(ordered, k - 1, axis=dim).reshape(values.shape)
        np.testing.assert_array_equal(values, want)
        assert places.max() < size
    counts = [sorted(row.tolist()) for row in np.moveaxis(x.numpy().reshape(shape or (1,)), dim, -1).reshape(-1, size)]
    most = [max(sorted(set(row)), key=row.count) for row in counts]
    values, _ = checked("mode", x, dim, keepdim)
    assert values.flatten().tolist() == most and (not keepdim or axes is None or values.ndim == x.ndim)


def test_medians_and_nan() -> None:
    x = torch.tensor([[3.0, math.nan, 1.0, 2.0], [4.0, 3.0, 2.0, 1.0]])
    assert checked("median_dim", x, 1, False)[0].isnan().tolist() == [True, False]
    assert checked("nanmedian_dim", x, 1, True)[0].tolist() == [[2.0], [2.0]]
    assert checked("median", x).isnan() and checked("nanmedian", x).item() == 2.0
    assert checked("median", x[1].long()).item() == 2


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("right", [False, True])
def test_searches(right: bool, narrow: bool) -> None:
    edges, x = torch.tensor([1.0, 2.0, 2.0, 4.0]), torch.tensor([[0.0, 2.0, 5.0], [1.0, 3.0, 4.0]])
    want = np.searchsorted(edges.numpy(), x.numpy(), "right" if right else "left")
    dtype = torch.int32 if narrow else torch.int64
    for got in (
        checked("searchsorted", edges, x, narrow, right, None, None),
        checked("bucketize", x, edges, narrow, right),
    ):
        np.testing.assert_array_equal(got, want)
        assert got.dtype is dtype
    number = checked("searchsorted_number", edges, 2.0, narrow, right, None, None)
    assert number.item() == (3 if right else 1) and number.dtype is dtype
    rows = torch.stack([edges, edges + 1])
    found = checked("searchsorted", rows, x, narrow, right, None, None)
    np.testing.assert_array_equal(
        found[1], np.searchsorted(rows[1].numpy(), x[1].numpy(), "right" if right else "left")
    )


@pytest.mark.parametrize("bins", [1, 4])
def test_histograms(bins: int) -> None:
    x = torch.rand(50)
    np.testing.assert_array_equal(checked("histc", x, bins, 0.25, 0.75), np.histogram(x, bins, (0.25, 0.75))[0])
    np.testing.assert_array_equal(checked("histc", x, bins, 0, 0), np.histogram(x.numpy(), bins)[0])


@pytest.mark.parametrize("inverted", [False, True])
def test_membership(inverted: bool) -> None:
    x, tests = torch.arange(6).reshape(2, 3), torch.tensor([4, 1, 9])
    np.testing.assert_array_equal(checked("isin", x, tests, False, inverted), np.isin(x, tests, invert=inverted))
    assert checked("isin", x, torch.zeros(0, dtype=torch.int64), False, inverted).all() == inverted


@pytest.mark.parametrize("size", [0, 2, 5])
def test_indices_that_are_not_zero(size: int) -> None:
    x = torch.tensor([[0, 1, 0], [2, 0, 3]])
    want = (np.argwhere(x.numpy()).tolist() + [[-7, -7]] * 5)[:size]
    assert checked("nonzero_static", x, size, -7).tolist() == want
    assert checked("nonzero_static", x[0], size, 0).shape == (size, 1)
    assert checked("nonzero_static", torch.tensor(3), size, 0).shape == (size, 0)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [(), (0,), (-1,), (0, 1), (1, -2)])
def test_hashes(dim: tuple[int, ...], keepdim: bool) -> None:
    x = torch.randint(-9, 9, (3, 4))
    got = checked("hash_tensor", x, dim, keepdim, 0)
    axes = dim or (0, 1)
    want = x.numpy()
    for axis in sorted((d % 2 for d in axes), reverse=True):
        want = np.bitwise_xor.reduce(want, axis, keepdims=keepdim)
    np.testing.assert_array_equal(got.numpy(), want.astype(np.uint64))
    assert checked("hash_tensor", torch.tensor(5), (), keepdim, 0).shape == ()


@pytest.mark.parametrize(("rows", "columns"), [(3, 4), (4, 3), (1, 1), (0, 3), (3, 0)])
@pytest.mark.parametrize("offset", [-5, -2, -1, 0, 1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_triangles(rows: int, columns: int, offset: int, dtype: torch.dtype) -> None:
    for name, indices in (("tril_indices", np.tril_indices), ("triu_indices", np.triu_indices)):
        got = checked(name, rows, columns, offset, dtype, torch.strided, CPU)
        np.testing.assert_array_equal(got, np.stack(indices(rows, offset, columns)))


X = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("searchsorted", (torch.ones(3, 4), X, False, False, None, None)),
        ("searchsorted_number", (X, 1.0, False, False, None, None)),
        ("bucketize", (X, X, False, False)),
    ],
)
def test_wrong_operands(name: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(CompileError, match=f"prim {name}"):
        PRIMS[name].meta(*map(to_meta, args))


def test_results_are_dense() -> None:
    turned = meta_of(X.t())
    assert [m.stride for m in PRIMS["cummax"].meta(turned, 0)] == [(2, 1), (2, 1)]
