"""smelt/codegen/triton/reductions.py: the text of folds, run with numpy in place of Triton."""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from smelt.codegen.triton.library import FUNCTIONS
from smelt.codegen.triton.reductions import LARGEST_INDEX, Accumulator

DTYPES = [torch.float32, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
KINDS = {"sum": np.sum, "prod": np.prod, "amax": np.max, "amin": np.min, "any": np.any, "all": np.all}
CASES = [(k, d) for k in KINDS for d in DTYPES if (k in ("any", "all")) <= (d is torch.bool)]
TYPES = {
    "tl.float32": np.float32, "tl.float64": np.float64, "tl.int64": np.int64, "tl.int32": np.int32,
    "tl.int16": np.int16, "tl.int8": np.int8, "tl.uint8": np.uint8, "tl.int1": np.bool_,
}  # fmt: skip


class Tile(np.ndarray):
    """An array with Triton's conversion."""

    def to(self, dtype: Any) -> Any:
        return tile(self.astype(dtype))


def tile(value: Any) -> Tile:
    return np.asarray(value).view(Tile)


def reduced(value: Any, axis: int, combine: Any) -> Any:
    return tile(functools.reduce(combine, np.moveaxis(value, axis, 0)))


tl = SimpleNamespace(
    full=lambda shape, value, dtype: tile(dtype(value)),
    sum=lambda value, axis: tile(np.sum(value, axis, dtype=value.dtype)),
    max=lambda value, axis: tile(np.max(value, axis)),
    min=lambda value, axis: tile(np.min(value, axis)),
    maximum=lambda a, b: tile(np.maximum(a, b)),
    minimum=lambda a, b: tile(np.minimum(a, b)),
    reduce=reduced,
    expand_dims=lambda value, axis: tile(np.expand_dims(value, axis)),
    **{name.removeprefix("tl."): kind for name, kind in TYPES.items()},
)
NAMES = {
    "tl": tl, "float": float, "times": lambda a, b: a * b, "m_maximum": np.maximum, "m_minimum": np.minimum,
}  # fmt: skip


def read(text: str, **names: Any) -> Any:
    return eval(text, {**NAMES, **names})


def inputs(kind: str, dtype: torch.dtype) -> np.ndarray:
    if dtype is torch.bool:
        return np.random.rand(4, 6) < {"any": 0.2, "all": 0.8}.get(kind, 0.5)
    x = np.random.randint(1 if kind == "prod" else 0, 3, (4, 6)).astype(torch.zeros(1, dtype=dtype).numpy().dtype)
    if dtype.is_floating_point and kind in ("amax", "amin"):
        x = x - 7.5 if kind == "amax" else x + 7.5
        x[1, 2] = math.nan
    return x


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("kind", "dtype"), CASES, ids=lambda v: str(v).removeprefix("torch."))
def test_tiles_that_are_taken_one_after_the_other(kind: str, dtype: torch.dtype, axis: int) -> None:
    made = Accumulator(kind, dtype, axis)
    x = inputs(kind, dtype)
    halves = np.split(x, 2, axis)
    folded = read(made.start)
    for half in halves:
        folded = read(made.step("a", "x"), a=folded, x=read(made.prepared("x"), x=tile(half)))
    got = read(made.fold_tile("a"), a=tile(folded))
    want = KINDS[kind](x, axis=axis, keepdims=True)
    if dtype is torch.bool and kind in ("sum", "amax"):
        want = np.any(x, axis=axis, keepdims=True)
    if dtype is torch.bool and kind in ("prod", "amin"):
        want = np.all(x, axis=axis, keepdims=True)
    np.testing.assert_array_equal(np.asarray(got), want.astype(got.dtype))
    assert got.dtype == x.dtype or (dtype is torch.bool and got.dtype == np.bool_)


@pytest.mark.parametrize(("kind", "dtype"), CASES, ids=lambda v: str(v).removeprefix("torch."))
def test_an_accumulator_starts_with_what_changes_nothing(kind: str, dtype: torch.dtype) -> None:
    """Nor the last number of its dtype."""
    made = Accumulator(kind, dtype, 0)
    if dtype is torch.bool:
        edges: list[Any] = [0, 1]
    else:
        info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
        edges = [info.min, info.max, 1] + [math.inf, -math.inf] * dtype.is_floating_point
    for edge in edges:
        start = read(made.start)
        value = tile(np.asarray(edge).astype(start.dtype))
        assert read(made.step("a", "x"), a=start, x=value) == value


def test_sums_begin_at_zero() -> None:
    made = Accumulator("sum", torch.float32, 0)
    assert not np.signbit(read(made.fold_tile("a"), a=tile(np.full((3, 1), -0.0, np.float32)))).any()


def test_the_functions_of_the_library_that_texts_call() -> None:
    called = {
        (k, d): Accumulator(k, d, 0).functions for k, d in [*CASES, ("argmax", torch.int64), ("argmin", torch.float32)]
    }
    assert called["amax", torch.float32] == {"m_maximum"} and called["amin", torch.float64] == {"m_minimum"}
    assert (
        called["prod", torch.int32] == {"times"} and called["sum", torch.float32] == called["amax", torch.int8] == set()
    )
    assert called["argmax", torch.int64] == {"best_max"} and called["argmin", torch.float32] == {"best_min"}
    assert set().union(*called.values()) <= set(FUNCTIONS)
    for kind, finds in (("argmax", True), ("argmin", True), ("amax", False), ("any", False)):
        assert Accumulator(kind, torch.float32, 0).finds is finds
    assert LARGEST_INDEX == torch.iinfo(torch.int64).max


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_small_integers_have_32_bits(dtype: torch.dtype) -> None:
    made = Accumulator("sum", dtype, 0)
    narrow = dtype.itemsize < 4 and not dtype.is_floating_point
    assert (made.accumulator_type == "tl.int32") is (narrow or dtype is torch.int32)
    assert made.prepared("x") == ("x.to(tl.int32)" if narrow else "x")
