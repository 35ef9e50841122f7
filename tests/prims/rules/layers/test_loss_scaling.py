"""Gradients divided by a scale and tested, and the next scale: what `torch.amp.GradScaler` does, by its own kernels."""

from __future__ import annotations

import math

import pytest
import torch

from smelt.graph.ir.functional_form import flat_form
from tests.prims.aten_check import check
from tests.prims.prim_check import names

aten = torch.ops.aten
UNSCALE = aten._amp_foreach_non_finite_check_and_unscale.default


@pytest.mark.parametrize("wrong", [None, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("before", [0.0, 1.0])
def test_one_number_that_is_not_finite(wrong: float | None, where: int, before: float) -> None:
    gradients = [torch.randn(2, 3), torch.randn(4)]
    if wrong is not None:
        gradients[where].view(-1)[-1] = wrong
    call = (gradients, torch.tensor(before), torch.tensor(0.25))
    prims = check(flat_form(UNSCALE, (2, None)), *call)
    *_, found = prims(*gradients, *call[1:], torch.tensor(0))
    assert found.item() == (1.0 if wrong is not None else before)


@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize("row", [0, 1, 2, 5])
@pytest.mark.parametrize("scale", [8.0, 2.0**127, 0.0])
def test_the_next_scale(found: float, row: int, scale: float) -> None:
    """It grows after `interval` steps in a row, if that is finite, and shrinks after a step that was not."""
    args = (torch.tensor(scale), torch.tensor(row, dtype=torch.int32), torch.tensor(found))
    prims = check(aten._amp_update_scale.default, *args, 4.0, 0.5, 3)
    got, tracker = prims(*args, torch.tensor(0))
    grown = scale * 4 if scale < 2.0**125 else scale
    assert got.item() == (scale / 2 if found else grown if row + 1 == 3 else scale)
    assert tracker.item() == (0 if found or row + 1 == 3 else row + 1) and tracker.dtype is torch.int32
    assert "where" in names(prims)


def test_numbers_with_other_shapes_stay() -> None:
    one = torch.ones(1)
    check(aten._amp_update_scale.default, one, one.int(), one, 2.0, 0.5, 3)
    check(aten._amp_update_scale.default, one, torch.tensor(1).int(), one, 2.0, 0.5, 3, fallback=True)
    check(aten._amp_update_scale.default, one, one.int(), torch.tensor(0.0), 2.0, 0.5, 3, fallback=True)
