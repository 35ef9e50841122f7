"""Discrete Fourier transforms. Dimensions are non-negative.

`normalization`: 0 none, 1 division by the square root of the length, 2 division by the length.
"""

from __future__ import annotations

import torch

from smelt.graph.ir.meta import TensorMeta
from smelt.prims.dtypes import COMPLEX, REAL
from smelt.prims.table import LINEAR, Shape, kernel, make, require

aten = torch.ops.aten


@kernel("fft_r2c", aten._fft_r2c.default, LINEAR)
def fft_r2c(x: TensorMeta, dim: Shape, normalization: int, onesided: bool) -> TensorMeta:
    """The transform of real x over the dimensions `dim`; with onesided only the first half along the last of them."""
    require(x.dtype in COMPLEX and bool(dim), f"prim fft_r2c: {x.dtype} over {dim}")
    shape = list(x.shape)
    if onesided:
        shape[dim[-1]] = shape[dim[-1]] // 2 + 1
    return make(tuple(shape), COMPLEX[x.dtype], x.device)


@kernel("fft_c2c", aten._fft_c2c.default, LINEAR)
def fft_c2c(x: TensorMeta, dim: Shape, normalization: int, forward: bool) -> TensorMeta:
    """The transform of complex x over the dimensions `dim`, or its inverse."""
    require(x.dtype in REAL, f"prim fft_c2c: {x.dtype}")
    return make(x.shape, x.dtype, x.device)


@kernel("fft_c2r", aten._fft_c2r.default, LINEAR)
def fft_c2r(x: TensorMeta, dim: Shape, normalization: int, last_dim_size: int) -> TensorMeta:
    """The inverse of fft_r2c with onesided: x is the first half along the last of the dimensions `dim`; the real result
    has last_dim_size elements along it."""
    require(x.dtype in REAL and bool(dim), f"prim fft_c2r: {x.dtype} over {dim}")
    last = dim[-1]
    shape = (*x.shape[:last], last_dim_size, *x.shape[last + 1 :])
    return make(shape, REAL[x.dtype], x.device)


@kernel("view_as_real", aten.view_as_real_copy.default, LINEAR)
def view_as_real(x: TensorMeta) -> TensorMeta:
    """Complex numbers as pairs (real, imaginary) along a new last dimension."""
    require(x.dtype in REAL, f"prim view_as_real: {x.dtype}")
    return make((*x.shape, 2), REAL[x.dtype], x.device)


@kernel("view_as_complex", aten.view_as_complex_copy.default, LINEAR)
def view_as_complex(x: TensorMeta) -> TensorMeta:
    """Pairs (real, imaginary) along the last dimension of x as complex numbers."""
    require(x.dtype in COMPLEX and bool(x.shape) and x.shape[-1] == 2, f"prim view_as_complex: {x.dtype} {x.shape}")
    return make(x.shape[:-1], COMPLEX[x.dtype], x.device)
