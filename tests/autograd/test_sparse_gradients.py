"""Gradients of embeddings with `sparse=True`: sparse tensors as in eager, also where several meet."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt

PLACES = torch.tensor([1, 2, 3, 3, 4, 9])
CASES = [
    (mode, padding, last, weighted)
    for mode, padding, last, weighted in itertools.product(("sum", "mean"), (None, 3), (False, True), (False, True))
    if not weighted or mode == "sum"
]


def gradients(fn: Callable[..., Any], *inputs: torch.Tensor) -> list[torch.Tensor | None]:
    """The gradients of fresh leaves with the values of `inputs`."""
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    fn(*leaves).sin().sum().backward()
    return [x.grad for x in leaves if x.is_floating_point()]


def check(fn: Callable[..., Any], *inputs: torch.Tensor, backend: str = "aot_eager") -> None:
    for ours, eager in zip(gradients(smelt.compile(fn, backend=backend), *inputs), gradients(fn, *inputs), strict=True):
        assert (ours is None) == (eager is None)
        if ours is None or eager is None:
            continue
        assert ours.layout is eager.layout and ours.shape == eager.shape
        if ours.layout is torch.sparse_coo:
            ours, eager = ours.coalesce(), eager.coalesce()
            assert torch.equal(ours.indices(), eager.indices())
            ours, eager = ours.values(), eager.values()
        torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("mode", "padding", "last", "weighted"), CASES)
def test_bags(mode: str, padding: int | None, last: bool, weighted: bool, dtype: torch.dtype) -> None:
    offsets = torch.tensor([0, 2, 2, 5] + [6] * last)

    def fn(weight: torch.Tensor, places: torch.Tensor, offsets: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(
            places,
            weight,
            offsets,
            mode=mode,
            sparse=True,
            padding_idx=padding,
            include_last_offset=last,
            per_sample_weights=factors if weighted else None,
        )

    check(fn, torch.randn(10, 4, dtype=dtype), PLACES, offsets, torch.rand(6, dtype=dtype))


def test_a_compiled_bag() -> None:
    def fn(weight: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(places.view(2, 3), weight * 1, mode="sum") + F.embedding_bag(
            places.view(2, 3), weight, mode="mean", sparse=True
        )

    check(fn, torch.randn(10, 4), PLACES, backend="smelt")


def test_an_embedding_and_a_bag_of_one_weight() -> None:
    def fn(weight: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        bags = F.embedding_bag(places, weight, torch.tensor([0, 2]), mode="sum", sparse=True)
        return bags.sum() + F.embedding(places, weight, sparse=True)

    check(fn, torch.randn(10, 4), PLACES)


def test_with_a_dense_use_the_gradient_is_dense() -> None:
    def fn(weight: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return F.embedding(places, weight, sparse=True) + weight.sum()

    check(fn, torch.randn(10, 4), PLACES)


def test_through_a_computed_weight_the_gradient_is_dense() -> None:
    check(lambda w, places: F.embedding_bag(places.view(2, 3), w, sparse=True, mode="sum"), torch.randn(10, 4), PLACES)
