"""Images and volumes come out channels last where eager's do: sizes of 1 make several readings of strides possible."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import smelt

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "reflected": lambda x: F.pad(x, (1, 1, 1, 1, 0, 0), mode="reflect"),
    "replicated": lambda x: F.pad(x, (1, 0) * 3, mode="replicate"),
    "normalised": lambda x: F.batch_norm(x, None, None, training=True),
    "normalised as before": lambda x: F.batch_norm(x, torch.zeros(x.shape[1]), torch.ones(x.shape[1])),
}
SHAPES = [(2, 3, 4, 5, 6), (2, 1, 4, 4, 4), (3, 4, 5, 6), (2, 1, 4, 4)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_formats(name: str, shape: tuple[int, ...], dynamic: bool) -> None:
    fn = FUNCTIONS[name]
    found = []
    for call in (fn, smelt.compile(fn, dynamic=dynamic)):
        torch.manual_seed(0)
        last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        x = torch.rand(shape).to(memory_format=last).requires_grad_()
        out = call(x)
        (gradient,) = torch.autograd.grad(out, x, torch.ones_like(out))
        found.append((out.stride(), gradient.stride()))
        if "normalised" not in name:
            found[-1] += (out.tolist(), gradient.tolist())
    assert found[1] == found[0]


LIKE: dict[str, Callable[[Tensor], Tensor]] = {
    "drawn": lambda x: torch.randint_like(x, 9),
    "drawn from": lambda x: torch.randint_like(x, 3, 9),
    "entropy": lambda x: F.binary_cross_entropy_with_logits(x, x, reduction="none"),
    "weighted": lambda x: F.binary_cross_entropy_with_logits(x, x, x, reduction="none"),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", LIKE)
def test_made_like_an_argument(name: str, dynamic: bool) -> None:
    for shape, stride in (((1, 1), (7, 9)), ((0, 1), (5, 2)), ((1, 3), (1, 1)), ((3, 1), (1, 8)), ((2, 3), (1, 2))):
        x = torch.rand(40).as_strided(shape, stride)
        assert smelt.compile(LIKE[name], dynamic=dynamic)(x).stride() == LIKE[name](x).stride(), (shape, stride)
