"""Operators of a user's library find their operands as far from the beginning of memory as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt

library = torch.library.Library("smelt_operand_places", "DEF")
library.define("place(Tensor x) -> Tensor")
library.impl("place", lambda x: torch.tensor([x.storage_offset(), *x.stride()]), "CPU")
library.impl("place", lambda x: x.new_empty(x.dim() + 1, dtype=torch.int64), "Meta")
PLACE = torch.ops.smelt_operand_places.place

PARTS: dict[str, Callable[[Tensor], Any]] = {
    "all": lambda y: PLACE(y),
    "rows": lambda y: PLACE(y[1:]),
    "columns": lambda y: PLACE(y[:, 1:3]),
    "first columns": lambda y: PLACE(y[:, :2]),
    "turned": lambda y: PLACE(y[1:].t()),
    "one of several": lambda y: [PLACE(each) for each in y.chunk(2)],
    "again and again": lambda y: PLACE(y[1:2].expand(5, -1)),
    "after a write": lambda y: (y[0].add_(1), PLACE(y[1:])),
}


OF: dict[str, Callable[[], Tensor]] = {
    "rows": lambda: torch.arange(12.0).view(3, 4),
    "columns": lambda: torch.arange(12.0).view(4, 3).t(),
}


@pytest.mark.parametrize("layout", OF)
@pytest.mark.parametrize("name", PARTS)
def test_operators_find_views_where_eager_has_them(name: str, layout: str) -> None:
    """As far from the beginning of their memory, and with its gaps, where that memory is the graph's own."""

    def function(x: Tensor) -> Any:
        return PARTS[name](x * 2)

    for run in (function, smelt.compile(function)):
        found = [run(OF[layout]()) for _ in range(2)]
        torch.testing.assert_close(found[0], function(OF[layout]()))
        torch.testing.assert_close(found[1], found[0])
