"""The native matrix product against float64, over shapes, strides, instruction sets and threads."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.runtime import _native
from smelt.runtime.build import build
from smelt.runtime.launch import Table, launch
from smelt.runtime.library.externs import extern
from smelt.runtime.library.gemm import DECLARATION, address
from smelt.runtime.tuned import LIBRARY


def matrix(rows: int, columns: int, layout: str, lead: tuple[int, ...] = ()) -> torch.Tensor:
    """A random matrix in row order, in column order, or with gaps in both directions."""
    match layout:
        case "row":
            return torch.randn(*lead, rows, columns)
        case "column":
            return torch.randn(*lead, columns, rows).transpose(-1, -2)
        case _:
            return torch.randn(*lead, 2 * rows, 3 * columns)[..., ::2, ::3]


def assert_product(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, plus: torch.Tensor | float = 0.0) -> None:
    """Within twice the rounding error that a k-long sum of float32 products may show."""
    exact = a.double() @ b.double() + plus
    scale = a.double().abs() @ b.double().abs() + (plus.abs() if isinstance(plus, torch.Tensor) else 0)
    bound = (2 * a.shape[-1] + 4) * 2**-24 * scale
    assert ((out.double() - exact).abs() <= bound).all()


def gemm(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, accumulate: bool = False) -> _native.Gemm:
    return _native.Gemm(tuple(a.shape), a.stride(), tuple(b.shape), b.stride(), out.stride(), accumulate)


SIZES = [
    (1, 1, 1),
    (3, 5, 7),
    (14, 384, 32),
    (15, 385, 33),
    (100, 300, 70),
    (70, 1000, 130),
    (600, 65, 31),
    (2, 7, 900),
]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_layout(kind: str, size: tuple[int, int, int]) -> None:
    m, k, n = size
    for layouts in itertools.product(("row", "column", "gaps"), repeat=3):
        a, b, out = (matrix(*dims, layout) for dims, layout in zip(((m, k), (k, n), (m, n)), layouts, strict=True))
        assert_product(gemm(a, b, out)(out, a, b), a, b)


@pytest.mark.parametrize("layout", ["row", "column", "gaps"])
def test_bias_and_accumulation(kind: str, layout: str) -> None:
    a, b, out, bias = matrix(37, 500, "row"), matrix(500, 61, "column"), matrix(37, 61, layout), torch.randn(61)
    before = out.clone()
    gemm(a, b, out)(out, a, b, bias)
    assert_product(out, a, b, bias.double().expand(37, 61))
    out.copy_(before)
    gemm(a, b, out, accumulate=True)(out, a, b, bias)
    assert_product(out, a, b, before.double() + bias)


@pytest.mark.parametrize("batch", [1, 2, 3, 9])
def test_batches(kind: str, batch: int) -> None:
    for m, k, n in ((64, 64, 64), (33, 20, 17), (130, 40, 200)):
        a, b = matrix(m, k, "row", (batch,)), matrix(k, n, "column", (batch,))
        out = torch.empty(batch, m, n)
        assert_product(gemm(a, b, out)(out, a, b), a, b)
    shared = torch.randn(40, 50).expand(batch, 40, 50)  # a stride of 0
    a, out = torch.randn(batch, 30, 40), torch.empty(batch, 30, 50)
    assert_product(gemm(a, shared, out)(out, a, shared), a, shared)


def test_more_than_one_pass_over_the_shared_operand() -> None:
    for m, k, n in ((600, 3000, 700), (700, 3000, 600)):
        a, b, out = matrix(m, k, "column"), matrix(k, n, "row"), torch.empty(m, n)
        assert_product(gemm(a, b, out)(out, a, b), a, b)


@pytest.mark.parametrize("threads", [1, 2, 5, 24])
def test_threads(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for m, k, n in ((200, 300, 400), (400, 300, 200), (50, 900, 1000)):
            a, b, out = matrix(m, k, "column"), matrix(k, n, "row"), torch.empty(m, n)
            assert_product(gemm(a, b, out)(out, a, b), a, b)
    finally:
        torch.set_num_threads(before)


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(0, 80), k=st.integers(0, 90), n=st.integers(0, 80), layouts=st.tuples(*[st.sampled_from("rcg")] * 3)
)
def test_any_size(m: int, k: int, n: int, layouts: tuple[str, str, str]) -> None:
    names = {"r": "row", "c": "column", "g": "gaps"}
    a, b, out = (matrix(*d, names[x]) for d, x in zip(((m, k), (k, n), (m, n)), layouts, strict=True))
    assert_product(gemm(a, b, out)(out, a, b), a, b)


def test_infinity_and_nan_stay_in_their_rows_and_columns() -> None:
    a, b, out = torch.randn(20, 30), torch.randn(30, 50), torch.empty(20, 50)
    a[3, 4], b[5, 6] = float("nan"), float("inf")
    gemm(a, b, out)(out, a, b)
    want = a @ b
    assert torch.equal(out.isnan(), want.isnan()) and torch.equal(out.isinf(), want.isinf())


def test_writes_only_its_result() -> None:
    around = torch.full((40, 80), 7.0)
    out = around[5:35, 10:63]
    a, b = torch.randn(30, 20), torch.randn(20, 53)
    gemm(a, b, out)(out, a, b)
    assert (around.sum() - out.sum() - 7 * (40 * 80 - 30 * 53)).abs() < 1
    assert_product(out, a, b)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError):
        _native.Gemm((2, 3), (3, 1), (4, 5), (5, 1), (5, 1))
    with pytest.raises(ValueError):
        _native.Gemm((2,), (1,), (2, 5), (5, 1), (5, 1))
    product = _native.Gemm((2, 3), (3, 1), (3, 5), (5, 1), (5, 1))
    with pytest.raises(TypeError):
        product(torch.empty(2, 5))
    with pytest.raises(TypeError):
        product(torch.empty(2, 5), torch.ones(2, 3), 3)
    assert _native.sgemm_address() > 0 and not _native.gemm_select("no such set")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("only", ["auto", "aten", "onednn", "own"])
def test_extern_product(dtype: torch.dtype, only: str) -> None:
    for name, a, b in (
        ("mm", torch.randn(96, 80, dtype=dtype), torch.randn(72, 80, dtype=dtype).t()),
        ("bmm", torch.randn(3, 96, 80, dtype=dtype), torch.randn(3, 80, 72, dtype=dtype)),
        ("mm", torch.randn(4, 5, dtype=dtype), torch.randn(5, 6, dtype=dtype)),
    ):
        want = a @ b
        kernel = extern(name, {}, [a, b], [want], only=only)
        out = torch.empty_like(want)
        kernel.into(out, a, b)
        for result in (kernel(a, b), kernel(a, b), out):
            torch.testing.assert_close(result, want, rtol=2e-2 if dtype is torch.bfloat16 else 1e-4, atol=1e-3)
        assert kernel.supports_out and kernel.chosen is not None


def test_forced_choice_is_kept() -> None:
    a, b = torch.randn(128, 128), torch.randn(128, 128)
    for only in ("aten", "onednn", "own"):
        kernel = extern("mm", {}, [a, b], [a], only=only)
        kernel(a, b)
        assert kernel.chosen == only


def test_generated_code_calls_the_product() -> None:
    source = (
        DECLARATION
        + """
    extern "C" void both(char **P) {
        static const smelt_gemm shape = {1, 50, 70, 60, 0, 60, 1, 0, 1, 60, 0, 70, 1, 0, 1, 0};
        ((smelt_sgemm)P[0])(&shape, (float *)P[1], (float *)P[2], (float *)P[3], (float *)P[4]);
    }
    """
    )
    a, b, out, bias = torch.randn(50, 60), torch.randn(70, 60), torch.empty(50, 70), torch.randn(70)
    table = Table(5)
    table.set(0, address())
    table.bind_all(1, [a, b, out, bias])
    (library,) = build([source])
    launch(library.address("both"), table)
    assert_product(out, a, b.t(), bias.double().expand(50, 70))


def test_small_products_are_not_timed() -> None:
    a = torch.randn(16, 16)
    assert 16**3 <= LIBRARY.untimed_multiplications and len(extern("mm", {}, [a, a], [a]).candidates) == 1
    assert repr(extern("mm", {}, [a, a], [a], only="aten")) == "<extern mm aten>"
