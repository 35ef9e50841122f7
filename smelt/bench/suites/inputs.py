"""Makes tensors from the specifications in `entries.json`.

A specification is a list whose first item names its kind; anything else around it (lists, dictionaries) is kept:

    ["randn", shape]                      normal values
    ["rand", shape]                       uniform values in [0, 1)
    ["randint", shape, low, high]         integers in [low, high), of dtype int64 or that of a fifth item
    ["value", nested lists, dtype]        the given values
    ["offsets", tables, batch, per]       (tables, batch): the start of each sample's bag of `per` indices
    ["padded_targets", batch, length, high]  rows of decreasing length with values in [1, high), padded with -1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def make_inputs(specification: Any) -> Any:
    """Returns the same structure with every specification replaced by a tensor, drawn from torch's seeded generator."""
    if isinstance(specification, dict):
        return {name: make_inputs(value) for name, value in specification.items()}
    if isinstance(specification, list):
        if specification and isinstance(specification[0], str):
            kind, *values = specification
            return KINDS[kind](*values)
        return [make_inputs(value) for value in specification]
    return specification


def randint(shape: Sequence[int], low: int, high: int, dtype: str = "int64") -> Tensor:
    """Make integers in [low, high)."""
    return torch.randint(low, high, tuple(shape)).to(getattr(torch, dtype))


def value(values: Any, dtype: str) -> Tensor:
    """Make a tensor of these values."""
    return torch.tensor(values, dtype=getattr(torch, dtype))


def offsets(tables: int, batch: int, per: int) -> Tensor:
    """Make (tables, batch) offsets: every sample has `per` indices in each table."""
    return (torch.arange(batch) * per).expand(tables, batch).contiguous()


def padded_targets(batch: int, length: int, high: int) -> Tensor:
    """Make (batch, length) token ids from 1 on; row i ends with i values of -1, and at least one token is left."""
    targets = torch.randint(1, high, (batch, length))
    for row in range(batch):
        targets[row, max(1, length - row) :] = -1
    return targets


KINDS: dict[str, Callable[..., Tensor]] = {
    "randn": lambda shape: torch.randn(*shape),
    "rand": lambda shape: torch.rand(*shape),
    "randint": randint,
    "value": value,
    "offsets": offsets,
    "padded_targets": padded_targets,
}
"""Function that makes a tensor, by kind of specification."""
