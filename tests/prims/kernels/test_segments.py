"""Segments of a dimension, and distances between rows, by hand, with scipy and autograd."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial import distance

from smelt.base.errors import CompileError
from smelt.prims.table import PRIMS
from tests.prims.prim_check import checked, to_meta


def f(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


REDUCE: dict[str, tuple[Callable[..., Any], float]] = {
    "sum": (np.sum, 0.0),
    "prod": (np.prod, 1.0),
    "mean": (np.mean, math.nan),
    "max": (np.max, -math.inf),
    "min": (np.min, math.inf),
}


@pytest.mark.parametrize("reduce", REDUCE)
@pytest.mark.parametrize("lengths", [(2, 0, 4), (6,), (0, 0, 6), (1, 2, 3)])
@pytest.mark.parametrize("inner", [(), (3,)])
def test_segments(reduce: str, lengths: tuple[int, ...], inner: tuple[int, ...]) -> None:
    data, edges = f(6, *inner), np.cumsum((0, *lengths))
    function, empty = REDUCE[reduce]
    rows = [function(data[a:b].numpy(), axis=0) if b > a else np.full(inner, empty) for a, b in pairwise(edges)]
    counts = torch.tensor(lengths)
    got = checked("segment_reduce", data, reduce, counts, None, None, 0, False, None)
    np.testing.assert_allclose(got, np.stack(rows))
    by_edges = checked("segment_reduce", data, reduce, None, None, torch.from_numpy(edges), 0, False, None)
    np.testing.assert_allclose(by_edges, got)
    leaf = data.clone().requires_grad_()
    out = torch.segment_reduce(leaf, reduce, lengths=counts, axis=0)
    grad = torch.randn_like(out)
    (want,) = torch.autograd.grad(out, leaf, grad)
    back = checked("segment_reduce_backward", grad, out.detach(), data, reduce, counts, None, 0, None)
    torch.testing.assert_close(back, want)


def test_segments_of_an_inner_dimension() -> None:
    data, lengths = f(2, 5, 3), torch.tensor([[2, 3, 0], [1, 1, 3]])
    got = checked("segment_reduce", data, "sum", lengths, None, None, 1, False, None)
    assert got.shape == (2, 3, 3)
    torch.testing.assert_close(got[1, 2], data[1, 2:].sum(0))


def test_neither_lengths_nor_offsets() -> None:
    with pytest.raises(CompileError, match="neither lengths nor offsets"):
        PRIMS["segment_reduce"].meta(to_meta(f(3)), "sum", None, None, None, 0, False, None)


NORMS = [0.0, 1.0, 2.0, 2.5, math.inf]


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize(
    ("x", "y"), [((4, 3), (5, 3)), ((2, 4, 3), (2, 1, 3)), ((2, 1, 4, 3), (3, 5, 3)), ((0, 3), (2, 3))]
)
def test_distances_of_pairs(x: tuple[int, ...], y: tuple[int, ...], p: float) -> None:
    a, b = f(*x), f(*y)
    got = checked("cdist", a, b, p, None)
    off = np.abs(a.numpy()[..., :, None, :] - b.numpy()[..., None, :, :])
    want = {0.0: (off != 0).sum(-1), math.inf: off.max(-1)}[p] if p in (0.0, math.inf) else (off**p).sum(-1) ** (1 / p)
    np.testing.assert_allclose(got, want, atol=1e-7)
    grad = torch.randn_like(got)
    checked("cdist_backward", grad, *torch.broadcast_tensors(a, b) if x[-2] == y[-2] else _spread(a, b), p, got)


def _spread(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.expand(*lead, *a.shape[-2:]).contiguous(), b.expand(*lead, *b.shape[-2:]).contiguous()


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_gradients_of_distances(p: float) -> None:
    a, b = f(4, 3).requires_grad_(), f(5, 3)
    out = torch.cdist(a, b, p, "donot_use_mm_for_euclid_dist")
    grad = torch.randn_like(out)
    (want,) = torch.autograd.grad(out, a, grad)
    torch.testing.assert_close(checked("cdist_backward", grad, a.detach(), b, p, out.detach()), want)
    own = torch.pdist(a, p)
    grad = torch.randn_like(own)
    (want,) = torch.autograd.grad(own, a, grad)
    torch.testing.assert_close(checked("pdist_backward", grad, a.detach(), p, own.detach()), want)


@pytest.mark.parametrize("rows", [0, 1, 2, 5])
@pytest.mark.parametrize("p", [1.0, 2.0])
def test_distances_of_rows(rows: int, p: float) -> None:
    x = f(rows, 3)
    want = distance.pdist(x, "minkowski", p=p) if rows > 1 else np.zeros(0)
    np.testing.assert_allclose(checked("pdist", x, p), want)


@pytest.mark.parametrize(("x", "y"), [((4, 3), (4, 2)), ((2, 4, 3), (3, 4, 3))])
def test_rows_that_do_not_fit(x: tuple[int, ...], y: tuple[int, ...]) -> None:
    with pytest.raises(CompileError, match="prim cdist"):
        PRIMS["cdist"].meta(to_meta(f(*x)), to_meta(f(*y)), 2.0, None)
