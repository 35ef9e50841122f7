"""Accuracy of the inline functions against float64, special values, and that the compiler vectorises them."""

from __future__ import annotations

import ctypes
import math

import pytest
import torch

import smelt
from smelt.codegen.vector_math import FUNCTIONS, header
from smelt.runtime.build import Library, build

ULP = {
    "exp": 1.5, "expm1": 2, "exp2": 1.5, "log": 1.5, "log2": 2, "log10": 2.5, "log1p": 2, "sigmoid": 2.5, "tanh": 3,
    "erf": 2, "sin": 2, "cos": 2, "erfinv": 1, "digamma": 1,
}  # fmt: skip
SPECIAL = [math.inf, -math.inf, math.nan, 0.0, -0.0, 1.0, -1.0]


@pytest.fixture(scope="module")
def library() -> Library:
    source = header(FUNCTIONS)
    loop = "#pragma omp simd\n    for (int i = 0; i < n; i++) b[i] = {0};"
    for name in ULP:
        source += f'extern "C" void f_{name}(const float *a, float *b, int n) {{\n{loop.format(f"m_{name}(a[i])")}}}\n'
    for name in ("bf16", "f16"):
        text = loop.format(f"{name}_store({name}_round(a[i]))")
        source += f'extern "C" void to_{name}(const float *a, uint16_t *b, int n) {{\n{text}}}\n'
        text = loop.format(f"{name}_load(a[i])")
        source += f'extern "C" void from_{name}(const uint16_t *a, float *b, int n) {{\n{text}}}\n'
    (built,) = build([source])
    return built


def apply(library: Library, name: str, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    result = torch.empty(x.shape, dtype=dtype)
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)(library.address(name))
    call(x.data_ptr(), result.data_ptr(), x.numel())
    return result


def samples(name: str) -> torch.Tensor:
    any_bits = torch.randint(-(2**31), 2**31 - 1, (200_000,)).to(torch.int32).view(torch.float32)
    parts = [torch.randn(100_000), torch.randn(50_000) * 30, torch.rand(50_000) * 2, torch.randn(20_000) * 1e-3]
    if name in ("sin", "cos"):
        any_bits = any_bits[any_bits.abs() < 1e8]
    if name == "erfinv":
        return torch.cat([torch.rand(100_000) * 2 - 1, torch.tensor(SPECIAL)])
    if name == "sigmoid":
        any_bits = any_bits[any_bits > -87]  # below, the exact result is denormal and eager gives 0 as well
        parts[1] = parts[1].clamp(min=-87)
    return torch.cat([any_bits, *parts, torch.tensor(SPECIAL)])


@pytest.mark.parametrize("name", ULP)
def test_accuracy(library: Library, name: str) -> None:
    x = samples(name)
    got = apply(library, f"f_{name}", x, torch.float32)
    exact = getattr(torch.special if name in ("erfinv", "digamma") else torch, name)(x.double())
    want = exact.to(torch.float32)
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got[want.isinf()], want[want.isinf()])
    assert torch.equal(got.signbit()[want == 0], want.signbit()[want == 0])
    plain = want.isfinite()
    spacing = torch.nextafter(want.abs(), torch.tensor(math.inf)) - want.abs()
    error = ((got.double() - exact).abs() / spacing.double())[plain]
    assert float(error.max()) <= ULP[name]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_shifts_by_any_amount(dtype: torch.dtype) -> None:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = torch.tensor([0, 1, 5, high, low]).to(dtype)[:, None]
    by = torch.tensor([n for n in (0, 1, 7, 8, 15, 16, 31, 32, 63, 64, high, low, -1) if low <= n <= high]).to(dtype)

    def shifts(x: torch.Tensor, by: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x << by, x >> by, x << 3, x >> 100, x << -1

    for got, want in zip(smelt.compile(shifts, fullgraph=True)(x, by), shifts(x, by), strict=True):
        assert got.equal(want)


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_low_precision_conversions(library: Library, name: str, dtype: torch.dtype) -> None:
    x = samples("exp")
    got = apply(library, f"to_{name}", x, torch.int16).view(dtype)
    torch.testing.assert_close(got, x.to(dtype), rtol=0, atol=0, equal_nan=True)
    every = torch.arange(-(2**15), 2**15).to(torch.int16)
    back = apply(library, f"from_{name}", every, torch.float32)
    torch.testing.assert_close(back, every.view(dtype).float(), rtol=0, atol=0, equal_nan=True)


def test_a_unit_holds_only_what_it_uses() -> None:
    text = header({"tanh"})
    assert "m_expm1" in text and "m_erf" not in text


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_signs(dtype: torch.dtype) -> None:
    """GCC 12 fails on its own signbit of bfloat16."""
    x = torch.tensor([0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 1.0, -1.0] * 5, dtype=dtype)
    assert torch.equal(smelt.compile(torch.signbit, fullgraph=True)(x), torch.signbit(x))
