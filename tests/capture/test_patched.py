"""Functions and classes that somebody replaces for a time, in torch, numpy, the standard library and builtins."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os.path
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smelt.capture.explain import describe
from tests.capture.harness import compiled, same


class Frozen(datetime.datetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return cls(2020, 1, 2)


def ten(*args: Any, **kwargs: Any) -> Any:
    return args[0] * 10 if args and isinstance(args[0], Tensor) else 10


LINEAR = nn.Linear(2, 2)
LAYERS = nn.Sequential(nn.ReLU(), nn.Tanh())
CASES: list[tuple[str, Any, Callable[[Tensor], Any]]] = [
    ("torch.relu", ten, lambda x: torch.relu(x)),
    ("torch.relu", ten, lambda x: F.relu(x)),
    ("torch.nn.functional.softmax", ten, lambda x: F.softmax(x, -1)),
    ("torch.nn.functional.linear", ten, lambda x: LINEAR(x)),
    ("torch.nn.functional.scaled_dot_product_attention", ten, lambda x: F.scaled_dot_product_attention(x, x, x)),
    ("torch.Tensor.cos", ten, lambda x: x.cos()),
    ("torch.nn.Linear.forward", lambda self, x: x * 10, lambda x: LINEAR(x)),
    ("torch.nn.Module.__call__", lambda self, x: x * 10, lambda x: LINEAR(x)),
    ("math.sqrt", ten, lambda x: x * math.sqrt(4.0)),
    ("math.pi", 3.0, lambda x: x * math.pi),
    ("json.dumps", ten, lambda x: (x + 1, json.dumps({"a": 1}))),
    ("json.dumps", lambda o: "patched", lambda x: (x + 1, json.dumps({"a": 1}))),
    ("os.path.basename", ten, lambda x: (x + 1, os.path.basename("a/b"))),
    ("builtins.len", ten, lambda x: x * len([1, 2])),
    ("builtins.sorted", lambda items: [10], lambda x: x * sorted([2, 1])[0]),
    ("numpy.stack", lambda arrays: arrays[0] * 10, lambda x: (x + 1, float(np.stack([np.ones(2)]).sum()))),
    ("numpy.pi", 3.0, lambda x: x * np.pi),
    ("statistics.len", lambda items: 1, lambda x: x * statistics.median([1, 2, 3])),
    ("torch.nn.modules.container.len", lambda items: 1, lambda x: LAYERS(x)),
    ("time.time", lambda: 7.0, lambda x: x * 0 + (7.0 if time.time() == 7.0 else 1.0)),
    ("datetime.datetime", Frozen, lambda x: x * (datetime.datetime.now().year == 2020)),
]


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{i}-{name}" for i, (name, _, _) in enumerate(CASES)])
def test_replaced_functions_are_used_and_restored(number: int) -> None:
    name, other, fn = CASES[number]
    run = compiled(fn)
    x = torch.full((1, 1, 2, 2), 0.5)
    for _ in range(2):
        assert same(fn(x), run(x)), "as it is"
        with mock.patch(name, other):
            assert same(fn(x), run(x)), "replaced"
    assert same(fn(x), run(x)), "put back"


def stored(x: Tensor) -> Tensor:
    y = x.clone()
    y[0] = 3.0
    return y


def chosen(x: Tensor) -> Tensor:
    y = x
    if x[0, 0] > 5:
        y = x + 1
    return y


def minus(*args: Any) -> Any:
    return args[0].sub(7)


OF_TENSORS: list[tuple[str, Any, Callable[[Tensor], Any]]] = [
    ("__add__", minus, lambda x: x + 1),
    ("__add__", Tensor.sub, lambda x: x + 1),
    ("__add__", mock.Mock(return_value=torch.ones(3)), lambda x: x + 1),
    ("__radd__", minus, lambda x: 1 + x),
    ("__rsub__", minus, lambda x: 1 - x),
    ("__rpow__", minus, lambda x: pow(2, x)),
    ("__matmul__", minus, lambda x: x @ x),
    ("__eq__", minus, lambda x: x == 2),
    ("__neg__", minus, lambda x: -x),
    ("__abs__", minus, lambda x: abs(x)),
    ("__setitem__", lambda s, i, v: s.neg_(), stored),
    ("__len__", lambda s: 9, lambda x: x * len(x)),
    ("__iter__", lambda s: iter([s, s]), lambda x: [*x]),
    ("__bool__", lambda s: True, chosen),
    ("__bool__", lambda s: True, lambda x: x * (not x[0, 0] > 5)),
    ("__float__", lambda s: 4.0, lambda x: x * float(x.sum())),
    ("__contains__", lambda s, v: True, lambda x: x * (7.0 in x)),
    ("T", property(minus), lambda x: x.T * 2),
    ("ndim", property(lambda s: 17), lambda x: x * x.ndim),
]


@pytest.mark.parametrize("first", [False, True], ids=["before", "while"])
@pytest.mark.parametrize("name, other, fn", OF_TENSORS, ids=[f"{i}-{each[0]}" for i, each in enumerate(OF_TENSORS)])
def test_replaced_tensor_attributes_are_used_and_restored(
    name: str, other: Any, fn: Callable[[Tensor], Any], first: bool
) -> None:
    """Operators and attributes, compiled before somebody replaces them or while they are replaced."""
    replace_in_tensors(name, other, fn, first)


DESCRIBING: list[tuple[str, Any, Callable[[Tensor], Any]]] = [
    ("shape", property(lambda s: (7,)), lambda x: x * x.shape[0]),
    ("shape", property(lambda s: (7,)), lambda x: x * 2),
    ("device", property(lambda s: torch.device("meta")), lambda x: x * len(x.device.type)),
    ("dtype", property(lambda s: torch.float64), lambda x: x * (2 if x.dtype == torch.float64 else 3)),
    ("is_quantized", property(lambda s: True), lambda x: x * x.is_quantized),
    ("requires_grad", property(lambda s: True), lambda x: x * x.requires_grad),
    ("stride", lambda s, *at: (5, 5), lambda x: x * x.stride()[0]),
    ("storage_offset", lambda s: 3, lambda x: x * x.storage_offset()),
    ("numel", lambda s: 77, lambda x: x * x.numel()),
    ("size", lambda s, *at: 7, lambda x: x * x.size(0)),
    ("item", lambda s: 5.0, lambda x: torch.relu(x * 2)),
]


@pytest.mark.parametrize("name, other, fn", DESCRIBING, ids=[f"{i}-{each[0]}" for i, each in enumerate(DESCRIBING)])
def test_attributes_that_tensors_have(name: str, other: Any, fn: Callable[[Tensor], Any]) -> None:
    """The compiler asks it, too: nothing is compiled while somebody has replaced it, and everything afterwards."""
    run, x = compiled(fn), torch.tensor([[0.5, 2.0], [1.0, 2.0]])
    for replaced in (True, False):
        with mock.patch.object(Tensor, name, other) if replaced else contextlib.nullcontext():
            want, got = fn(x), run(x)
        assert torch.equal(want, got) and want.stride() == got.stride()
        assert len(describe(run._smelt_session).guards) == (not replaced)


def test_replaced_indexing() -> None:
    """In a process of its own: once `__getitem__` was replaced, tensors stay sequences for `torch.tensor`."""
    code = "from tests.capture.test_patched import minus, replace_in_tensors\n"
    code += "for first in (False, True):\n    replace_in_tensors('__getitem__', minus, lambda x: x[0], first)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def replace_in_tensors(name: str, other: Any, fn: Callable[[Tensor], Any], first: bool) -> None:
    run = compiled(fn)
    x = torch.tensor([[0.5, 2.0], [1.0, 2.0]])
    for replaced in (first, not first, first):
        with mock.patch.object(Tensor, name, other) if replaced else contextlib.nullcontext():
            assert same(fn(x), run(x))
    assert len(describe(run._smelt_session).guards) > 1, "a graph that runs in eager has what is replaced, too"


def test_a_mock_sees_its_calls() -> None:
    run = compiled(lambda x: x + json.loads("2"))
    assert run(torch.ones(1)).item() == 3
    with mock.patch("json.loads", return_value=5) as found:
        assert [run(torch.ones(1)).item() for _ in range(3)] == [6, 6, 6]
        assert found.call_count == 3
    assert run(torch.ones(1)).item() == 3
