"""Reductions against numpy, of nothing as well, and the folds that their facts tell of."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from smelt.base.errors import CompileError
from smelt.graph.ir.meta import meta_of
from smelt.prims.table import PRIMS, Kind
from tests.prims.prim_check import checked

NAMES = [name for name, prim in PRIMS.items() if prim.kind is Kind.REDUCTION and prim.parameters == ("x", "dims")]
NUMERIC = [name for name in NAMES if name not in ("any", "all")]
DIMS = [(), (0,), (1,), (2,), (0, 2), (0, 1, 2)]


def some(name: str, *shape: int) -> torch.Tensor:
    return torch.rand(shape) > 0.5 if name in ("any", "all") else torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("name", NAMES)
def test_over_dims(name: str, dims: tuple[int, ...]) -> None:
    for x in (some(name, 3, 4, 5), some(name, 1, 3, 1), some(name, 5, 4, 3).permute(2, 1, 0)):
        got = checked(name, x, dims)
        want = getattr(np, name)(x.numpy(), axis=dims) if dims else x.numpy()
        np.testing.assert_allclose(got, want, rtol=1e-12)
        assert got.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("name", NAMES)
def test_of_nothing_is_what_changes_nothing(name: str) -> None:
    low, high = -math.inf, math.inf
    neutral = {"sum": 0.0, "prod": 1.0, "amax": low, "amin": high, "any": False, "all": True}
    for shape, dims in (((0, 3), (0,)), ((3, 0, 2), (1,)), ((0,), (0,)), ((2, 0), (0, 1))):
        got = checked(name, some(name, *shape), dims)
        assert set(got.flatten().tolist()) == {neutral[name]}
    whole = checked(name, torch.zeros(2, 0, dtype=torch.bool if name in ("any", "all") else torch.int16), (1,))
    neutral |= {"amax": -(2**15), "amin": 2**15 - 1}
    assert whole.tolist() == [neutral[name]] * 2
    told = PRIMS[name].facts.fold
    assert told is not None
    assert told.neutral == (None if name in ("amax", "amin") else neutral[name])


@pytest.mark.parametrize("name", NAMES)
def test_a_fold_of_two_elements_after_another(name: str) -> None:
    combine: dict[str, Callable[[Any, Any], Any]] = {"sum": operator.add, "prod": operator.mul, "max": max, "min": min}
    fold = PRIMS[name].facts.fold
    assert fold is not None and not fold.finds
    x = some(name, 7)
    assert checked(name, x, (0,)).item() == pytest.approx(functools.reduce(combine[fold.combine], x.tolist()))


@pytest.mark.parametrize("name", NUMERIC)
def test_nan_wins_and_types_stay(name: str) -> None:
    x = torch.tensor([[1.0, math.nan, math.inf], [1.0, 2.0, 3.0]])
    assert checked(name, x, (1,)).isnan().tolist() == [True, False]
    for dtype in (torch.int8, torch.int64, torch.bfloat16):
        assert checked(name, torch.ones(2, 3, dtype=dtype), (1,)).dtype is dtype
    assert checked("sum", torch.full((3,), 100, dtype=torch.int8), (0,)).item() == 300 - 256


def test_a_sum_begins_at_zero() -> None:
    assert not checked("sum", torch.tensor([-0.0]), (0,)).signbit()


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dim", [0, 1])
def test_indices(name: str, dim: int) -> None:
    x = torch.tensor([[1.0, 5.0, 5.0], [5.0, 1.0, 1.0], [1.0, 5.0, 1.0]])
    np.testing.assert_array_equal(checked(name, x, dim), getattr(np, name)(x.numpy(), axis=dim))
    x[1, 1] = math.nan
    np.testing.assert_array_equal(checked(name, x, dim), getattr(np, name)(x.numpy(), axis=dim))
    assert checked(name, torch.zeros(0, 3), 1).shape == (0,)
    fold = PRIMS[name].facts.fold
    assert fold is not None and fold.finds and fold.combine == name.removeprefix("arg")


@pytest.mark.parametrize("name", [*NAMES, "argmax", "argmin"])
@pytest.mark.parametrize("dim", [-1, 2])
def test_dims_out_of_range(name: str, dim: int) -> None:
    meta = meta_of(some(name, 2, 3))
    with pytest.raises(CompileError, match=f"prim {name}: dimension"):
        PRIMS[name].meta(meta, (dim,) if name in NAMES else dim)


@pytest.mark.parametrize("name", ["any", "all"])
def test_quantifiers_take_bools(name: str) -> None:
    with pytest.raises(CompileError, match=f"prim {name}: operand is"):
        PRIMS[name].meta(meta_of(torch.ones(2)), (0,))
