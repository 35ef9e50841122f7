"""Pooling in three dimensions, to given sizes, at random places, and its inverse, against eager and by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from smelt.base.errors import CompileError
from smelt.graph.ir.meta import meta_of
from smelt.prims.table import PRIMS
from tests.prims.prim_check import checked, to_meta


def f(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


def image(rank: int, batch: bool) -> torch.Tensor:
    return f(*((2,) if batch else ()), 3, *(7, 5, 6)[:rank])


def gradient(result: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    grad = torch.randn_like(result)
    return grad, torch.autograd.grad(result, x, grad)[0]


def parts(size: int, count: int) -> list[slice]:
    return [slice(i * size // count, -((i + 1) * size // -count)) for i in range(count)]


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(("rank", "sizes"), [(2, (3, 5)), (2, (1, 1)), (2, (8, 2)), (3, (2, 5, 4)), (3, (1, 1, 1))])
def test_to_given_sizes(rank: int, sizes: tuple[int, ...], batch: bool) -> None:
    x = image(rank, batch).requires_grad_()
    want = getattr(F, f"adaptive_avg_pool{rank}d")(x, sizes)
    got = checked(f"adaptive_avg_pool{rank}d", x.detach(), sizes)
    torch.testing.assert_close(got, want.detach())
    if rank == 2:
        rows, columns = (parts(n, k) for n, k in zip(x.shape[-2:], sizes, strict=True))
        by_hand = [[x[..., r, c].mean((-2, -1)) for c in columns] for r in rows]
        torch.testing.assert_close(got, torch.stack([torch.stack(row, -1) for row in by_hand], -2).detach())
    grad, wanted = gradient(want, x)
    torch.testing.assert_close(checked(f"adaptive_avg_pool{rank}d_backward", grad, x.detach()), wanted)
    best, places = getattr(F, f"adaptive_max_pool{rank}d")(x, sizes, return_indices=True)
    values, found = checked(f"adaptive_max_pool{rank}d", x.detach(), sizes)
    assert torch.equal(values, best) and torch.equal(found, places)
    grad, wanted = gradient(best, x)
    torch.testing.assert_close(checked(f"adaptive_max_pool{rank}d_backward", grad, x.detach(), places), wanted)


WINDOWS = [
    ((2, 2, 2), (2, 2, 2), (0, 0, 0), False),
    ((3, 2, 1), (2, 1, 3), (1, 1, 0), True),
    ((3,), (), (1,), True),
    ((2,), (3,), (0,), False),
    ((2, 3, 3), (), (0,), True),
]


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("case", WINDOWS)
def test_in_three_dimensions(case: tuple[Any, ...], batch: bool) -> None:
    kernel, stride, padding, ceil = case
    x = image(3, batch).requires_grad_()
    for counted, divisor in ((True, None), (False, None), (True, 3)):
        options = (kernel, stride, padding, ceil, counted, divisor)
        want = F.avg_pool3d(x, kernel, stride or None, padding, ceil, counted, divisor)
        torch.testing.assert_close(checked("avg_pool3d", x.detach(), *options), want.detach())
        grad, wanted = gradient(want, x)
        torch.testing.assert_close(checked("avg_pool3d_backward", grad, x.detach(), *options), wanted)
    for dilation in ((1,), (1, 2, 2)) if max(kernel) < 3 else ((1,),):
        best, places = F.max_pool3d(x, kernel, stride or None, padding, dilation, ceil, return_indices=True)
        values, found = checked("max_pool3d", x.detach(), kernel, stride, padding, dilation, ceil)
        assert torch.equal(values, best) and torch.equal(found, places)
        grad, wanted = gradient(best, x)
        args = (grad, x.detach(), kernel, stride, padding, dilation, ceil, places)
        torch.testing.assert_close(checked("max_pool3d_backward", *args), wanted)


@pytest.mark.parametrize("rank", [2, 3])
def test_at_random_indices(rank: int) -> None:
    x, samples = image(rank, True).requires_grad_(), torch.rand(2, 3, rank, dtype=torch.float64)
    kernel, sizes = (2, 2, 3)[:rank], (3, 3, 2)[:rank]
    pool = getattr(F, f"fractional_max_pool{rank}d")
    best, places = pool(x, kernel, sizes, _random_samples=samples, return_indices=True)
    values, found = checked(f"fractional_max_pool{rank}d", x.detach(), kernel, sizes, samples)
    assert torch.equal(values, best) and torch.equal(found, places)
    grad, wanted = gradient(best, x)
    got = checked(f"fractional_max_pool{rank}d_backward", grad, x.detach(), kernel, sizes, places)
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("rank", [2, 3])
def test_back_to_where_maxima_were(rank: int, batch: bool) -> None:
    sizes = (7, 5, 6)[:rank]
    best, places = getattr(F, f"max_pool{rank}d")(image(rank, batch), 2, return_indices=True)
    extra = () if rank == 2 else ((2,) * 3, (0,) * 3)
    got = checked(f"max_unpool{rank}d", best, places, sizes, *extra)
    want = np.zeros((*best.shape[:-rank], math.prod(sizes)))
    np.put_along_axis(want, places.flatten(-rank).numpy(), best.flatten(-rank).numpy(), -1)
    np.testing.assert_array_equal(got.flatten(-rank), want)


def test_channels_last_images_stay() -> None:
    x = torch.rand(2, 3, 8, 6).to(memory_format=torch.channels_last)
    for name, args in (("adaptive_avg_pool2d", ((3, 5),)), ("adaptive_max_pool2d", ((3, 5),))):
        value, meta = PRIMS[name](x, *args), PRIMS[name].meta(meta_of(x), *args)
        value, meta = (value[0], meta[0]) if isinstance(value, tuple) else (value, meta)
        assert value.stride() == meta.stride == (45, 1, 15, 3)
    assert PRIMS["adaptive_avg_pool2d"].meta(meta_of(x.contiguous()), (3, 5)).stride == (45, 15, 5, 1)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("adaptive_avg_pool2d", (f(4, 4), (2, 2))),
        ("adaptive_avg_pool3d", (f(4, 4, 4), (2, 2, 2))),
        ("adaptive_avg_pool2d", (f(1, 2, 3, 4, 4), (2, 2))),
        ("adaptive_max_pool2d_backward", (f(3, 2, 2), f(3, 4, 4), f(3, 2, 1).long())),
    ],
)
def test_wrong_operands(name: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(CompileError, match=r"pooling of|prim adaptive"):
        PRIMS[name].meta(*map(to_meta, args))


def test_means_of_zeros_are_zero() -> None:
    linear = {"adaptive_avg_pool2d", "adaptive_avg_pool3d", "avg_pool3d", "max_unpool2d", "max_unpool3d"}
    ours = {name for name, prim in PRIMS.items() if prim.meta.__module__ == "smelt.prims.kernels.pooling"}
    assert {name for name in ours if PRIMS[name].facts.linear_in} == linear
