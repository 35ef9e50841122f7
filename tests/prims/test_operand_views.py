"""Operators of a user's library find their operands as far from the beginning of memory as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt

library = torch.library.Library("smelt_operand_views", "DEF")
library.define("offset_and_strides(Tensor x) -> Tensor")
library.impl("offset_and_strides", lambda x: torch.tensor([x.storage_offset(), *x.stride()]), "CPU")
library.impl("offset_and_strides", lambda x: x.new_empty(x.dim() + 1, dtype=torch.int64), "Meta")
OFFSET_AND_STRIDES = torch.ops.smelt_operand_views.offset_and_strides

PARTS: dict[str, Callable[[Tensor], Any]] = {
    "all": lambda y: OFFSET_AND_STRIDES(y),
    "rows": lambda y: OFFSET_AND_STRIDES(y[1:]),
    "columns": lambda y: OFFSET_AND_STRIDES(y[:, 1:3]),
    "first columns": lambda y: OFFSET_AND_STRIDES(y[:, :2]),
    "turned": lambda y: OFFSET_AND_STRIDES(y[1:].t()),
    "one of several": lambda y: [OFFSET_AND_STRIDES(each) for each in y.chunk(2)],
    "again and again": lambda y: OFFSET_AND_STRIDES(y[1:2].expand(5, -1)),
    "after a write": lambda y: (y[0].add_(1), OFFSET_AND_STRIDES(y[1:])),
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


library.define("put(Tensor x, Tensor(a!) y) -> Tensor")
library.impl("put", lambda x, y: torch.empty_strided(y.shape, y.stride()).copy_(y.copy_(x * 2)), "CPU")
library.impl("put", lambda x, y: torch.empty_strided(y.shape, y.stride(), device="meta"), "Meta")
PUT = torch.ops.smelt_operand_views.put

WRITTEN: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "a part": lambda x, y: PUT(x[:, :3], y[:, :3]),
    "once more": lambda x, y: (PUT(x[:, :3], y[:, :3]), PUT(x[:, 1:4] + 1, y[:, :3])),
    "elsewhere": lambda x, y: (PUT(x[:, :3], y[:, :3]), PUT(x[:, 1:4] + 1, y[:, 1:4])),
    "turned": lambda x, y: (PUT(x.t(), y.t()), PUT(x.t() + 1, y.t())),
    "steps": lambda x, y: (PUT(x[:, :2], y[:, ::2]), y.add_(1), PUT(x[:, 2:], y[:, ::2])),
}
MADE: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros": lambda x: torch.zeros(3, 4),
    "one value": lambda x: x.sum() * torch.ones(3, 4),
    "values": lambda x: x * 3,
    "a row again": lambda x: x[0].expand(3, 4) * 2,
}


@pytest.mark.parametrize("backend", ["smelt", "aot_eager"])
@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("name", WRITTEN)
def test_operators_write_to_views_with_eagers_gaps(name: str, made: str, backend: str) -> None:
    """What is written lies with the gaps of the view, also where it was written before, or is one value for all."""

    def function(x: Tensor) -> Any:
        y = MADE[made](x)
        return WRITTEN[name](x, y), y

    compiled = smelt.compile(function, backend=backend)
    for layout in OF:
        torch.testing.assert_close(compiled(OF[layout]()), function(OF[layout]()), check_stride=True)
