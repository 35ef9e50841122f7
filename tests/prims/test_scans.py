"""Running sums and products, orders along a dimension, against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from smelt.base.errors import CompileError
from smelt.graph.ir.meta import meta_of
from smelt.prims import ops
from tests.prims.prim_check import checked

SHAPES = [(3, 4), (1, 5), (0, 3), (3, 0), (7, 1)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_running(name: str, dim: int, shape: tuple[int, int]) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    np.testing.assert_allclose(checked(name, x, dim), getattr(np, name)(x.numpy(), axis=dim))
    whole = torch.full(shape, 100, dtype=torch.int8)  # it wraps
    want = getattr(np, name)(whole.numpy(), axis=dim, dtype=np.int8)
    np.testing.assert_array_equal(checked(name, whole, dim), want)


def test_a_running_sum_of_zeros_is_zero() -> None:
    assert ops.cumsum.facts.linear_in == (0,) and not ops.cumsum(torch.zeros(3), 0).any()


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_sort(dim: int, descending: bool) -> None:
    x = torch.tensor([[2.0, math.nan, -1.0], [2.0, 0.0, 5.0], [-3.0, 0.0, math.inf]])
    values, places = checked("sort", x, dim, descending, True)
    key = -x.numpy() if descending else x.numpy()
    if descending:  # NaN counts as the largest
        key = np.where(np.isnan(key), -np.inf, key)
        key = np.where(x.numpy() == np.inf, -1e30, key)
    want = np.argsort(key, axis=dim, kind="stable")
    np.testing.assert_array_equal(places, want)
    np.testing.assert_array_equal(values, np.take_along_axis(x.numpy(), want, dim))


def test_equal_elements_keep_their_order() -> None:
    x = torch.tensor([1, 0] * 40)
    for descending in (False, True):
        _, places = ops.sort(x, 0, descending, True)
        halves = places[:40], places[40:]
        assert all(torch.equal(half, half.sort()[0]) for half in halves)


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize(("dim", "k"), [(0, 0), (0, 3), (1, 1), (1, 4)])
def test_topk(dim: int, k: int, largest: bool) -> None:
    x = torch.randn(3, 4)
    values, places = checked("topk", x, k, dim, largest, True)
    order = np.sort(x.numpy(), axis=dim)
    order = np.flip(order, dim) if largest else order
    np.testing.assert_array_equal(values, np.take(order, np.arange(k), dim))
    np.testing.assert_array_equal(np.take_along_axis(x.numpy(), places.numpy(), dim), values)


@pytest.mark.parametrize(("shape", "k"), [((3, 4), 4), ((3, 4), -1), ((), 1)])
def test_topk_of_more_than_there_are(shape: tuple[int, ...], k: int) -> None:
    with pytest.raises(CompileError, match="prim topk"):
        ops.topk.meta(meta_of(torch.ones(shape)), k, 0, True, True)
