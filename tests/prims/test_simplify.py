"""Simplification rules: the simpler graph has the same values, and the pattern is gone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from smelt.graph.ir.meta import meta_of
from smelt.graph.ir.module import remove_dead
from smelt.prims.builder import Builder
from smelt.prims.simplify import rounded, typed
from smelt.prims.table import PRIMS

CPU = torch.device("cpu")


def built(make: Callable[..., Any], *inputs: torch.Tensor) -> tuple[list[str], Any]:
    """(names of the prims in the graph, its result) of `make(p, *nodes)`."""
    graph = fx.Graph()
    nodes = []
    for k, x in enumerate(inputs):
        nodes.append(graph.placeholder(f"x{k}"))
        nodes[-1].meta["val"] = meta_of(x)
    graph.output(make(Builder(graph), *nodes))
    remove_dead(graph)
    names = [n.target.name for n in graph.nodes if n.op == "call_function"]
    return names, fx.GraphModule(torch.nn.Module(), graph)(*inputs)


X = torch.tensor([-2.0, -0.5, -0.0, 0.0, 1.0, math.inf, math.nan])
N = torch.tensor([-3, 0, 1, 5])
B = torch.tensor([True, False])


def full(p: Builder, value: Any, dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (7,)) -> Any:
    return p.full(shape, value, dtype, CPU)


def places(p: Any) -> Any:
    """Numbers counted from 0, as many as in B."""
    return p.reshape(p.iota(2, 0, 1, torch.int64, CPU), (2,))


POINTWISE = {
    "i + 0": (lambda p, x: p.add(x, 0), N, []),
    "0 + i": (lambda p, x: p.add(full(p, 0, torch.int64, (4,)), x), N, []),
    "x + 0": (lambda p, x: p.add(x, 0), X, ["add"]),
    "x + -0": (lambda p, x: p.add(x, -0.0), X, []),
    "x - 0": (lambda p, x: p.sub(x, 0), X, []),
    "x - -0": (lambda p, x: p.sub(x, -0.0), X, ["sub"]),
    "x * 1": (lambda p, x: p.mul(x, 1), X, []),
    "x * -1": (lambda p, x: p.mul(x, -1), X, ["neg"]),
    "x / 1": (lambda p, x: p.div(x, 1), X, []),
    "x / 4": (lambda p, x: p.div(x, 4), X, ["mul"]),
    "x / 3": (lambda p, x: p.div(x, 3), X, ["div"]),
    "1 / x": (lambda p, x: p.div(1.0, x), X, ["reciprocal"]),
    "x + full": (lambda p, x: p.add(x, full(p, 2.0)), X, ["add"]),
    "full - x": (lambda p, x: p.sub(full(p, 2.0), x), X, ["sub"]),
    "x + -y": (lambda p, x: p.add(x, p.neg(p.exp(x))), X, ["exp", "sub"]),
    "x - -y": (lambda p, x: p.sub(x, p.neg(p.exp(x))), X, ["exp", "add"]),
    "neg neg": (lambda p, x: p.neg(p.neg(x)), X, []),
    "x ** 2": (lambda p, x: p.pow(x, 2), X, ["mul"]),
    "x ** 3": (lambda p, x: p.pow(x, 3.0), X, ["mul", "mul"]),
    "x ** 0.5": (lambda p, x: p.pow(x, 0.5), X.abs(), ["sqrt"]),
    "x ** 0": (lambda p, x: p.pow(x, 0), X, ["full"]),
    "x ** 4": (lambda p, x: p.pow(x, 4), X, ["pow"]),
    "i // 1": (lambda p, x: p.floor_div(x, 1), N, []),
    "max(x, x)": (lambda p, x: p.maximum(x, x), X, []),
    "b & True": (lambda p, x: p.logical_and(x, full(p, True, torch.bool, (2,))), B, []),
    "b & False": (lambda p, x: p.logical_and(x, full(p, False, torch.bool, (2,))), B, ["full"]),
    "b | False": (lambda p, x: p.logical_or(x, full(p, False, torch.bool, (2,))), B, []),
    "bitwise & True": (lambda p, x: p.bitwise_and(x, full(p, True, torch.bool, (2,))), B, []),
    "bitwise | True": (lambda p, x: p.bitwise_or(x, full(p, True, torch.bool, (2,))), B, ["full"]),
    "where true": (lambda p, x: p.where(full(p, True, torch.bool), x, 0.0), X, []),
    "where same": (lambda p, x: p.where(p.gt(x, 0), x, x), X, []),
    "where number": (lambda p, x: p.where(p.gt(x, 0), full(p, 1.0), x), X, ["gt", "where"]),
    "constants": (lambda p, x: p.add(x, p.exp(full(p, 1.0))), X, ["add"]),
    "same dtype": (lambda p, x: p.convert(x, torch.float32), X, []),
    "there and back": (lambda p, x: p.convert(p.convert(x, torch.float64), torch.float32), X, []),
    "rounding stays": (lambda p, x: p.convert(p.convert(x, torch.bfloat16), torch.float32), X, ["convert"] * 2),
    "through a wider": (lambda p, x: p.convert(p.convert(x, torch.int64), torch.float32), B, ["convert"]),
    "positions >= 0": (lambda p, x: p.logical_and(x, p.ge(places(p), 0)), B, []),
    "positions < 0": (lambda p, x: p.logical_and(x, p.lt(places(p), 0)), B, ["full"]),
    "positions < 1": (lambda p, x: p.logical_and(x, p.lt(places(p), 1)), B, ["iota", "lt", "logical_and"]),
    "clone clone": (lambda p, x: p.clone(p.clone(x)), X, ["clone"]),
    "mask times number": (lambda p, x: p.mul(p.convert(x, torch.float32), 0.5), B, ["where", "full"]),
    "mask times negative": (lambda p, x: p.mul(p.convert(x, torch.float32), -0.5), B, ["where", "full"]),
    "mask over number": (lambda p, x: p.div(p.convert(x, torch.float32), 0.9), B, ["where", "full"]),
}


@pytest.mark.parametrize("name", list(POINTWISE))
def test_pointwise(name: str):
    make, x, want = POINTWISE[name]
    names, value = built(make, x)
    assert sorted(names) == sorted(want)
    wanted = eager(make, x)
    torch.testing.assert_close(value, wanted, equal_nan=True, rtol=0, atol=0)
    zeros = wanted == 0
    assert value.signbit()[zeros].equal(wanted.signbit()[zeros])


class Eager:
    """The builder's interface, computed at once and without any rule."""

    def __getattr__(self, name: str) -> Any:
        if name == "full_like":
            return torch.full_like
        return PRIMS[name]


