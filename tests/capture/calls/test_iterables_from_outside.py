"""What a function iterates and somebody else changes between two calls: views, arrays and other objects of C code."""

from __future__ import annotations

import array
import collections
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

MADE: dict[str, Callable[[], tuple[Any, Callable[[], object]]]] = {}
"""Name -> a function that makes the object and what changes it."""


def _of_dict(view: Callable[[Any], Any], cls: type = dict) -> Callable[[], tuple[Any, Callable[[], object]]]:
    def make() -> tuple[Any, Callable[[], object]]:
        held = cls({"a": 1, "b": 2})
        return view(held), lambda: held.update({"c": 5})

    return make


class _Ordered(collections.OrderedDict[str, int]):
    pass


def _changed(value: Any, change: Callable[[Any], object]) -> Callable[[], tuple[Any, Callable[[], object]]]:
    def make() -> tuple[Any, Callable[[], object]]:
        mine = value()
        return mine, lambda: change(mine)

    return make


for kind in (dict, collections.OrderedDict, _Ordered):
    MADE[f"keys of {kind.__name__}"] = _of_dict(lambda d: d.keys(), kind)
    MADE[f"values of {kind.__name__}"] = _of_dict(lambda d: d.values(), kind)
    MADE[f"items of {kind.__name__}"] = _of_dict(lambda d: d.items(), kind)
MADE["mappingproxy"] = _of_dict(types.MappingProxyType)
MADE["array"] = _changed(lambda: array.array("i", [1, 2]), lambda v: v.append(5))
MADE["bytearray"] = _changed(lambda: bytearray(b"ab"), lambda v: v.append(5))
MADE["memoryview"] = _changed(lambda: memoryview(bytearray(b"ab")), lambda v: v.__setitem__(0, 5))
MADE["deque"] = _changed(lambda: collections.deque([1, 2]), lambda v: v.append(5))
MADE["UserList"] = _changed(lambda: collections.UserList([1, 2]), lambda v: v.append(5))
MADE["list"] = _changed(lambda: [1, 2], lambda v: v.append(5))

READS: dict[str, Callable[[Any], object]] = {
    "reversed": lambda v: list(reversed(v)),
    "for of reversed": lambda v: [k for k in reversed(v)],
    "list": list,
    "sorted": sorted,
    "enumerate": lambda v: list(enumerate(v)),
    "zip": lambda v: list(zip(v, v, strict=True)),
    "map": lambda v: list(map(str, v)),
    "star": lambda v: [*v],
    "next": lambda v: next(iter(reversed(v))),
    "max": max,
    "len": len,
    "join": lambda v: ",".join(map(str, v)),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("name", MADE)
def test_changes_are_seen(name: str, read: str):
    value, change = MADE[name]()

    def function(x: torch.Tensor) -> tuple[torch.Tensor, object]:
        return x + 1, READS[read](value)

    compiled = smelt.compile(function)
    for _ in range(2):
        assert compiled(torch.ones(1))[1] == READS[read](value)
        change()
    assert compiled(torch.ones(1))[1] == READS[read](value)
