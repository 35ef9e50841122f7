"""Literals of C: each is the number of its dtype to the bit, as a compiler reads it."""

from __future__ import annotations

import math
import struct

import pytest
import torch

from smelt.codegen.cpp.target import Renderer

FLOATS = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    0.1,
    1e-45,
    3.4028234e38,
    1e300,
    -1e-310,
    math.pi,
    2.0**40,
    math.inf,
    -math.inf,
    math.nan,
]


def read(text: str) -> float:
    text = text.removeprefix("(float)").strip("()")
    named = {"NAN": math.nan, "INFINITY": math.inf, "-INFINITY": -math.inf}
    return named[text] if text in named else float(text.removesuffix("f"))


def bits(value: float, dtype: torch.dtype) -> bytes:
    return torch.tensor([value], dtype=dtype).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("value", FLOATS, ids=str)
def test_floats_are_read_as_they_were(value: float, dtype: torch.dtype) -> None:
    text = Renderer().literal(value, dtype)
    assert (text.strip("()").endswith("f") or "N" in text) == (dtype is not torch.float64 or "N" in text)
    if not math.isfinite(value):
        assert text.startswith("(double)") == (dtype is torch.float64)  # C's own are floats
    got = read(text.removeprefix("(double)"))
    if math.isnan(value):
        assert math.isnan(got)
    else:
        in_register = got if dtype is torch.float64 else struct.unpack("f", struct.pack("f", got))[0]
        assert bits(in_register, dtype) == bits(value, dtype)
    assert not text.startswith("-")  # `a -1.0f` and `x - -1.0f` would be other programs


@pytest.mark.parametrize("value", [0, 1, -1, 127, -128, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)], ids=str)
@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64], ids=str)
def test_whole_numbers(value: int, dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    if not info.min <= value <= info.max:
        pytest.skip("no number of this dtype")
    text = Renderer().literal(value, dtype)
    lowest = {"INT64_MIN": -(2**63), "INT32_MIN": -(2**31)}
    assert (
        lowest.get(text, None) == value
        or int(text.replace("(int64_t)", "").replace("(int8_t)", "").strip("()")) == value
    )
    assert text not in ("-2147483648", "-9223372036854775808")  # C reads these as minus a number that does not fit


def test_booleans_and_what_is_not_known() -> None:
    assert [Renderer().literal(value, torch.bool) for value in (True, False, 2, 0.0)] == [
        "true",
        "false",
        "true",
        "false",
    ]
    with pytest.raises(KeyError):
        Renderer().op("no such op", torch.float32, ["x"])
