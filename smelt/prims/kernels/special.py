"""Special functions of each element. Operands have equal shapes and dtypes, float32 or float64."""

from __future__ import annotations

import torch

from smelt.graph.ir.meta import TensorMeta
from smelt.prims.table import kernel, pointwise_like, require

aten = torch.ops.aten

UNARY = """
i0 special_i0e special_i1 special_i1e special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0
special_bessel_y1 special_erfcx special_log_ndtr special_modified_bessel_i0 special_modified_bessel_i1
special_modified_bessel_k0 special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0
special_scaled_modified_bessel_k1 special_spherical_bessel_j0
""".split()
"""ATen's names of the elementwise functions with one operand."""

POLYNOMIALS = """
special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
special_chebyshev_polynomial_w special_hermite_polynomial_h special_hermite_polynomial_he
special_laguerre_polynomial_l special_legendre_polynomial_p special_shifted_chebyshev_polynomial_t
special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w
""".split()
"""ATen's names of the orthogonal polynomials of x; the second operand is the degree."""

BINARY = ["igamma", "igammac", "special_zeta", *POLYNOMIALS]
"""ATen's names of the elementwise functions with two operands."""


def _unary(name: str) -> None:
    def meta(x: TensorMeta) -> TensorMeta:
        return pointwise_like((x,), x.dtype)

    meta.__doc__ = f"{name} of each element."
    kernel(name, getattr(aten, name).default)(meta)


def _same(name: str, x: TensorMeta, y: TensorMeta) -> None:
    require(x.dtype is y.dtype and x.shape == y.shape, f"prim {name}: {x.dtype} {x.shape} with {y.dtype} {y.shape}")


def _binary(name: str) -> None:
    def meta(x: TensorMeta, y: TensorMeta) -> TensorMeta:
        _same(name, x, y)
        return pointwise_like((x, y), x.dtype)

    meta.__doc__ = f"{name} of x and y, elementwise."
    kernel(name, getattr(aten, name).default)(meta)


for _name in UNARY:
    _unary(_name)
for _name in BINARY:
    _binary(_name)


@kernel("polygamma", aten.polygamma.default)
def polygamma(n: int, x: TensorMeta) -> TensorMeta:
    """The n-th derivative of digamma of each element."""
    require(n >= 0, f"prim polygamma: order {n}")
    return pointwise_like((x,), x.dtype)


@kernel("frexp", aten.frexp.Tensor)
def frexp(x: TensorMeta) -> tuple[TensorMeta, TensorMeta]:
    """(mantissa, int32 exponent): x = mantissa * 2 ** exponent with 0.5 <= |mantissa| < 1."""
    return pointwise_like((x,), x.dtype), pointwise_like((x,), torch.int32)


@kernel("gcd", aten.gcd.default)
def gcd(x: TensorMeta, y: TensorMeta) -> TensorMeta:
    """The greatest common divisor of integers."""
    _same("gcd", x, y)
    return pointwise_like((x, y), x.dtype)
