"""Accuracy of the inline functions against float64, special values, and that the compiler vectorises them."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import pytest
import torch

import smelt
from smelt.codegen.cpp.vector_math import FUNCTIONS, header
from smelt.runtime.build import Library, build

ULP = {
    "exp": 1.5, "expm1": 2, "exp2": 1.5, "log": 1.5, "log2": 2, "log10": 2.5, "log1p": 2, "sigmoid": 2.5, "tanh": 3,
    "erf": 2, "sin": 2, "cos": 2, "erfinv": 1, "digamma": 1,
}  # fmt: skip
PERIODIC = ("sin", "cos")
SPECIAL = [math.inf, -math.inf, math.nan, 0.0, -0.0, 1.0, -1.0]


@pytest.fixture(scope="module")
def library() -> Library:
    source = header(FUNCTIONS)
    loop = "#pragma omp simd\n    for (int i = 0; i < n; i++) b[i] = {0};"
    for name in ULP:
        call = f"m_{name}<true>(a[i])" if name in PERIODIC else f"m_{name}(a[i])"
        source += f'extern "C" void f_{name}(const float *a, float *b, int n) {{\n{loop.format(call)}}}\n'
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


def _map(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2 + x.cos()


def _rows(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() - x.cos().mean(-1, keepdim=True)).sum(-1)


def _columns(x: torch.Tensor) -> torch.Tensor:
    return x.sin().sum(0) + (x[:, :1].cos() + x.sin()).amax(0)


def _over_an_intermediate(x: torch.Tensor) -> torch.Tensor:
    return (x @ torch.eye(x.shape[1], dtype=x.dtype)).sin() @ torch.eye(x.shape[1], dtype=x.dtype)


def _scattered(x: torch.Tensor) -> torch.Tensor:
    index = torch.arange(x.shape[0]).flip(0)
    return torch.zeros_like(x).index_add(0, index, x.cos())


FUNCTIONS_OF_ANGLES = [_map, _rows, _columns, _over_an_intermediate, _scattered]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("f", FUNCTIONS_OF_ANGLES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("exponent", [0, 8, 9, 15, 16, 22, 30, 38])
def test_angles_of_any_size(f: Callable[..., torch.Tensor], dtype: torch.dtype, exponent: int) -> None:
    """Few large ones among small ones, and the largest numbers of the dtype."""
    torch.manual_seed(exponent)
    x = torch.randn(24, 40)
    x[5::7, 3::5] = torch.rand(3, 8).add(0.5).mul(2).clamp(max=3.3) * 10.0**exponent
    x[-1, -1] = torch.finfo(torch.float32).max if exponent > 30 else 1.0
    x = x.to(dtype).clamp(-3e38, 3e38)
    got, exact = smelt.compile(f, fullgraph=True, dynamic=False)(x), f(x.double())
    own = (f(x).double() - exact).abs().max()
    error = (got.double() - exact).abs().max()
    assert float(error) <= 2 * float(own) + 8 * torch.finfo(dtype).eps * max(1.0, float(exact.abs().max()))


def test_a_kernel_that_writes_over_an_argument_of_sin_runs_once() -> None:
    def step(x: torch.Tensor) -> None:
        x.copy_(x.sin())

    x = torch.tensor([1e20, 0.5, -3e38, 7.0] * 8)
    want = x.double().sin().float()
    smelt.compile(step, fullgraph=True)(x)
    torch.testing.assert_close(x, want, rtol=1e-6, atol=1e-7)


def test_tan_of_any_size() -> None:
    x = torch.cat([samples("sin"), torch.tensor([3.4e38, 1e15, 1e16, -1e22])])
    got, exact = smelt.compile(torch.tan, fullgraph=True)(x), x.double().tan()
    plain = exact.isfinite()
    torch.testing.assert_close(got[plain].double(), exact[plain], rtol=1e-6, atol=1e-7)
