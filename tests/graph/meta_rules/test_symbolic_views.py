"""Strides of views as PyTorch gives them, also of dimensions of size 1, whose strides lead nowhere."""

from __future__ import annotations

import random

import pytest
import torch

import smelt
from smelt.graph.meta_rules.symbolic_views import view_stride


def any_layout(choose: random.Random) -> torch.Tensor:
    """A tensor of few elements whose dimensions lie in any order, with gaps, and with any strides where a size is 1."""
    shape = [
        choose.choice([0, 1, 1, 2, 3, 4] if choose.random() < 0.2 else [1, 2, 3, 4]) for _ in range(choose.randrange(5))
    ]
    step, stride = 1, [0] * len(shape)
    for d in choose.sample(range(len(shape)), len(shape)) if choose.random() < 0.5 else range(len(shape))[::-1]:
        stride[d] = step if shape[d] != 1 or choose.random() < 0.5 else choose.choice([0, 1, 7, 99])
        step = step * max(shape[d], 1) + (choose.randrange(3) if choose.random() < 0.2 else 0)
    return torch.zeros(5000).as_strided(shape, stride)


def any_shape(count: int, choose: random.Random) -> list[int]:
    shape, left = [], count
    while left > 1:
        shape.append(choose.choice([n for n in range(2, left + 1) if left % n == 0]))
        left //= shape[-1]
    for _ in range(choose.randrange(3)):
        shape.insert(choose.randrange(len(shape) + 1), 1)
    return shape if count else [0, *shape]


def test_strides_of_views_in_numbers() -> None:
    choose = random.Random(0)
    for _ in range(4000):
        x = any_layout(choose)
        shape = any_shape(x.numel(), choose) if choose.random() < 0.9 else list(x.shape)
        try:
            expected = x.view(shape).stride()
        except RuntimeError:
            expected = None
        assert view_stride(tuple(x.shape), x.stride(), tuple(shape)) == expected, (x.shape, x.stride(), shape)


TURNED = {"clone": lambda v: v.clone(), "double": lambda v: v * 2, "sum": lambda v: v + v.sum(0, keepdim=True)}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", TURNED)
def test_a_computed_size_is_1_at_some_calls(name: str, dynamic: bool | None) -> None:
    """Whether a turned tensor is contiguous, and so what strides its results have, depends on such a size."""

    def f(x: torch.Tensor) -> list[torch.Tensor]:
        parts = [x.t()[: x.shape[1] // 2], x.t()[:, : x.shape[0] - 1], x[::2].t(), x.t()[-2:], x.chunk(2)[-1].t()]
        results = [TURNED[name](v) for v in parts]
        return [*results, *(v.unsqueeze(1) for v in results), *(v.reshape(v.shape[0], 1, -1) for v in results)]

    run = smelt.compile(f, dynamic=dynamic)
    for shape in ((4, 6), (3, 5), (2, 3), (2, 2), (3, 2), (9, 7)):
        x = torch.randn(shape)
        for got, expected in zip(run(x), f(x), strict=True):
            torch.testing.assert_close(got, expected)
            assert got.stride() == expected.stride(), (shape, got.shape, got.stride(), expected.stride())
