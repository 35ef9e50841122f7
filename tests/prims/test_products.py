"""Products, convolutions and attention: shapes and strides as torch's kernels give them, sums by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from smelt.base.errors import CompileError
from smelt.graph.ir.meta import meta_of
from smelt.prims import ops, products
from smelt.prims.table import PRIMS, Strides
from tests.prims.prim_check import checked, to_meta


def f(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype)


@pytest.mark.parametrize(("n", "k", "m"), [(1, 1, 1), (3, 5, 7), (0, 2, 3), (2, 0, 3), (2, 3, 0)])
def test_matrix_products(n: int, k: int, m: int) -> None:
    a, b = f(4, n, k), f(4, k, m)
    np.testing.assert_allclose(checked("bmm", a, b), a.numpy() @ b.numpy())
    np.testing.assert_allclose(checked("mm", a[0], b[0]), a[0].numpy() @ b[0].numpy())
    for x in (f(), f(m), f(n, 1), f(1, m), f(n, m)):
        want = 0.5 * x.numpy() - 2 * (a[1].numpy() @ b[1].numpy())
        np.testing.assert_allclose(checked("addmm", a[1], b[1], x, 0.5, -2.0), want, atol=1e-12)
        np.testing.assert_allclose(checked("baddbmm", a, b, x, 0.5, -2.0)[1], want, atol=1e-12)


def test_a_sum_with_a_product_rounds_once() -> None:
    """3 * 3 + 2**-7 - 9 in bfloat16: the product alone would lose nothing, with the term before it all."""
    a = torch.tensor([[3.0, 2.0**-7]]).bfloat16()
    b = torch.tensor([[3.0], [1.0]]).bfloat16()
    assert ops.addmm(a, b, torch.tensor([[-9.0]]).bfloat16(), 1, 1).item() == 2.0**-7


A, B = f(2, 3), f(3, 4)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("mm", (A, B.float())),
        ("mm", (A, f(2, 4))),
        ("mm", (A[None], B[None])),
        ("bmm", (A[None], f(2, 3, 4))),
        ("bmm", (A[None], f(1, 2, 4))),
        ("bmm", (A[None], B[None].float())),
        ("bmm", (A, B)),
        ("addmm", (A, B, f(3), 1, 1)),
        ("addmm", (A, B, f(1, 2, 4), 1, 1)),
        ("addmm", (A, B, f(4).float(), 1, 1)),
        ("convolution", (f(1, 2, 5), f(3, 2, 2), None, (1, 1), (0,), (1,), False, (0,), 1)),
        ("convolution", (f(1, 2, 5), f(3, 2, 2).float(), None, (1,), (0,), (1,), False, (0,), 1)),
        ("convolution", (f(1, 2), f(3, 2), None, (), (), (), False, (), 1)),
    ],
)
def test_wrong_operands(name: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(CompileError):
        PRIMS[name].meta(*map(to_meta, args))


CONVOLUTIONS = [
    ((2, 3, 9), (4, 3, 3), ((2,), (1,), (1,), False, (0,), 1)),
    ((2, 4, 9), (6, 2, 3), ((1,), (0,), (3,), False, (0,), 2)),
    ((1, 3, 7, 6), (4, 3, 3, 2), ((2, 1), (1, 0), (1, 2), False, (0, 0), 1)),
    ((2, 4, 5, 5), (4, 1, 3, 3), ((1, 1), (1, 1), (1, 1), False, (0, 0), 4)),
    ((2, 4, 5, 6), (4, 3, 3, 2), ((2, 3), (1, 0), (1, 2), True, (1, 2), 1)),
    ((2, 4, 5), (4, 3, 3), ((3,), (2,), (2,), True, (1,), 2)),
    ((1, 2, 4, 5, 6), (3, 2, 2, 3, 1), ((1, 2, 1), (0, 1, 0), (1, 1, 1), False, (0, 0, 0), 1)),
]


@pytest.mark.parametrize(("x", "w", "options"), CONVOLUTIONS)
def test_convolution(x: tuple[int, ...], w: tuple[int, ...], options: Any) -> None:
    stride, padding, dilation, transposed, extra, groups = options
    a, b, bias = f(*x), f(*w), f(w[1] * groups if transposed else w[0])
    if transposed:
        want = getattr(F, f"conv_transpose{len(x) - 2}d")(a, b, bias, stride, padding, extra, groups, dilation)
    else:
        want = getattr(F, f"conv{len(x) - 2}d")(a, b, bias, stride, padding, dilation, groups)
    got = checked("convolution", a, b, bias, *options)
    torch.testing.assert_close(got, want)
    assert products.convolution_shape(x, w, *options) == tuple(want.shape)
    grad = torch.randn_like(got)
    for mask in ((True, True, True), (False, True, False), (True, False, False)):
        found = checked("convolution_backward", grad, a, b, tuple(bias.shape), *options, mask)
        assert [g is not None for g in found] == list(mask)
    without = ops.convolution_backward(grad, a, b, None, *options, (True, True, False))
    leaves = [v.requires_grad_() for v in (a, b, bias)]
    found = ops.convolution_backward(grad, a, b, tuple(bias.shape), *options, (True, True, True))
    wanted = torch.autograd.grad(ops.convolution(*leaves, *options), leaves, grad)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(without[:2], wanted[:2])


LAST = torch.channels_last


@pytest.mark.parametrize("which", ["x", "w", "both", "none"])
def test_convolutions_keep_channels_last(which: str) -> None:
    x, w = f(2, 3, 5, 6, dtype=torch.float32), f(4, 3, 3, 3, dtype=torch.float32)
    x = x.to(memory_format=LAST) if which in ("x", "both") else x
    w = w.to(memory_format=LAST) if which in ("w", "both") else w
    options = ((1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    meta = ops.convolution.meta(meta_of(x), meta_of(w), None, *options)
    assert meta.stride == ops.convolution(x, w, None, *options).stride()
    grads = ops.convolution_backward.meta(meta, meta_of(x), meta_of(w), (4,), *options, (True, True, True))
    for grad, like in zip(grads[:2], (x, w), strict=True):
        empty = torch.empty_like(like, memory_format=torch.contiguous_format if which == "none" else LAST)
        assert grad.stride == empty.stride()
    assert grads[2].stride == (1,)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 3, 4, 5), (2, 3, 1, 5), (2, 3, 4, 5, 6), (1, 2, 1, 1, 3)])
def test_memory_order_of_images(shape: tuple[int, ...]) -> None:
    last = LAST if len(shape) == 4 else torch.channels_last_3d
    x = f(*shape).contiguous(memory_format=last)
    assert products.channels_last_stride(shape) == x.stride()
    assert products.is_channels_last(meta_of(x))
    assert not products.is_channels_last(meta_of(f(*shape)))
    assert not products.is_channels_last(
        meta_of(f(*shape[:-1], shape[-1] * 2).contiguous(memory_format=last)[..., ::2])
    )


def test_one_channel_is_in_both_layouts_and_counts_as_plain() -> None:
    assert not products.is_channels_last(meta_of(f(2, 1, 3, 4)))
    assert not products.is_channels_last(meta_of(f(2, 3, 4).permute(0, 2, 1)))


@pytest.mark.parametrize("heads_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_attention(dtype: torch.dtype, heads_last: bool) -> None:
    def make(length: int) -> torch.Tensor:
        if heads_last:
            return f(2, length, 3, 8, dtype=dtype).transpose(1, 2)
        return f(2, 3, length, 8, dtype=dtype)

    q, k, v, bias = make(4), make(5), make(5), f(2, 3, 4, 5, dtype=dtype)
    for causal, mask, scale in ((False, bias, None), (True, None, 0.3)):
        args = (q, k, v, 0.0, causal, mask, scale)
        out, sums = checked("attention_cpu", *args)
        scores = (q.double() @ k.double().mT) * (scale or 8**-0.5)
        if causal:
            scores = scores.masked_fill(torch.ones(4, 5).tril() == 0, -torch.inf)
        scores = scores if mask is None else scores + mask.double()
        close = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
        torch.testing.assert_close(out.double(), scores.softmax(-1) @ v.double(), **close)
        torch.testing.assert_close(sums.double(), scores.logsumexp(-1), **close)
        told = ops.attention_cpu.meta(*map(to_meta, args))
        assert [m.stride for m in told] == [out.stride(), sums.stride()]
        grad = torch.randn_like(out)
        found = checked("attention_cpu_backward", grad, q, k, v, out, sums, *args[3:])
        told = ops.attention_cpu_backward.meta(*map(to_meta, (grad, q, k, v, out, sums, *args[3:])))
        assert [m.stride for m in told] == [g.stride() for g in found]


def test_facts_of_products() -> None:
    a, b = f(2, 3), f(3, 4)
    for name in ("mm", "bmm"):
        facts = PRIMS[name].facts
        assert facts.matmul and facts.into and facts.strides is Strides.MATRIX
        for at in facts.annihilated_by:
            ready = [a[None], b[None]] if name == "bmm" else [a, b]
            ready[at] = torch.zeros_like(ready[at])
            assert not PRIMS[name](*ready).any()
    for name in ("addmm", "baddbmm"):
        assert not PRIMS[name].facts.matmul and PRIMS[name].facts.linear_in == (0, 2)
    assert not ops.addmm(a * 0, b, f(4) * 0, 1, 1).any()


def test_counts_of_operations() -> None:
    """A multiplication and an addition for each product of two numbers."""
    flops = {name: prim.facts.flops for name, prim in PRIMS.items() if prim.facts.flops is not None}
    a, b = meta_of(f(2, 3)), meta_of(f(3, 4))
    assert flops["mm"]([ops.mm.meta(a, b)], [a, b]) == 2 * 2 * 3 * 4
    x, w = meta_of(f(2, 4, 5, 5)), meta_of(f(6, 2, 3, 3))
    out = ops.convolution.meta(x, w, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 2)
    assert flops["convolution"]([out], [x, w]) == 2 * (2 * 6 * 3 * 3) * (2 * 3 * 3)
    forward, bias = flops["convolution"]([out], [x, w]), meta_of(f(6))
    assert flops["convolution_backward"]([x, w, bias], [out, x, w]) == 2 * forward
    assert flops["convolution_backward"]([w], [out, x, w]) == forward
    q, k = meta_of(f(2, 3, 4, 8)), meta_of(f(2, 3, 5, 8))
    both = 2 * (2 * 3 * 4 * 5 * 8)  # scores, and what they weigh
    assert flops["attention_cpu"]([q], [q, k]) == 2 * both
    assert flops["attention_cpu_backward"]([q], [q, k]) == 5 * both  # five products of that size
