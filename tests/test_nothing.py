"""Operators on tensors without elements: what they give is eager's, for fixed sizes and for any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import smelt

IMAGES = ((0, 4, 6, 6), (2, 0, 6, 6), (2, 4, 0, 6), (2, 4, 6, 0))
LINES = ((2, 4, 0), (0, 4, 5), (2, 0, 5))
TABLES = ((3, 0), (0, 4), (0, 0))

CASES: dict[str, tuple[Callable[[Tensor], Any], Sequence[tuple[int, ...]]]] = {
    "group norm": (lambda x: F.group_norm(x, 1), (*TABLES, *LINES, *IMAGES)),
    "group norm, weights": (lambda x: F.group_norm(x, 2, torch.ones(x.shape[1]), torch.ones(x.shape[1])), IMAGES),
    "layer norm": (lambda x: F.layer_norm(x, x.shape[-1:]), (*TABLES, *LINES)),
    "rms norm": (lambda x: F.rms_norm(x, x.shape[-1:]), (*TABLES, *LINES)),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), (*TABLES, *LINES, *IMAGES)),
    "instance norm": (lambda x: F.instance_norm(x), (*LINES, *IMAGES)),
    "convolution": (lambda x: F.conv2d(x, torch.ones(3, x.shape[1], 3, 3), torch.ones(3), padding=1), IMAGES),
    "convolution of lines": (lambda x: F.conv1d(x, torch.ones(3, x.shape[1], 3), padding=1), LINES),
    "transposed": (lambda x: F.conv_transpose2d(x, torch.ones(x.shape[1], 3, 3, 3)), IMAGES),
    "around": (lambda x: F.pad(x, (1, 1), mode="circular"), LINES),
    "triangle": (lambda x: x.tril(), (*TABLES[1:], *LINES)),
    "correlation": (lambda x: torch.corrcoef(x), TABLES),
    "softmax": (lambda x: F.log_softmax(x, 0), (*TABLES, *LINES)),
    "halves": (lambda x: F.glu(x, -1), ((0, 4), (0, 3, 4))),
    "fold": (lambda x: F.fold(x, (4, 4), 2), ((0, 8, 9), (2, 8, 9))),
    "unshuffled": (lambda x: F.pixel_unshuffle(x, 2), ((1, 4, 6, 6), (2, 4, 6, 6))),
}


def run(f: Callable[[Tensor], Any], x: Tensor) -> tuple[Tensor, Tensor] | type:
    x = x.clone().requires_grad_()
    try:
        out = f(x)
        return out, torch.autograd.grad(out.sum(), x)[0]
    except RuntimeError as error:
        return type(error)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_nothing(name: str, dynamic: bool) -> None:
    f, shapes = CASES[name]
    for shape in shapes:
        x = torch.ones(shape)
        want = run(f, x)
        smelt.reset()
        got = run(smelt.compile(f, dynamic=dynamic), x)
        if isinstance(want, type) or isinstance(got, type):
            assert got is want, shape
            continue
        assert got[0].stride() == want[0].stride(), shape
        for have, right in zip(got, want, strict=True):
            assert have.shape == right.shape and torch.allclose(have, right, equal_nan=True), shape
