"""Operators on tensors without elements: what they give is eager's, for fixed sizes and for any."""

from __future__ import annotations

import itertools
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


OTHER_TYPES: dict[str, tuple[Callable[..., Any], Sequence[tuple[int, ...]]]] = {
    "@": (lambda a, b: a @ b, ((1, 64), (64, 0))),
    "@ of batches": (lambda a, b: a @ b, ((2, 1, 64), (2, 64, 0))),
    "@ of no batch": (lambda a, b: a @ b, ((0, 1, 64), (0, 64, 3))),
    "@ over nothing": (lambda a, b: a @ b, ((2, 0), (0, 3))),
}


@pytest.mark.parametrize("name", OTHER_TYPES)
def test_nothing_of_two_dtypes(name: str) -> None:
    """Eager multiplies batches of different dtypes where there is nothing to compute."""
    f, (one, other) = OTHER_TYPES[name]

    def given() -> tuple[Tensor, Tensor]:
        return torch.ones(one, dtype=torch.float16).requires_grad_(), torch.ones(other, requires_grad=True)

    def run_two(f: Callable[..., Any]) -> tuple[Any, ...] | type:
        leaves = given()
        try:
            out = f(*leaves)
            return out, *torch.autograd.grad(out.sum(), leaves)
        except RuntimeError as error:
            return type(error)

    want, got = run_two(f), run_two(smelt.compile(f))
    if isinstance(want, type) or isinstance(got, type):
        assert got is want
    else:
        torch.testing.assert_close(got, want, equal_nan=True, check_stride=True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (2, 1), (0, 1), (2, 0)])
def test_a_matrix_without_elements_adds_nothing(dtype: torch.dtype, beta: int, alpha: int) -> None:
    def f(x: Tensor, m: Tensor, v: Tensor) -> Tensor:
        return torch.addmv(x, m, v, beta=beta, alpha=alpha)

    run = smelt.compile(f)
    for shape, sizes in itertools.product(((), (1,)), ((0, 10), (5, 0), (0, 0))):
        matrix, vector = torch.ones(sizes, dtype=dtype), torch.ones(sizes[1], dtype=dtype)
        given = torch.full(shape, 3, dtype=dtype), matrix, vector
        torch.testing.assert_close(run(*given), f(*given), rtol=0, atol=0, check_stride=True)


@pytest.mark.parametrize(
    ("shape", "f"),
    [
        ((0, 4), lambda x: torch.unsafe_split(x, 2)),
        ((4, 0), lambda x: torch.unsafe_split(x, 2, 1)),
        ((4, 0), lambda x: torch.unsafe_split(x, 2, 0)),
        ((0, 4, 2, 2), lambda x: [F.channel_shuffle(x, 2)]),
        ((2, 0, 2, 2), lambda x: [F.channel_shuffle(x, 2)]),
    ],
)
def test_parts_without_elements_share_memory(shape: tuple[int, ...], f: Callable[[Tensor], Any]) -> None:
    x = torch.ones(5, 4, 2, 2, dtype=torch.int64)[tuple(slice(0, n) for n in shape)]
    x = x if x.dim() == len(shape) else x[(..., *[0] * (x.dim() - len(shape)))]

    def memory(parts: Sequence[Tensor]) -> list[bool]:
        return [part.untyped_storage()._cdata == x.untyped_storage()._cdata for part in parts]

    want, got = f(x), smelt.compile(f)(x)
    assert [(p.shape, p.stride()) for p in got] == [(p.shape, p.stride()) for p in want]
    assert memory(got) == memory(want)
