"""`resize_()` of what a function has computed: the memory stays, and with it the elements that are not shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt


def _smaller(x: Tensor) -> Tensor:
    y = x * 2
    y.resize_(3)
    return y


def _nothing(x: Tensor) -> Tensor:
    y = x * 2
    y.resize_(0)
    return y


def _and_back(x: Tensor) -> Tensor:
    y = x * 2
    y.resize_(0)
    y.resize_(2, 3)
    return y


def _part(x: Tensor) -> Any:
    y = x * 2
    part = y[2:]
    part.resize_(1)
    return y, part


def _larger(x: Tensor) -> Tensor:
    y = x * 2
    y.resize_(0)
    y.resize_(1000)
    y[6:] = 1
    return y


def _read(x: Tensor) -> Tensor:
    y = x * 2
    y.resize_(3)
    return y + 1


def _written(x: Tensor) -> Tensor:
    y = x * 2
    y.resize_(3)
    y.mul_(5)
    y.resize_(6)
    return y


def _from_empty(x: Tensor) -> Tensor:
    y = x.new_empty(0)
    y.resize_(3)
    y.fill_(2)
    return y * x[:3]


PROGRAMS: list[Callable[[Tensor], Any]] = [
    *(_smaller, _nothing, _and_back, _part, _larger, _read, _written, _from_empty)
]


def _shown(results: Any) -> Any:
    results = results if isinstance(results, tuple) else (results,)
    return [(tuple(y.shape), y.stride(), y.untyped_storage().nbytes(), y.tolist()) for y in results]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__.strip("_"))
def test_resized(f: Callable[[Tensor], Any], grad: bool) -> None:
    run = smelt.compile(f)
    for _ in range(2):
        x = torch.arange(6.0).requires_grad_(grad)
        try:
            expected = f(x)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=str(error)[:30]):
                run(x)
            continue
        assert _shown(run(x)) == _shown(expected)


@pytest.mark.parametrize("f", [_smaller, _nothing, _read], ids=lambda f: f.__name__.strip("_"))
def test_the_caller_gets_the_elements_back(f: Callable[[Tensor], Tensor]) -> None:
    x = torch.arange(6.0)
    expected, given, held = f(x), smelt.compile(f)(x), smelt.compile(f)(x)
    count = expected.untyped_storage().nbytes() // 4
    assert torch.equal(given.resize_(count), expected.resize_(count))
    given.resize_(1000).fill_(7)
    assert torch.equal(held, f(x))
