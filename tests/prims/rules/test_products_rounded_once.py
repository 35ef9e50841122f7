"""A product with a term rounds once in low precision, as in eager's libraries: what two that cancel leave is right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import smelt

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
