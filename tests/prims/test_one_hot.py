"""A sum over classes of what one class has is that value, bit for bit, also where no class has the index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.prims.builder import Builder
from tests.prims.test_simplify import CPU, built

INDEX = torch.tensor([[2, 0], [-1, 4], [5, 1]])
VALUE = torch.tensor([[1.3, -0.0], [2.0, float("nan")], [3.0, float("inf")]])
CLASSES = 5


def one_hot(p: Builder, index: Any, value: Any, dim: int = 2, swapped: bool = False) -> Any:
    shape = [3, 2]
    shape.insert(dim, CLASSES)
    classes = p.broadcast_in_dim(p.iota(CLASSES, 0, 1, torch.int64, CPU), tuple(shape), (dim,))
    at = p.spread(index, shape, (dim,))
    spread = p.spread(value, shape, (dim,)) if not isinstance(value, float) else value
    hit = p.eq(at, classes) if swapped else p.eq(classes, at)
    return p.where(hit, spread, 0.0 if not isinstance(value, float) else p.full(shape, 0.0, torch.float32, CPU))


def rounded(p: Builder, x: Any) -> Any:
    return p.convert(p.convert(x, torch.bfloat16), torch.float32)


FORMS: dict[str, Callable[[Builder, Any, Any], Any]] = {
    "last": lambda p, i, v: p.sum(one_hot(p, i, v), (2,)),
    "swapped": lambda p, i, v: p.sum(one_hot(p, i, v, swapped=True), (2,)),
    "first": lambda p, i, v: p.sum(one_hot(p, i, v, 0), (0,)),
    "middle": lambda p, i, v: p.sum(one_hot(p, i, v, 1), (1,)),
    "rounded": lambda p, i, v: p.sum(rounded(p, one_hot(p, i, v)), (2,)),
    "whole": lambda p, i, v: p.sum(one_hot(p, i, p.convert(p.ne(v, 0.0), torch.int64)), (2,)),
}


def exact(make: Callable[..., Any]) -> torch.Tensor:
    """The sum as it is written: of a copy, which no rule looks through."""

    def copied(p: Builder, i: Any, v: Any) -> Any:
        total = p.sum
        p.sum = lambda x, dims: total(p.neg(p.clone(p.neg(x))), dims)  # type: ignore[method-assign]
        return make(p, i, v)

    names, value = built(copied, INDEX, VALUE)
    assert "sum" in names
    return value


@pytest.mark.parametrize("name", FORMS)
def test_the_sum_is_the_value(name: str) -> None:
    names, value = built(FORMS[name], INDEX, VALUE)
    want = exact(FORMS[name])
    assert "sum" not in names and value.dtype is want.dtype
    torch.testing.assert_close(value, want, rtol=0, atol=0, equal_nan=True)
    if value.dtype.is_floating_point:
        assert torch.equal(value.signbit() & ~value.isnan(), want.signbit() & ~want.isnan())


OTHERS: dict[str, Callable[[Builder, Any, Any], Any]] = {
    "another dimension": lambda p, i, v: p.sum(one_hot(p, i, v), (1,)),
    "two dimensions": lambda p, i, v: p.sum(one_hot(p, i, v), (1, 2)),
    "values of each class": lambda p, i, v: p.sum(p.mul(one_hot(p, i, v), 2.0), (2,)),
    "the largest": lambda p, i, v: p.amax(one_hot(p, i, v), (2,)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_sums_stay(name: str) -> None:
    names, _ = built(OTHERS[name], INDEX, VALUE)
    assert {"sum", "amax"} & set(names)


@pytest.mark.parametrize(
    "index, classes",
    [
        (torch.tensor([2.5, 3.0, -0.0, float("nan"), float("inf")]), torch.arange(8.0)),
        (torch.tensor([2.5, 3.0, 2048.0, 2049.0, 1.0], dtype=torch.float16), torch.arange(9, dtype=torch.float16)),
        (torch.tensor([2, 3, 0, 255, 1], dtype=torch.uint8), torch.arange(256).to(torch.uint8)),
        (torch.tensor([2, 3, -1, 127, -128], dtype=torch.int8), torch.arange(100, dtype=torch.int8)),
    ],
)
def test_only_distinguished_integers_count(index: torch.Tensor, classes: torch.Tensor) -> None:
    def chosen(index: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        classes_here = torch.arange(len(classes), dtype=classes.dtype)
        return torch.where(classes_here == index[:, None], value[:, None], 0.0).sum(1)

    value = torch.tensor([1.5, -2.0, 3.0, 4.0, 5.0])
    torch.testing.assert_close(smelt.compile(chosen)(index, value), chosen(index, value), rtol=0, atol=0)
