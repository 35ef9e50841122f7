"""Special functions against scipy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special as sp

from smelt.base.errors import CompileError
from smelt.graph.ir.meta import meta_of
from smelt.prims.kernels import special
from smelt.prims.table import PRIMS
from tests.prims.prim_check import checked, to_meta

UNARY: dict[str, Callable[..., Any]] = {
    "i0": sp.i0,
    "special_i0e": sp.i0e,
    "special_i1": sp.i1,
    "special_i1e": sp.i1e,
    "special_airy_ai": lambda x: sp.airy(x)[0],
    "special_bessel_j0": sp.j0,
    "special_bessel_j1": sp.j1,
    "special_bessel_y0": sp.y0,
    "special_bessel_y1": sp.y1,
    "special_erfcx": sp.erfcx,
    "special_log_ndtr": sp.log_ndtr,
    "special_modified_bessel_i0": sp.i0,
    "special_modified_bessel_i1": sp.i1,
    "special_modified_bessel_k0": sp.k0,
    "special_modified_bessel_k1": sp.k1,
    "special_ndtri": sp.ndtri,
    "special_scaled_modified_bessel_k0": sp.k0e,
    "special_scaled_modified_bessel_k1": sp.k1e,
    "special_spherical_bessel_j0": lambda x: sp.spherical_jn(0, x),
}
POLYNOMIALS: dict[str, Callable[..., Any]] = {
    "special_chebyshev_polynomial_t": sp.eval_chebyt,
    "special_chebyshev_polynomial_u": sp.eval_chebyu,
    "special_chebyshev_polynomial_v": lambda n, x: np.cos((n + 0.5) * np.arccos(x)) / np.cos(np.arccos(x) / 2),
    "special_chebyshev_polynomial_w": lambda n, x: np.sin((n + 0.5) * np.arccos(x)) / np.sin(np.arccos(x) / 2),
    "special_hermite_polynomial_h": sp.eval_hermite,
    "special_hermite_polynomial_he": sp.eval_hermitenorm,
    "special_laguerre_polynomial_l": sp.eval_laguerre,
    "special_legendre_polynomial_p": sp.eval_legendre,
    "special_shifted_chebyshev_polynomial_t": sp.eval_sh_chebyt,
    "special_shifted_chebyshev_polynomial_u": sp.eval_sh_chebyu,
}


def inside(count: int = 40) -> torch.Tensor:
    return torch.rand(count, dtype=torch.float64) * 0.8 + 0.1


def test_all_are_here() -> None:
    shifted = {f"special_shifted_chebyshev_polynomial_{kind}" for kind in "vw"}
    assert set(special.UNARY) == set(UNARY) and set(special.POLYNOMIALS) == set(POLYNOMIALS) | shifted
    assert set(special.BINARY) == {"igamma", "igammac", "special_zeta", *special.POLYNOMIALS}


@pytest.mark.parametrize("name", UNARY)
def test_of_one_operand(name: str) -> None:
    x = inside()
    np.testing.assert_allclose(checked(name, x), UNARY[name](x.numpy()), rtol=1e-6)
    assert checked(name, x.float().reshape(5, 8)[:, ::2]).dtype is torch.float32
    assert checked(name, x[:0]).shape == (0,)


@pytest.mark.parametrize("degree", [0, 1, 3])
@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials(name: str, degree: int) -> None:
    x = inside()
    got = checked(name, x, torch.full_like(x, degree))
    np.testing.assert_allclose(got, POLYNOMIALS[name](degree, x.numpy()), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "function"), [("igamma", sp.gammainc), ("igammac", sp.gammaincc), ("special_zeta", sp.zeta)]
)
def test_of_two_operands(name: str, function: Callable[..., Any]) -> None:
    x, y = inside() + 1.5, inside() * 3
    np.testing.assert_allclose(checked(name, x, y), function(x.numpy(), y.numpy()), rtol=1e-10)


@pytest.mark.parametrize("order", [1, 2, 4])
def test_polygamma(order: int) -> None:
    x = inside()
    np.testing.assert_allclose(checked("polygamma", order, x), sp.polygamma(order, x.numpy()), rtol=1e-9)


def test_mantissas_and_exponents() -> None:
    x = torch.tensor([1.0, -3.0, 0.0, 0.5, 1e-30, math.inf])
    mantissa, exponent = checked("frexp", x)
    want = [math.frexp(v) for v in x.tolist()[:-1]]
    assert [tuple(pair) for pair in zip(mantissa.tolist(), exponent.tolist(), strict=True)][:-1] == want


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64])
def test_gcd(dtype: torch.dtype) -> None:
    x, y = (torch.randint(-60, 60, (50,), dtype=dtype) for _ in range(2))
    assert checked("gcd", x, y).tolist() == list(map(math.gcd, x.tolist(), y.tolist()))


X = torch.ones(3)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("igamma", (X, X[:2])),
        ("igamma", (X, X.double())),
        ("gcd", (X.int(), X.long())),
        ("gcd", (X.int(), X.int()[:1])),
        ("polygamma", (-1, X)),
    ],
)
def test_wrong_operands(name: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(CompileError, match=f"prim {name}"):
        PRIMS[name].meta(*map(to_meta, args))


def test_results_have_the_layout_of_their_operands() -> None:
    turned = meta_of(torch.ones(3, 4).t())
    for name, args in (
        ("i0", (turned,)),
        ("igamma", (turned, turned)),
        ("polygamma", (0, turned)),
        ("gcd", (turned,) * 2),
    ):
        assert PRIMS[name].meta(*args).stride == (1, 4)
    assert [m.stride for m in PRIMS["frexp"].meta(turned)] == [(1, 4), (1, 4)]