def eager(make: Callable[..., Any], *inputs: torch.Tensor) -> torch.Tensor:
    return make(Eager(), *inputs)


def test_signs_of_zero_are_distinguished():
    names, value = built(lambda p, x: p.sub(p.copysign(x, 0.0), p.copysign(x, -0.0)), torch.ones(2))
    assert names.count("copysign") == 2 and value.tolist() == [2.0, 2.0]


def test_zero_and_one_are_distinguished():
    names, _ = built(lambda p, x: p.add(p.pow(x, 1.5), p.pow(x, 2.5)), torch.ones(2))
    assert names.count("pow") == 2
    names, value = built(lambda p, x: p.add(p.maximum(x, 0.0), p.maximum(x, 1.0)), torch.zeros(2))
    assert names.count("maximum") == 2 and value.tolist() == [1.0, 1.0]


def test_equal_nodes_are_made_once():
    names, _ = built(lambda p, x: p.add(p.mul(p.exp(x), 2), p.mul(2, p.exp(x))), X)
    assert names == ["exp", "mul", "add"]


def test_numbers_take_the_dtype_of_the_tensor():
    assert typed(2, torch.float32) == 2.0 and type(typed(2, torch.float32)) is float
    assert type(typed(1, torch.bool)) is bool and type(typed(2.0, torch.int64)) is int
    assert rounded(0.1, torch.bfloat16) == torch.tensor(0.1, dtype=torch.bfloat16).item()
    assert rounded(300, torch.uint8) == 300 % 256 and rounded(-1, torch.uint8) == 255
