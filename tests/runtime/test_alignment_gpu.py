"""Tensors of a GPU that begin anywhere: whole programs, on a real one (triton/test_align.py does without)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import smelt
from smelt.base.stats import stats

pytestmark = pytest.mark.gpu

STARTS = [1, 2, 3, 5, 8]
"""Elements behind a word."""


def moved(*shape: int, dtype: torch.dtype = torch.float32, by: int = 1, seed: int = 0) -> Tensor:
    count = torch.Size(shape).numel()
    generator = torch.Generator().manual_seed(seed + count)
    if dtype.is_floating_point:
        values = torch.randn(count + by, generator=generator).to(dtype)
    else:
        values = torch.randint(0, 7, (count + by,), generator=generator).to(dtype)
    return values.cuda()[by:].view(shape)


def same(fn: Callable[..., Any], *inputs: Tensor, **options: Any) -> None:
    """A compiled call, four times, against eager on copies that begin with words."""
    wanted = fn(*(x.clone() for x in inputs))
    compiled = smelt.compile(fn, **options)
    for _ in range(4):
        torch.testing.assert_close(compiled(*inputs), wanted, rtol=2e-2, atol=2e-2)
    torch.cuda.synchronize()


@pytest.mark.parametrize("by", STARTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8])
def test_pointwise_and_folds(dtype: torch.dtype, by: int) -> None:
    x, y = moved(64, 1021, dtype=dtype, by=by), moved(64, 1021, dtype=dtype, by=0)
    same(lambda x, y: (x * y + 1, x.amax(1), y.amin(0)), x, y)


@pytest.mark.parametrize("mode", ["default", "max-autotune"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_products_and_attention(dtype: torch.dtype, mode: str) -> None:
    x, w, b = moved(256, 512, dtype=dtype), moved(512, dtype=dtype, by=3), moved(128, 512, dtype=dtype, by=2)
    same(lambda x, w: F.layer_norm(x, (512,), w).softmax(-1), x, w, mode=mode)
    same(lambda x, b: F.relu(x.relu() @ b.t() / 16), x, b, mode=mode)
    q, k, v = (moved(2, 4, 64, 64, dtype=dtype, seed=seed) for seed in range(3))
    same(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v, mode=mode)
    same(lambda x: x.softmax(-1), moved(300, 50257, dtype=dtype), mode=mode)


def test_gradients() -> None:
    def step(compile: Callable[..., Any], by: int) -> list[Tensor]:
        x, w = moved(64, 97, by=by).requires_grad_(), moved(33, 97, by=by).requires_grad_()
        out = compile(lambda x, w: F.gelu(F.linear(x, w)).log_softmax(-1))(x, w)
        out.backward(moved(64, 33, by=by, seed=4))
        assert x.grad is not None and w.grad is not None
        return [out.detach(), x.grad, w.grad]

    # the values are those of the start: what is cut off before them belongs to the same draw
    for by in STARTS:
        for found, wanted in zip(step(smelt.compile, by), step(lambda fn: fn, by), strict=True):
            torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_starts_that_change_between_calls(mode: str) -> None:
    """A recording is for tensors where they are, or copies them: never for some that begin elsewhere."""
    compiled = smelt.compile(lambda x, w: (x * 3).sum(1) + w, mode=mode)
    w = moved(64, by=3)
    for number, by in enumerate((4, 1, 4, 0, 1, 2, 3, 4, 1, 1, 8, 5)):
        x = moved(64, 64, by=by, seed=number)
        torch.testing.assert_close(compiled(x, w), (x * 3).sum(1) + w, rtol=1e-4, atol=1e-4)


def test_a_variant_is_built_once() -> None:
    compiled = smelt.compile(lambda x: x * 2 + 1, options={"cuda_graphs": False})
    before = stats().get("unaligned_kernels", 0)
    for by in (0, 4, 1, 2, 3, 1, 0, 3):
        x = moved(1024, by=by)
        torch.testing.assert_close(compiled(x), x * 2 + 1)
    assert stats()["unaligned_kernels"] == before + 1


def test_slices_of_a_flat_buffer() -> None:
    data = moved(4 * 1021 + 3, by=1)
    parts = [torch.nn.Parameter(data[k * 1021 : (k + 1) * 1021]) for k in range(4)]
    optimizer = torch.optim.AdamW(parts, lr=1e-2, foreach=True)
    copies = [torch.nn.Parameter(part.detach().clone()) for part in parts]
    reference = torch.optim.AdamW(copies, lr=1e-2, foreach=True)
    step = smelt.compile(optimizer.step)
    for number in range(4):
        for part, other in zip(parts, copies, strict=True):
            part.grad = moved(1021, by=number, seed=number)
            other.grad = part.grad.clone()
        step()
        reference.step()
    for part, other in zip(parts, copies, strict=True):
        torch.testing.assert_close(part, other)


def test_sizes_that_change() -> None:
    compiled = smelt.compile(lambda x: (x * 2).softmax(-1).cumsum(0), dynamic=True)
    for n in (8, 9, 16, 33):
        x = moved(n, n + 3, by=n % 5)
        torch.testing.assert_close(compiled(x), (x * 2).softmax(-1).cumsum(0))
