"""Products, with terms and without, against eager. In low precision a term is added before the product is rounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from tests.prims.aten_check import check
from tests.prims.prim_check import names

aten = torch.ops.aten

T = torch.Tensor
PROGRAMS: dict[str, Callable[[T, T, T], T]] = {
    "addmm": lambda x, a, b: torch.addmm(x, a, b),
    "addmm scaled": lambda x, a, b: torch.addmm(x, a, b, beta=1.5, alpha=1.5),
    "alpha alone": lambda x, a, b: torch.addmm(x, a, b, beta=0, alpha=1.7),
    "rows": lambda x, a, b: torch.addmm(x[:1], a[:1].expand_as(a), b),
    "a column": lambda x, a, b: torch.addmm(x[:, :1], a, b[:, :1].expand_as(b)),
    "baddbmm": lambda x, a, b: torch.baddbmm(x, a[None], b[None]),
    "baddbmm of no dimensions": lambda x, a, b: torch.baddbmm(x[0, 0], a[:1, None], b[None, :, :1]),
    "addmv": lambda x, a, b: torch.addmv(x[:, 0], a, b[:, 0]),
    "linear": lambda x, a, b: torch.nn.functional.linear(a[:1].expand_as(a), b.t(), x[0]),
    "linear of a sequence": lambda x, a, b: torch.nn.functional.linear(a[None, :1].contiguous(), b.t(), x[0]),
}


def _laid_out(x: T, layout: str) -> T:
    match layout:
        case "transposed":
            return x.t().contiguous().t()
        case "gaps":
            return torch.full((x.shape[0], x.shape[1] + 3), torch.nan, dtype=x.dtype)[:, : x.shape[1]].copy_(x)
        case "offset":
            return torch.full((x.numel() + 1,), torch.nan, dtype=x.dtype)[1:].view(x.shape).copy_(x)
    return x


@pytest.mark.parametrize("target", ["cpp", "triton"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_term_that_cancels_the_product(name: str, dtype: torch.dtype, target: str) -> None:
    program = PROGRAMS[name]
    compiled = smelt.compile(program, options={"target": target})
    for layout, (n, k, m) in zip(
        ("own", "transposed", "gaps", "offset"), ((8, 2, 8), (9, 64, 24), (3, 1, 5), (1, 7, 9)), strict=True
    ):
        torch.manual_seed(n)
        a, b = (_laid_out(torch.randn(*shape).to(dtype), layout) for shape in ((n, k), (k, m)))
        term = _laid_out((-(a.double() @ b.double()) + 1e-2 * torch.randn(n, m)).to(dtype), layout)
        exact, eager = program(term.double(), a.double(), b.double()), program(term, a, b).double()
        error = (compiled(term, a, b).double() - exact).abs().max()
        rounding = exact.abs().max() * torch.finfo(dtype).eps
        assert error <= (eager - exact).abs().max() + rounding, layout
        assert compiled(term, a, b).stride() == program(term, a, b).stride()


@pytest.mark.parametrize("target", ["cpp", "triton"])
def test_weights_of_attention_whose_queries_are_alike(target: str) -> None:
    """Logits that are rounded twice put the weights at another place: gradients of hundreds, where eager has none."""

    def program(x: T, weight: T, bias: T, mask: T) -> T:
        out, weights = torch.nn.functional.multi_head_attention_forward(
            x, x, x, 2, 2, weight, bias, None, None, False, 0.0, weight[:2], bias[:2], attn_mask=mask
        )
        return out.sum() + weights.square().sum()

    compiled = smelt.compile(program, options={"target": target})
    for seed in range(3):
        torch.manual_seed(seed)
        made = (torch.randn(1, 2, 2).expand(3, 2, 2) * 4, torch.randn(6, 2) * 3, torch.randn(6) * 3, torch.randn(3, 3))
        given = [x.bfloat16() for x in made]
        gradients = []
        for run in (program, compiled):
            leaves = [x.clone().requires_grad_() for x in given]
            gradients.append(torch.autograd.grad(run(*leaves), leaves))
        for got, want in zip(*reversed(gradients), strict=True):
            assert torch.allclose(got.float(), want.float(), rtol=0.02, atol=0.02 * float(want.abs().max()))


@pytest.mark.parametrize("target", ["cpp", "triton"])
def test_numbers_of_the_call(target: str) -> None:
    """A factor that changes from call to call, or a size, is part of the graph."""
    compiled = smelt.compile(
        lambda x, a, b, n: torch.addmm(x, a, b, alpha=n, beta=a.shape[0]), options={"target": target}
    )
    for n in (2, 3, 0.5):
        x, a, b = (torch.randn(4, 4).bfloat16() for _ in range(3))
        want = torch.addmm(x, a, b, alpha=n, beta=4)
        assert torch.allclose(compiled(x, a, b, n).float(), want.float(), rtol=0.02, atol=0.05)


# -- the rules themselves, against eager


def f(*shape: int, dtype: torch.dtype = torch.float64) -> T:
    return torch.randn(shape, dtype=dtype)


FACTORS = [(1, 1), (0.5, 2), (0, 1), (1, 0), (0, 0), (-2, 0), (0, 3)]


@pytest.mark.parametrize(("beta", "alpha"), FACTORS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64], ids=str)
def test_a_term_and_a_product(beta: float, alpha: float, dtype: torch.dtype) -> None:
    if dtype is torch.int64:
        beta, alpha = int(beta), int(alpha)
    x, a, b = ((f(*shape) * 3).to(dtype) for shape in ((3, 5), (2, 3, 4), (2, 4, 5)))
    how = {"beta": beta, "alpha": alpha, "scale": 2.0}
    for term in (x, x[:1], x[0], x[:, :1], x[0, 0]):
        check(aten.addmm.default, term, a[0], b[0], **how)
        check(aten.baddbmm.default, term, a, b, **how)
        check(aten.addbmm.default, term, a, b, fallback=dtype is torch.bfloat16, **how)
    for term in (x[:, 0], x[:1, 0], x[0, 0]):
        check(aten.addmv.default, term, a[0], b[0, :, 0], **how)
    check(aten.addr.default, x, a[0, :, 0], b[0, 0], **how)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_operand_with_factor_0_is_not_read(dtype: torch.dtype) -> None:
    """NaN in the term where beta is 0, and in the product where alpha is and BLAS computes it."""
    nan, x, a, b = f(3, 5).to(dtype) * torch.nan, f(3, 5).to(dtype), f(3, 4).to(dtype), f(4, 5).to(dtype)
    check(aten.addmm.default, nan, a, b, beta=0)
    check(aten.addmm.default, x, a * torch.nan, b, alpha=0)
    check(aten.addmm.default, nan, a * torch.nan, b, beta=0, alpha=0)
    check(aten.addmv.default, nan[:, 0], a, b[:, 0], beta=0, alpha=1.5)
    check(aten.addr.default, nan, a[:, 0], b[0], beta=0)
    for size in (3, 8):  # eager multiplies few numbers in loops of its own
        wide = torch.full((1, size, size), torch.nan, dtype=dtype)
        check(aten.baddbmm.default, f(size, size).to(dtype), wide, wide, alpha=0)


@pytest.mark.parametrize("sizes", [(0, 3, 2), (2, 0, 3), (2, 3, 0), (1, 1, 1)])
def test_products_of_nothing(sizes: tuple[int, int, int]) -> None:
    n, k, m = sizes
    a, b = f(n, k), f(k, m)
    check(aten.mm.default, a, b)
    check(aten.bmm.default, a.expand(2, n, k), b.expand(2, k, m))
    check(aten.bmm.default, a.expand(0, n, k), b.expand(0, k, m))
    check(aten.addmm.default, f(m), a, b, beta=0.5)
    check(aten.mv.default, a, f(k))
    check(aten.addmv.default, f(n), a, f(k), beta=0.5)
    check(aten.addmv.default, f(1), a, f(k), beta=0.5)
    check(aten.dot.default, a.flatten(), a.flatten())
    check(aten.vdot.default, a.flatten(), a.flatten())
    check(aten.linear.default, a, b.t(), f(m))


def test_a_vector_with_a_column_of_one() -> None:
    for term in (f(1), f(3), f()):
        check(aten.addmv.default, term.bfloat16(), f(3, 4).bfloat16(), f(4).bfloat16(), scale=2.0)


@pytest.mark.parametrize("lead", [(), (3,), (2, 1, 3), (0, 2)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_linear(lead: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight, bias = f(*lead, 4).to(dtype), f(5, 4).to(dtype), f(5).to(dtype)
    once = dtype is torch.bfloat16
    assert ("addmm" in names(check(aten.linear.default, x, weight, bias, scale=2.0))) == once
    assert "addmm" not in names(check(aten.linear.default, x, weight, scale=2.0))
    check(aten.linear.default, x, weight[0], fallback=0 not in lead)


def test_products_that_are_no_prims() -> None:
    """Of different types or of bools, where nothing is multiplied: eager takes those."""
    a, b = torch.ones(2, 0).bool(), torch.ones(0, 3).bool()
    check(aten.mm.default, a, b, fallback=True)
    check(aten.bmm.default, a[None], b[None], fallback=True)
    check(aten.bmm.default, f(1, 2, 0), f(1, 0, 3).float(), fallback=True)
    check(aten.mv.default, a, b[:, 0], fallback=True)
    check(aten.addmv.default, a.any(1), a, b[:, 0], fallback=True)
    check(aten.addr.default, torch.ones(2, 2).bool(), torch.ones(2).bool(), torch.ones(2).bool(), fallback=True)


CONVOLUTIONS = [
    ((2, 4, 9), (4, 2, 3), ([2], [1], [1], False, [0], 2)),
    ((2, 3, 7, 6), (4, 3, 3, 2), ([2], [0], [1], False, [0], 1)),
    ((2, 4, 5, 6), (4, 3, 3, 2), ([2, 1], [1, 0], [1], True, [1, 0], 1)),
]


@pytest.mark.parametrize(("x", "w", "options"), CONVOLUTIONS)
def test_convolutions(x: tuple[int, ...], w: tuple[int, ...], options: list[Any]) -> None:
    image, weight = f(*x), f(*w)
    bias = f(w[1] if options[3] else w[0])
    for b in (None, bias):
        check(aten.convolution.default, image, weight, b, *options)
    grad = torch.randn_like(aten.convolution.default(image, weight, bias, *options))
    for mask in ([True, True, True], [False, True, False], [True, False, False], [False, False, True]):
        prims = check(aten.convolution_backward.default, grad, image, weight, list(bias.shape), *options, mask)
        assert ("convolution_backward" in names(prims)) == any(mask[:2])
        assert ("sum" in names(prims)) == mask[2]
    check(aten.convolution.default, image[:0], weight, None, *options, fallback=False)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_the_cpu(causal: bool) -> None:
    q, k, v = f(2, 3, 4, 8), f(2, 3, 5, 8), f(2, 3, 5, 8)
    op = aten._scaled_dot_product_flash_attention_for_cpu
    mask = None if causal else f(2, 3, 4, 5)
    check(op.default, q, k, v, 0.0, causal, attn_mask=mask, scale=0.3)
    out, sums = op.default(q, k, v, 0.0, causal, attn_mask=mask, scale=0.3)
    back = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    check(back, torch.randn_like(out), q, k, v, out, sums, 0.0, causal, attn_mask=mask, scale=0.3)
