"""Compares two results of one forward exactly: structure, bits, metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

ENOUGH = 5
"""Maximum number of differences of one result that are reported."""

OPAQUE = (type, FunctionType, MethodType, BuiltinFunctionType, ModuleType, nn.Module, torch.Generator)
"""Types of values that contain no results: such values are compared only by their type."""


def differences(expected: Any, actual: Any, at: str = "output") -> list[str]:
    """Returns the differences, one line each (at most ENOUGH); empty if the results are equal.

    Tensors are equal in class, shape, dtype, device, `requires_grad` and every bit (NaN equals NaN); containers in
    class, keys and order; other objects in their attributes.
    """
    found: list[str] = []
    _compare(expected, actual, at, found, set())
    return found[:ENOUGH]


def _compare(a: Any, b: Any, at: str, found: list[str], seen: set[tuple[int, int]]) -> None:
    if len(found) >= ENOUGH or (id(a), id(b)) in seen:
        return
    seen.add((id(a), id(b)))
    if type(a) is not type(b):
        found.append(f"{at}: {type(b).__name__} where eager has {type(a).__name__}")
    elif isinstance(a, Tensor):
        found.extend(_tensor_difference(a, b, at))
    elif isinstance(a, Mapping):
        _compare_mappings(a, b, at, found, seen)
    elif isinstance(a, (list, tuple)):
        _compare_sequences(a, b, at, found, seen)
    elif isinstance(a, float):
        if a != b and not (math.isnan(a) and math.isnan(b)):
            found.append(f"{at}: {b} where eager has {a}")
    elif isinstance(a, OPAQUE):
        return
    elif hasattr(a, "__dict__"):
        _compare(vars(a), vars(b), at, found, seen)
    elif type(a).__eq__ is not object.__eq__ and not bool(a == b):
        found.append(f"{at}: {str(b)[:40]} where eager has {str(a)[:40]}")


def _compare_mappings(
    a: Mapping[Any, Any], b: Mapping[Any, Any], at: str, found: list[str], seen: set[tuple[int, int]]
) -> None:
    if list(a) != list(b):
        found.append(f"{at}: keys {_some(b)} where eager has {_some(a)}")
    for key in a.keys() & b.keys():
        _compare(a[key], b[key], f"{at}.{key}", found, seen)


def _compare_sequences(
    a: Sequence[Any], b: Sequence[Any], at: str, found: list[str], seen: set[tuple[int, int]]
) -> None:
    if len(a) != len(b):
        found.append(f"{at}: {len(b)} items where eager has {len(a)}")
    for index, (one, other) in enumerate(zip(a, b, strict=False)):
        _compare(one, other, f"{at}.{index}", found, seen)


def _tensor_difference(a: Tensor, b: Tensor, at: str) -> list[str]:
    for name in ("shape", "dtype", "layout", "device", "requires_grad"):
        if getattr(a, name) != getattr(b, name):
            return [f"{at}: {name} {getattr(b, name)} where eager has {getattr(a, name)}"]
    if a.layout != torch.strided:
        a, b = a.to_dense(), b.to_dense()
    a, b = a.detach(), b.detach()
    same = (a == b) | (a != a) & (b != b)
    if bool(same.all()):
        return []
    wrong = int((~same).sum())
    return [f"{at}: {wrong} of {a.numel()} elements differ, by up to {_max_distance(a, b):.1e}"]


def _max_distance(a: Tensor, b: Tensor) -> float:
    if a.dtype == torch.bool:
        return 1.0
    wide = torch.complex128 if a.is_complex() else torch.float64
    return float((a.to(wide) - b.to(wide)).abs().nan_to_num(math.inf).max())


def _some(keys: Any) -> str:
    return str(list(keys))[:60]
