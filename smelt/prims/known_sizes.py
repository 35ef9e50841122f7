"""Simplifies the symbolic sizes in the metas and arguments of a prim graph by facts from guards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import fx

from smelt.graph.ir.meta import TensorMeta
from smelt.shapes.size import Size

_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device})
"""Types of most arguments, which contain no symbol."""


def with_known_sizes(value: Any) -> Any:
    """Returns a meta or an argument with its symbolic sizes simplified, so that equal sizes are equal expressions."""
    if value.__class__ in _PLAIN:
        return value
    match value:
        case TensorMeta(shape=shape, stride=stride):
            return (
                replace(value, shape=with_known_sizes(shape), stride=with_known_sizes(stride))
                if value.symbolic
                else value
            )
        case Size():
            return value.owner.simplify(value)
        case fx.Node() if isinstance(value.meta.get("val"), Size):
            return with_known_sizes(value.meta["val"])
        case tuple():
            return tuple(map(with_known_sizes, value))
        case list():
            return list(map(with_known_sizes, value))
        case dict():
            return {key: with_known_sizes(item) for key, item in value.items()}
        case slice():
            return slice(with_known_sizes(value.start), with_known_sizes(value.stop), with_known_sizes(value.step))
    return value
