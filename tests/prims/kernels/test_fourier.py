"""Fourier transforms against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smelt.base.errors import CompileError
from smelt.graph.ir.meta import meta_of
from smelt.prims.table import PRIMS
from tests.prims.prim_check import checked, to_meta

NORMALIZATIONS = {0: "backward", 1: "ortho", 2: "forward"}
"""Of a forward transform; numpy names them by where the length divides."""


@pytest.mark.parametrize("norm", NORMALIZATIONS)
@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize("dim", [(1,), (0,), (0, 1), (1, 0)])
def test_of_real_numbers(dim: tuple[int, ...], size: int, norm: int) -> None:
    x = torch.randn(3, size, dtype=torch.float64)
    half = checked("fft_r2c", x, dim, norm, True)
    np.testing.assert_allclose(half, np.fft.rfftn(x, axes=dim, norm=NORMALIZATIONS[norm]), atol=1e-12)
    whole = checked("fft_r2c", x, dim, norm, False)
    np.testing.assert_allclose(whole, np.fft.fftn(x, axes=dim, norm=NORMALIZATIONS[norm]), atol=1e-12)
    length = x.shape[dim[-1]]
    back = checked("fft_c2r", half, dim, 2 - norm, length)
    np.testing.assert_allclose(back, x, atol=1e-12)


@pytest.mark.parametrize("dim", [(0,), (1,), (0, 1)])
def test_of_complex_numbers(dim: tuple[int, ...]) -> None:
    z = torch.randn(3, 4, dtype=torch.complex128)
    there = checked("fft_c2c", z, dim, 0, True)
    np.testing.assert_allclose(there, np.fft.fftn(z, axes=dim), atol=1e-12)
    np.testing.assert_allclose(checked("fft_c2c", there, dim, 2, False), z, atol=1e-12)
    assert torch.equal(checked("fft_c2c", z, (), 0, True), z)


def test_pairs_and_complex_numbers() -> None:
    for shape in ((), (3,), (2, 0)):
        for dtype in (torch.float16, torch.float32, torch.float64):
            pairs = torch.randn(*shape, 2).to(dtype)
            z = checked("view_as_complex", pairs)
            assert torch.equal(checked("view_as_real", z), pairs)
            assert z.numel() == 0 or z.flatten()[0].real == pairs.flatten()[0]


def test_single_precision_stays_single() -> None:
    x = torch.randn(4)
    z = checked("fft_r2c", x, (0,), 0, True)
    assert z.dtype is torch.complex64 and checked("fft_c2r", z, (0,), 0, 4).dtype is torch.float32


F, Z = torch.randn(3, 4), torch.randn(3, 4, dtype=torch.complex64)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("fft_r2c", (Z, (0,), 0, True)),
        ("fft_r2c", (F, (), 0, True)),
        ("fft_c2c", (F, (0,), 0, True)),
        ("fft_c2r", (F, (0,), 0, 4)),
        ("fft_c2r", (Z, (), 0, 4)),
        ("view_as_real", (F,)),
        ("view_as_complex", (F,)),
        ("view_as_complex", (torch.tensor(1.0),)),
        ("view_as_complex", (torch.ones(2, dtype=torch.int64),)),
    ],
)
def test_wrong_operands(name: str, args: tuple) -> None:
    with pytest.raises(CompileError, match=f"prim {name}"):
        PRIMS[name].meta(*map(to_meta, args))


def test_they_are_linear() -> None:
    zeros = torch.zeros(4), torch.zeros(4, dtype=torch.complex64)
    calls = {"fft_r2c": (zeros[0], (0,), 0, True), "fft_c2c": (zeros[1], (0,), 0, True)}
    calls |= {"fft_c2r": (zeros[1], (0,), 0, 6)}
    for name, args in calls.items():
        assert PRIMS[name].facts.linear_in == (0,) and not PRIMS[name](*args).any()
        assert PRIMS[name].meta(meta_of(args[0]), *args[1:]).stride == (1,)
