"""Values that programs decide by: what cancels, numbers beside low precision, ends of ranges, signs of zeros."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import smelt

nan, inf = math.nan, math.inf


def both(f: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, Any]:
    """(eager's, ours)"""
    smelt.reset()
    return f(*args), smelt.compile(f, options=options or None)(*args)


def same(want: Tensor, got: Tensor) -> bool:
    """Bit for bit, but for the payload of NaN."""
    if want.dtype is not got.dtype or want.shape != got.shape:
        return False
    if not want.dtype.is_floating_point:
        return torch.equal(want, got)
    known = ~want.isnan()
    signs = torch.equal(want[known].signbit(), got[known].signbit())
    return signs and torch.equal(want.isnan(), got.isnan()) and torch.equal(want[known], got[known])


CANCELS: dict[str, Callable[[Tensor], Tensor]] = {
    "discriminant": lambda b: torch.sqrt(b * b - 4 * (b * 0.5) * (b * 0.5)),
    "determinant": lambda a: a * (2 * (a + 1)) - (a + 1) * (2 * a),
    "mask": lambda a: (a * 3 + 1) - a * 3 == (a * 3 + 1) + (-(a * 3)),
    "chain": lambda a: a * 1.1 + a * 0.3 - (a * 0.7) * a,
}


@pytest.mark.parametrize("name", CANCELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_operators_round_one_by_one(name: str, dtype: torch.dtype, size: int) -> None:
    assert same(*both(CANCELS[name], torch.randn(size, 3, dtype=dtype)))


def test_a_sum_takes_products_rounded() -> None:
    mean_of_squares = lambda a: ((a * a).mean(0) - a.mean(0) * a.mean(0)).sqrt()  # noqa: E731
    assert same(*both(mean_of_squares, torch.full((7, 3), 1.1)))


def test_contraction_is_an_option() -> None:
    x = torch.rand(1000) * 3
    want, got = both(CANCELS["chain"], x, contract=True)
    torch.testing.assert_close(got, want)
    assert smelt.list_options()["contract"]


LOW: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "add": lambda x, n: x + n, "sub": lambda x, n: x - n, "from": lambda x, n: n - x, "mul": lambda x, n: x * n,
    "div": lambda x, n: x / n, "divided": lambda x, n: n / x, "fmod": torch.fmod, "remainder": lambda x, n: x % n,
    "floor": lambda x, n: torch.div(x, n, rounding_mode="floor"),
    "trunc": lambda x, n: torch.div(x, n, rounding_mode="trunc"),
    "eq": lambda x, n: x == n, "ne": lambda x, n: x != n, "lt": lambda x, n: x < n, "ge": lambda x, n: x >= n,
    "pow": lambda x, n: x.abs() ** n, "where": lambda x, n: torch.where(x > n, x, n),
    "atan2": lambda x, n: x.atan2(x + n),
    "mask": lambda x, n: x.masked_fill(x == n, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", LOW)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("number", [0.1, 257, torch.tensor(0.1), torch.tensor(2049)], ids=str)
def test_numbers_beside_low_precision(name: str, dtype: torch.dtype, number: Any) -> None:
    x = torch.cat([torch.randn(300) * 3, torch.tensor([0.1, -0.1, 0.2, 257, 258, 2049, 1.0])]).to(dtype)
    if name == "pow" and not isinstance(number, float):
        return  # leaves the range
    assert same(*both(LOW[name], x, number))


def test_factors_beside_low_precision() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.randn(320).to(dtype)  # whole vectors: eager rounds once more in what is left of one
        for f in (
            lambda x: torch.add(x, x, alpha=0.1), lambda x: torch.sub(x, x * 3, alpha=0.3),
            lambda x: F.hardshrink(x, 0.1), lambda x: torch.addcmul(x, x, x, value=0.1),
            lambda x: torch.lerp(x, x * 3, 0.1),
        ):  # fmt: skip
            assert same(*both(f, x))


FLOATS = [0.0, -0.0, 0.5, -0.5, 0.999, 127.0, 128.0, -129.0, 255.0, 256.0, 300.0, -1.5, 32768.0, 65536.0, 7e4, 2.0**31,
          -(2.0**31), 3e9, -3e9, 9.2e18, 9.3e18, 1e19, 1e30, inf, -inf, nan, 1e-40]  # fmt: skip
WHOLE = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool]


@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_floats_that_no_integer_holds(source: torch.dtype) -> None:
    x = torch.tensor(FLOATS * 3, dtype=torch.float64).to(source)

    def casts(x: Tensor) -> list[Tensor]:
        found = []
        for kind in WHOLE:
            found += [x.to(kind), x.to(kind).to(torch.float32), x.to(kind).to(torch.float64), (x * 1).long().to(kind)]
        return found

    for number, (want, got) in enumerate(zip(*both(casts, x), strict=True)):
        assert same(want, got), (WHOLE[number // 4], number % 4)


@pytest.mark.parametrize("shift", [0.0, 1e4, 1e7])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
@pytest.mark.parametrize("dim", [0, 1, (0, 1)])
def test_variances_are_as_exact_as_eagers(shift: float, scale: float, dim: Any) -> None:
    x = (torch.randn(70, 1000) + shift) * scale
    x[3], x[:, 4] = 1.1 * scale, 1.1 * scale
    for f in (torch.var, torch.std):
        exact = f(x.double(), dim)
        want, got = both(lambda x, f=f: f(x, dim), x)
        if f is torch.std or scale == 1.0:
            error, own = (got.double() - exact).abs(), (want.double() - exact).abs()
            assert bool((error <= 2 * own + exact * 1e-7).all())


NORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "layer": lambda x: F.layer_norm(x, (64,)), "group": lambda x: F.group_norm(x[None], 10),
    "instance": lambda x: F.instance_norm(x[None]), "batch": lambda x: F.batch_norm(x, None, None, training=True),
}  # fmt: skip


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("target", ["cpp", "triton"])
def test_norms_far_from_zero(name: str, target: str) -> None:
    if target == "triton":
        pytest.importorskip("triton")
    for shift in (0.0, 1e3, 1e5):
        x = torch.randn(20, 64) + shift
        exact = NORMS[name](x.double())
        want, got = both(NORMS[name], x, target=target)
        assert (got.double() - exact).abs().max() <= 2 * (want.double() - exact).abs().max() + 1e-6
    constant = torch.full((20, 64), 1000.1)
    assert both(NORMS[name], constant, target=target)[1].abs().max() < 1e-2


@pytest.mark.parametrize("size", [2, 33, 64])
def test_norms_whose_squares_overflow(size: int) -> None:
    """No numbers that look like results: NaN or the bias alone, as eager's kernels give by the size of the row."""
    x, bias = torch.randn(3, size) * 1e30, torch.randn(size)
    want, got = both(lambda x: F.layer_norm(x, (size,), bias=bias), x)
    for out in (want, got):
        assert all(bool(row.isnan().all()) or torch.equal(row, bias) for row in out)


def test_a_gelu_of_infinity() -> None:
    """As eager's formula has it; the vectors of eager's float32 kernel give NaN."""
    x = torch.tensor([inf, -inf, nan, 1e30, -1e30] * 7)
    want, got = both(F.gelu, x)
    assert torch.allclose(got.double(), F.gelu(x.double()), equal_nan=True)
    assert bool((want.isnan() | (want == got)).all())


ZEROS: dict[str, Callable[[Tensor], Tensor]] = {
    "minus": lambda x: -x, "fill": lambda x: x.masked_fill(x > 0, -0.0),
    "sum of one": lambda x: x.reshape(-1, 1).sum(1), "sum": lambda x: x.reshape(2, -1).sum(1),
    "fmod": lambda x: torch.fmod(x, 0.5).reshape(-1, 1).sum(1),
    "angle": lambda x: torch.atan2(-x, torch.full_like(x, -1.0)),
    "sign": lambda x: torch.copysign(torch.ones_like(x), -x),
    "constant": lambda x: x * 0 + torch.full_like(x, -0.0), "mean": lambda x: x.reshape(-1, 1).mean(1),
    "signbit": lambda x: torch.signbit(-x), "where": lambda x: torch.where(x > 0, -0.0, x),
}  # fmt: skip


@pytest.mark.parametrize("target", ["cpp", "triton"])
def test_signs_of_zeros(target: str) -> None:
    if target == "triton":
        pytest.importorskip("triton")
    infinite = torch.tensor([inf, -inf, 0.0, -1.0])
    assert same(*both(lambda x: [torch.signbit(x), x.double().signbit()][0], infinite, target=target))
    assert same(*both(lambda x: x.double().mul(1.1).to(torch.bfloat16), infinite, target=target))
    x = torch.tensor([0.0, -0.0, -0.0, -1.0, 1.0, -0.0, -0.0, -0.5])
    for rows in (x, torch.full((8,), -0.0), torch.full((64,), -0.0)):
        want, got = both(lambda x: [f(x) for f in ZEROS.values()], rows, target=target)
        assert [name for name, a, b in zip(ZEROS, want, got, strict=True) if not same(a, b)] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_extremes_of_zeros(dtype: torch.dtype) -> None:
    for size in (1, 3, 64, 128):
        x, y = (
            torch.tensor([0.0, -0.0] * size, dtype=dtype)[:size],
            torch.tensor([-0.0, 0.0] * size, dtype=dtype)[:size],
        )

        def extremes(x: Tensor, y: Tensor) -> list[Tensor]:
            found = [torch.maximum(x, y), torch.minimum(x, y), x.clamp(min=y), x.clamp(max=y), x.clamp(0, 0)]
            return [*found, x.relu(), torch.fmax(x, y), torch.maximum(x, torch.zeros_like(x))]

        for want, got in zip(*both(extremes, x, y), strict=True):
            assert same(want, got)


def test_products_that_count_for_nothing() -> None:
    for n in (3, 40):
        a, b, c = torch.full((n, n), nan), torch.ones(n, n), torch.ones(n, n)
        for beta in (1, 2, 0):
            for f in (torch.addmm, torch.addbmm, torch.baddbmm, torch.addmv, torch.addr):
                args = (c, a, b)
                if f in (torch.addbmm, torch.baddbmm):
                    args = (c if f is torch.addbmm else c.repeat(2, 1, 1), a.repeat(2, 1, 1), b.repeat(2, 1, 1))
                if f is torch.addmv:
                    args = (c[0], a, b[0])
                if f is torch.addr:
                    args = (c, a[0], b[0])
                assert same(*both(lambda *args, f=f, beta=beta: f(*args, alpha=0, beta=beta), *args)), (f, n, beta)


def test_a_dtype_of_a_sum_converts_first() -> None:
    x = torch.randn(8, 8).half()
    for f in (
        lambda x: x.sum(-2, dtype=torch.bfloat16), lambda x: x.sum(dtype=torch.bfloat16),
        lambda x: x.cumsum(0, dtype=torch.bfloat16), lambda x: torch.nansum(x, 0, dtype=torch.bfloat16),
        lambda x: (x * 100).sum(0, dtype=torch.int8), lambda x: (x * 3).prod(0, dtype=torch.int64),
    ):  # fmt: skip
        assert same(*both(f, x))


def test_ends_of_ranges() -> None:
    x = 1 - torch.tensor([0.5, 1e-3, 1e-8, 1e-12, 1e-16, 0.0], dtype=torch.float64)
    for want, got in zip(*both(lambda x: [torch.erfinv(x), torch.erfinv(-x)], x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-15, atol=0)
    edges = torch.tensor([nan, 1.0, -1.0, inf, -inf, 0.25])
    want, got = both(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -8, 7), edges)
    assert torch.equal(want, got)
    grads = []
    for call in (torch.logit, smelt.compile(torch.logit)):
        x = torch.tensor([0.0, 1.0, 0.5, -0.0, 1.5, nan], requires_grad=True)
        call(x).sum().backward()
        assert x.grad is not None
        grads.append(x.grad)
    assert same(*grads)
    drawn = smelt.compile(lambda x: torch.empty_like(x).exponential_())(torch.empty(2**24))
    assert bool((drawn > 0).all())


BEYOND = (inf, -inf, nan, 1e20, -3e9, 2.0**31, 300.5, -3.7)
CONSTANTS: dict[str, Callable[[Tensor, float, torch.dtype], Tensor]] = {
    "full": lambda x, number, dtype: torch.full((3,), number).to(dtype),
    "literal": lambda x, number, dtype: torch.tensor([number], dtype=torch.float64).to(dtype),
    "where": lambda x, number, dtype: torch.where(x > 0, number, 0.0).to(dtype),
    "where of two": lambda x, number, dtype: torch.where(x > 0, number, x).to(dtype),
    "masked": lambda x, number, dtype: x.masked_fill(x > 0, number).to(dtype),
    "padded": lambda x, number, dtype: torch.nn.functional.pad(x, (1, 2), value=number).to(dtype),
}


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_that_no_integer_holds(name: str, dtype: torch.dtype) -> None:
    """The compiler of C++ makes the nearest integer of a constant, the processor the least one."""
    for number in BEYOND:
        want, got = both(lambda x, n=number: CONSTANTS[name](x, n, dtype), torch.arange(-2.0, 3.0))
        assert torch.equal(want, got), number


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("columns", [7, 8, 1000])
@pytest.mark.parametrize("value", [float("inf"), float("-inf")])
def test_an_infinite_element_in_a_norm_of_squares(
    compiled: Any, value: float, columns: int, dtype: torch.dtype
) -> None:
    """As the formula has it: 0 in the finite elements, NaN in that one."""
    x = torch.randn(3, columns).to(dtype)
    x[1, 2] = value
    got = compiled(lambda x: F.rms_norm(x, x.shape[-1:]))(x)
    expected = F.rms_norm(x.double(), x.shape[-1:], eps=torch.finfo(torch.float32).eps)
    assert torch.equal(got.isnan(), expected.isnan()) and got[1].nan_to_num().eq(0).all()
    torch.testing.assert_close(got.double(), expected, rtol=1e-2, atol=1e-2, equal_nan=True)


@pytest.mark.parametrize("name", ["any", "all", "sum", "mean", "amax", "count_nonzero", "std"])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
def test_reductions_over_a_list_of_no_dimensions(name: str, keepdim: bool, dynamic: bool | None) -> None:
    """For `any` and `all` that is no dimension; for the others it is all of them."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return getattr(torch, name)(x, dim=(), **({} if name == "count_nonzero" else {"keepdim": keepdim}))

    c = smelt.compile(f, dynamic=dynamic)
    for rows in (2, 3, 1):
        x = torch.arange(2.0 * rows).reshape(rows, 2) % 3
        torch.testing.assert_close(c(x), f(x))
