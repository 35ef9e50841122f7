"""Compares arguments and metadata of two nodes, but for the nodes among them."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import torch
from torch.fx import Node

from smelt.graph.ir.meta import TensorMeta

_PLAIN = frozenset(
    {str, int, bool, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size}
)
"""Classes whose values are compared by equality."""


def alike(one: Any, other: Any, pairs: list[tuple[Node, Node]] | None = None) -> bool:
    """Whether two values are equal but for the nodes in them; adds the nodes at corresponding places to `pairs`.

    Without `pairs`, nodes are not compared: the values must have the same ones. Values of unknown classes are equal if
    they are one object.
    """
    if one is other and pairs is None:
        return True
    kind = type(one)
    if kind is not type(other):
        return False
    if kind in _PLAIN:
        return bool(one == other)
    if kind is TensorMeta:
        return not (one.symbolic or other.symbolic) and bool(one == other)  # comparing symbols would add a guard
    if kind is Node:
        if pairs is not None:
            pairs.append((one, other))
        return pairs is not None
    if kind in (float, complex):
        return repr(one) == repr(other)  # 0.0 and -0.0 differ, NaNs are equal
    parts = _parts(one, kind)
    if parts is None:
        return one is other
    others = _parts(other, kind)
    assert others is not None
    if len(parts) != len(others):
        return False
    return all([alike(a, b, pairs) for a, b in zip(parts, others, strict=True)])


def same_callers(one: Any, other: Any) -> bool:
    """Whether two chains of callers are equal, each `(its callers, location)` or None; they may be long."""
    while one is not other:
        if one is None or other is None or not alike(one[1], other[1]):
            return False
        one, other = one[0], other[0]
    return True


def _parts(value: Any, kind: type) -> tuple[Any, ...] | list[Any] | None:
    """Returns the values of which a value consists; None if its class is unknown."""
    if isinstance(value, (tuple, list)):
        return value
    if isinstance(value, dict):
        return [*value, *value.values()]
    if kind is slice:
        return [value.start, value.stop, value.step]
    names = _fields(kind)
    return None if names is None else [getattr(value, name) for name in names]


@cache
def _fields(kind: type) -> tuple[str, ...] | None:
    """Returns the names of a frozen dataclass's fields; None for another class."""
    parameters = getattr(kind, "__dataclass_params__", None)
    if parameters is None or not parameters.frozen:
        return None
    return tuple(field.name for field in dataclasses.fields(kind))
