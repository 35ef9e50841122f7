"""Reads and writes that a mask switches off, and checks of ranges, against eager and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import fx

from smelt.abi.faults import NOT_IN_UNIT
from smelt.prims.registry import Lowering
from smelt.prims.rules.masking import in_range, masked_scatter_backward
from tests.prims.aten_check import check
from tests.prims.prim_check import evaluated

aten = torch.ops.aten


def f(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


INDEX = torch.tensor([0, 2, -1, -4, 1])
OUTSIDE = torch.tensor([99, 2, -77, 3, 1])
MASK = torch.tensor([False, True, False, True, True])


def test_masked_reads() -> None:
    x = f(4, 3)
    for indices in ([INDEX, None], [INDEX, torch.tensor([0, 1, 2, -1, -3])], [None, torch.tensor([2, 0, 1, -1, 0])]):
        shape = aten.index.Tensor(x, indices).shape
        mask = torch.rand(shape) > 0.5
        check(aten._unsafe_masked_index.default, x, mask, indices, 7.0)
    got = check(aten._unsafe_masked_index.default, x[:, 0].contiguous(), MASK, [OUTSIDE], 7.0)
    values = got(x[:, 0].contiguous(), MASK, OUTSIDE, torch.tensor(0))[0]
    assert values.tolist() == [7.0, x[2, 0], 7.0, x[3, 0], x[1, 0]]


def test_masked_reads_of_nothing() -> None:
    none = torch.zeros(2, dtype=torch.int64)
    check(aten._unsafe_masked_index.default, f(0), none > 0, [none], 7.0)


def test_masked_writes() -> None:
    x, values = f(4), f(5)
    got = check(aten._unsafe_masked_index_put_accumulate.default, x, MASK, [OUTSIDE], values)
    want = x.numpy().copy()
    np.add.at(want, OUTSIDE[MASK].numpy(), values[MASK].numpy())
    np.testing.assert_allclose(got(x, MASK, OUTSIDE, values, torch.tensor(0))[0], want)
    check(aten._unsafe_masked_index_put_accumulate.default, f(4, 3), MASK[:, None], [INDEX, None], f(5, 3))
    none = torch.zeros(2, dtype=torch.int64)
    check(aten._unsafe_masked_index_put_accumulate.default, f(0), none > 0, [none], f(2))


@pytest.mark.parametrize("sizes", [[2, 3], [6], [4], [1, 9], [0]])
def test_gradient_of_a_masked_copy(sizes: list[int]) -> None:
    g, mask = f(2, 3), torch.tensor([[True, False, True], [False, True, False]])
    check(aten.masked_scatter_backward.default, g, mask, sizes) if sizes != [1, 9] and sizes != [0] else None
    got = evaluated_backward(g, mask, sizes)
    kept = [g[0, 0], g[0, 2], g[1, 1], *[0.0] * 9]
    assert got.flatten().tolist() == [float(v) for v in kept[: got.numel()]] and list(got.shape) == sizes


def evaluated_backward(g: torch.Tensor, mask: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    return evaluated(
        lambda p, g, mask: masked_scatter_backward(p, g, mask, sizes), g, mask, out=torch.zeros(sizes).double()
    )


# -- checks


def passes(x: torch.Tensor, *rest: Any) -> bool:
    try:
        flag = evaluated(lambda p, x: in_range(p, x, *rest), x, out=torch.tensor(False))
    except RuntimeError as error:
        assert "between 0 and 1" in str(error)
        return False
    assert flag.shape == () and not flag
    return True


@pytest.mark.parametrize(
    ("values", "low", "high", "ignored", "excluded", "fine"),
    [
        ([0.0, 1.0], 0.0, 1.0, None, None, True),
        ([0.0, 1.1], 0.0, 1.0, None, None, False),
        ([-0.1, 1.0], 0.0, 1.0, None, None, False),
        ([float("nan")], 0.0, 1.0, None, None, False),
        ([5.0], 0.0, None, None, None, True),
        ([-5.0], None, 0.0, None, None, True),
        ([0, 3], 0, 2, None, None, False),
        ([0, -100], 0, 2, -100, None, True),
        ([5, -100], 0, 2, -100, None, False),
        ([1, 2], 0, None, None, 2, False),
        ([1, 3], 0, None, None, 2, True),
        ([2], None, None, None, 2, False),
        ([], 0, 2, None, None, True),
    ],
)
def test_ranges(values: list[float], low: Any, high: Any, ignored: Any, excluded: Any, fine: bool) -> None:
    x = torch.tensor(values)
    assert passes(x, low, high, ignored, NOT_IN_UNIT, False, excluded) == fine
    if x.is_floating_point() and values == values:
        assert passes(x.bfloat16(), low, high, ignored, NOT_IN_UNIT, False, excluded) == fine
    elif values:
        assert passes(x.to(torch.int8), low, high, ignored, NOT_IN_UNIT, False, excluded) == fine


def test_ranges_of_sums() -> None:
    x = torch.tensor([[0.5, 0.25], [0.25, -0.25]])
    assert passes(x, 0.0, None, None, NOT_IN_UNIT, False, 0.0, None) is False
    assert passes(x, 0.0, 1.0, None, NOT_IN_UNIT, False, None, [1])
    assert not passes(x, 0.0, None, None, NOT_IN_UNIT, False, 0.0, [1])


def test_synchronous_range_check_is_not_lowered() -> None:
    p = Lowering(fx.Graph())
    assert in_range(p, p.graph.placeholder("x"), 0, 1, None, NOT_IN_UNIT, True) is NotImplemented
