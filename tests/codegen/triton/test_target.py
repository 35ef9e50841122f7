"""smelt/codegen/triton/target.py: texts of numbers and operators, run with numpy in place of Triton."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from smelt.codegen.triton.library import FUNCTIONS
from smelt.codegen.triton.target import (
    BOOL_OPS,
    COMMON_OPS,
    FLOAT_OPS,
    INTEGER_OPS,
    LARGEST_DIVISOR,
    MEMORY_TYPES,
    VALUE_TYPES,
    literal,
    operator,
    quotient,
    whole_division,
)
from smelt.prims.ops import PRIMS
from tests.codegen.triton.test_reductions import TYPES, Tile, tile, tl

NUMBERS = [0, -0.0, 1, -1.5, 0.1, 1e-40, 3.5e38, 7e4, 2.0**40, math.inf, -math.inf, math.nan, 255, -129]
NAMES = {
    "tl": SimpleNamespace(
        **vars(tl), where=lambda m, a, b: tile(np.where(m, a, b)), abs=lambda x: tile(np.abs(x)),
        exp2=lambda x: tile(np.exp2(x)), floor=np.floor, ceil=np.ceil,
    ),
    "libdevice": SimpleNamespace(rint=np.rint, trunc=np.trunc, copysign=np.copysign, fmod=np.fmod, pow=np.power),
    "float": float,
}  # fmt: skip


def read(text: str, **names: Any) -> Any:
    with np.errstate(all="ignore"):
        return eval(text, {**NAMES, **names})


def same_bits(one: Any, other: Any) -> bool:
    return one == other and math.copysign(1, one) == math.copysign(1, other) or (one != one and other != other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("value", NUMBERS, ids=str)
def test_floats_are_read_as_they_are_rounded(value: float, dtype: torch.dtype) -> None:
    got = read(literal(value, dtype))
    assert got.dtype == TYPES[VALUE_TYPES[dtype]]
    assert same_bits(float(got), torch.tensor(value, dtype=torch.float64).to(dtype).item())


def test_a_zero_below_zero_is_computed() -> None:
    """What Triton's `full` is given it takes for 0."""
    assert literal(-0.0, torch.float32) == "(tl.full([], -1.0, tl.float32) * 0.0)"
    assert "* 0.0" not in literal(0.0, torch.float32) + literal(-1.0, torch.float64)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool], ids=str)
def test_whole_numbers_are_read_as_they_are(dtype: torch.dtype) -> None:
    info = SimpleNamespace(min=0, max=1) if dtype is torch.bool else torch.iinfo(dtype)
    for value in (info.min, info.max, 1, 0, True):
        got = read(literal(value, dtype))
        assert got == value and got.dtype == TYPES[VALUE_TYPES[dtype]]


def test_types_in_registers_and_in_memory() -> None:
    assert set(MEMORY_TYPES) == set(VALUE_TYPES)
    for dtype, name in MEMORY_TYPES.items():
        bits = int("".join(c for c in name if c.isdigit()))
        assert bits == 8 * dtype.itemsize and name.startswith(("fp", "bf")) == dtype.is_floating_point


def operands(dtype: torch.dtype, count: int) -> list[torch.Tensor]:
    if dtype is torch.bool:
        rows = list(itertools.product([False, True], repeat=count))
        return [torch.tensor(column) for column in zip(*rows, strict=True)]
    values = [0, 1, 2, 3, 5, 100] if dtype is torch.uint8 else [-3, -1, 0, 1, 2, 5]
    rows = list(itertools.product(values, repeat=count))
    columns = [torch.tensor(column).to(dtype) for column in zip(*rows, strict=True)]
    return [c + 0.5 for c in columns] if dtype.is_floating_point else columns


PLAIN = sorted({*COMMON_OPS, *INTEGER_OPS, *BOOL_OPS, "neg", "round", "copysign", "trunc"} - {"where", "fma"})


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int8, torch.uint8, torch.bool], ids=str)
def test_operators_without_functions_of_ours_give_what_primitives_do(dtype: torch.dtype) -> None:
    checked = 0
    for op in PLAIN:
        inputs = operands(dtype, len(PRIMS[op].parameters))
        try:
            text = operator(op, dtype, [f"x{i}" for i in range(len(inputs))])
            want = PRIMS[op](*inputs)
        except (KeyError, RuntimeError, NotImplementedError):
            continue
        if "m_" in text:
            continue
        got = read(text, **{f"x{i}": x.numpy().view(Tile) for i, x in enumerate(inputs)})
        near = 1e-6 if op == "pow" else 0  # numpy's is rounded elsewhere
        np.testing.assert_allclose(np.asarray(got).astype(want.numpy().dtype), want.numpy(), near, 0, err_msg=op)
        checked += 1
    assert checked >= 14


def test_functions_that_texts_call_are_in_the_library() -> None:
    for table in (FLOAT_OPS, INTEGER_OPS, BOOL_OPS, COMMON_OPS):
        for text in table.values():
            if text.startswith("m_"):
                assert text.split("(")[0] in FUNCTIONS, text


def test_unsigned_bytes_go_through_functions_of_ours_as_wide_numbers() -> None:
    text = operator("remainder", torch.uint8, ["x", "y"])
    assert text == "m_remainder_int(x.to(tl.int64), y.to(tl.int64)).to(tl.uint8)"
    assert operator("shift_left", torch.uint8, ["x", "y"]).endswith(", 8).to(tl.uint8)")
    assert operator("shift_left", torch.int16, ["x", "y"]) == "m_shift_left(x, y, 16)"
    assert operator("add", torch.uint8, ["x", "y"]) == "x + y"
    with pytest.raises(KeyError):
        operator("erf", torch.int32, ["x"])
    with pytest.raises(KeyError):
        operator("bitwise_and", torch.float32, ["x", "y"])


@pytest.mark.parametrize(
    "divisor", [1.0, -1.0, 3.0, 0.99, -0.5, LARGEST_DIVISOR, LARGEST_DIVISOR * 2, math.nan, math.inf]
)
def test_quotients_by_numbers_multiply_where_nothing_overflows(divisor: float) -> None:
    quick = 1 <= abs(divisor) <= LARGEST_DIVISOR
    text = quotient(torch.float32, ["x", "d"], divisor)
    assert text.startswith("m_div_by(x, ") is quick and (text == "m_div(x, d)") is not quick
    if quick:
        (_, minus, reciprocal) = read(text, m_div_by=lambda *given: given, x=1.0)
        assert minus == -divisor and reciprocal == np.float32(1) / np.float32(divisor)
    assert quotient(torch.float64, ["x", "d"], divisor) == "m_div(x, d)"
    assert quotient(torch.bfloat16, ["x", "d"], divisor).startswith("m_div_by") is quick


def test_whole_numbers_over_0_are_divided_as_c_does() -> None:
    assert whole_division("floor_div", torch.int64, "a", "b") == "m_floor_div_any(a, b)"
    assert whole_division("fmod", torch.int8, "a", "b") == "m_fmod_any(a.to(tl.int32), b.to(tl.int32)).to(tl.int8)"
    for op, of_bytes in (
        ("floor_div", "trunc_div"),
        ("remainder", "fmod"),
        ("trunc_div", "trunc_div"),
        ("fmod", "fmod"),
    ):
        assert whole_division(op, torch.uint8, "a", "b").startswith(f"m_{of_bytes}_any(a.to(tl.int32)")
        for dtype in (torch.int32, torch.uint8):
            assert whole_division(op, dtype, "a", "b").split("(")[0] in FUNCTIONS
