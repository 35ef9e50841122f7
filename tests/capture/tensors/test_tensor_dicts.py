"""`tensor.__dict__`: what is written there and what is written as an attribute are one, for all who hold the tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from tests.capture.harness import compiled


@smelt.disable
def opaque(*args: Any) -> Any:
    return args


def of_a_result(x: Tensor) -> Any:
    y: Any = x * 2
    y.__dict__["k"] = 3
    return y


def of_a_view(x: Tensor) -> Any:
    y: Any = x.view(2, 1)
    vars(y)["k"] = x
    return y, y.k is x


def of_a_parameter(x: Tensor) -> Any:
    y: Any = torch.nn.Parameter(x * 2)
    y.__dict__.update(k=3, l=x)
    return y, y.l


def deleted(x: Tensor) -> Any:
    y: Any = x * 2
    y.k = 3
    del y.__dict__["k"]
    return y, hasattr(y, "k"), getattr(y, "k", 7)


def written_both_ways(x: Any) -> Any:
    d = x.__dict__
    x.a = 1
    d["c"] = x * 2
    x.c = x.c + d["c"]
    return d, d.pop("c"), list(d), d is x.__dict__


def read_before(x: Any) -> Any:
    x.k = 1
    opaque()
    first = x.k
    x.__dict__["k"] = 5
    return first, x.k, x.__dict__.pop("k"), hasattr(x, "k")


def deleted_both_ways(x: Any) -> Any:
    x.k = 1
    opaque()
    d = x.__dict__
    d["k"] += x.k
    del x.k
    x.m = x * d.get("k", 5)
    return d, x.m


def cleared(x: Any) -> Any:
    x.k = [1]
    opaque()
    d = x.__dict__
    d["k"].append(x.k[0] + 1)
    d.clear()
    return hasattr(x, "k"), d


def missing(x: Tensor) -> Any:
    y: Any = x * 2
    out = []
    for each in (x, y):
        try:
            each.k  # noqa: B018
        except AttributeError as error:
            out.append((str(error), error.name))
    return y, out


def missing_by_now(x: Any) -> Any:
    x.k = 1
    opaque()
    try:
        return x.__dict__.pop("k"), x.k
    except AttributeError as error:
        return str(error)


def a_circle(x: Tensor) -> Any:
    y: Any = x * 2
    d = y.__dict__
    d["me"] = y
    opaque(d)
    d["n"] = y + 1
    return y.me is y, y.n


FUNCTIONS = [
    of_a_result, of_a_view, of_a_parameter, deleted, written_both_ways, read_before, deleted_both_ways, cleared,
    missing, missing_by_now, a_circle,
]  # fmt: skip


def plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return type(value).__name__, value.tolist(), {key: plain(item) for key, item in value.__dict__.items()}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [*map(plain, value)] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_dictionaries_of_tensors(fn: Callable[[Tensor], Any]) -> None:
    run = compiled(fn)
    x = torch.ones(2)
    want = plain((fn(x), x))
    for _ in range(2):
        x = torch.ones(2)
        assert plain((run(x), x)) == want
