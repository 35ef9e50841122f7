"""Functions and classes that somebody replaces for a time, in torch, numpy, the standard library and builtins."""

from __future__ import annotations

import datetime
import json
import math
import os.path
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.capture.harness import compiled, same


class Frozen(datetime.datetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return cls(2020, 1, 2)


def ten(*args: Any, **kwargs: Any) -> Any:
    return args[0] * 10 if args and isinstance(args[0], Tensor) else 10


LINEAR = nn.Linear(2, 2)
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
    ("time.time", lambda: 7.0, lambda x: x * 0 + (7.0 if time.time() == 7.0 else 1.0)),
    ("datetime.datetime", Frozen, lambda x: x * (datetime.datetime.now().year == 2020)),
]


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{i}-{name}" for i, (name, _, _) in enumerate(CASES)])
def test_what_is_replaced(number: int) -> None:
    name, other, fn = CASES[number]
    run = compiled(fn)
    x = torch.full((1, 1, 2, 2), 0.5)
    for _ in range(2):
        assert same(fn(x), run(x)), "as it is"
        with mock.patch(name, other):
            assert same(fn(x), run(x)), "replaced"
    assert same(fn(x), run(x)), "put back"


def test_a_mock_sees_its_calls() -> None:
    run = compiled(lambda x: x + json.loads("2"))
    assert run(torch.ones(1)).item() == 3
    with mock.patch("json.loads", return_value=5) as found:
        assert [run(torch.ones(1)).item() for _ in range(3)] == [6, 6, 6]
        assert found.call_count == 3
    assert run(torch.ones(1)).item() == 3
