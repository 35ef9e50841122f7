"""Linear algebra on batches of real or complex matrices (..., rows, columns). Factors are column-major."""

from __future__ import annotations

import torch

from smelt.graph.ir.meta import TensorMeta
from smelt.graph.meta_rules.elementwise import broadcast
from smelt.prims.table import LINEAR, Facts, Shape, kernel, make, require
from smelt.shapes.size import smaller

aten = torch.ops.aten
Metas = tuple[TensorMeta, ...]

_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}
_COMPLEX = {real: wide for wide, real in _REAL.items()}


def _matrix(lead: Shape, rows: int, columns: int, like: TensorMeta, dtype: torch.dtype | None = None) -> TensorMeta:
    """Returns the meta of a batch of column-major matrices."""
    plain = make((*lead, columns, rows), dtype or like.dtype, like.device)
    stride = (*plain.stride[:-2], plain.stride[-1], plain.stride[-2])
    return TensorMeta((*lead, rows, columns), plain.dtype, stride, like.device)


def _split(name: str, a: TensorMeta) -> tuple[Shape, int, int]:
    require(len(a.shape) >= 2, f"prim {name}: {a.shape}")
    return a.shape[:-2], a.shape[-2], a.shape[-1]


def _plain(shape: Shape, like: TensorMeta, dtype: torch.dtype | None = None) -> TensorMeta:
    return make(shape, dtype or like.dtype, like.device)


def _same(a: TensorMeta) -> TensorMeta:
    return _matrix(a.shape[:-2], a.shape[-2], a.shape[-1], a)


def _least(m: int, n: int) -> int:
    return smaller(m, n)  # type: ignore[return-value]


def _real(a: TensorMeta) -> torch.dtype:
    return _REAL.get(a.dtype, a.dtype)


# -- spectra


@kernel("svd", aten._linalg_svd.default)
def svd(a: TensorMeta, full_matrices: bool, compute_uv: bool, driver: str | None) -> Metas:
    """(U, singular values, V^H); U and V^H are empty unless compute_uv."""
    lead, m, n = _split("svd", a)
    k = _least(m, n)
    values = _plain((*lead, k), a, _real(a))
    if not compute_uv:
        return _plain((0,), a), values, _plain((0,), a)
    u = _matrix(lead, m, m if full_matrices else k, a)
    return u, values, _matrix(lead, n if full_matrices else k, n, a)


@kernel("eigh", aten._linalg_eigh.default)
def eigh(a: TensorMeta, UPLO: str, compute_v: bool) -> Metas:  # noqa: N803
    """(ascending eigenvalues, eigenvectors as columns) of Hermitian matrices; the eigenvectors are empty unless
    compute_v."""
    lead, n, _ = _split("eigh", a)
    vectors = _matrix(lead, n, n, a) if compute_v else _plain((0,), a)
    return _plain((*lead, n), a, _real(a)), vectors


@kernel("eig", aten.linalg_eig.default)
def eig(a: TensorMeta) -> Metas:
    """(eigenvalues, eigenvectors as columns), both complex."""
    lead, n, _ = _split("eig", a)
    wide = _COMPLEX.get(a.dtype, a.dtype)
    return _plain((*lead, n), a, wide), _matrix(lead, n, n, a, wide)


@kernel("eigvals", aten.linalg_eigvals.default)
def eigvals(a: TensorMeta) -> TensorMeta:
    """The eigenvalues, which are complex."""
    lead, n, _ = _split("eigvals", a)
    return _plain((*lead, n), a, _COMPLEX.get(a.dtype, a.dtype))


@kernel("pinv", aten.linalg_pinv.atol_rtol_tensor)
def pinv(a: TensorMeta, atol: TensorMeta | None, rtol: TensorMeta | None, hermitian: bool) -> TensorMeta:
    """The pseudoinverse; singular values up to max(atol, rtol * largest singular value) are treated as 0."""
    lead, m, n = _split("pinv", a)
    return _plain((*lead, n, m), a)


# -- triangular factors


@kernel("solve_triangular", aten.linalg_solve_triangular.default, Facts(linear_in=(1,)))
def solve_triangular(a: TensorMeta, b: TensorMeta, upper: bool, left: bool, unitriangular: bool) -> TensorMeta:
    """X with a X = b (left) or X a = b (not left) for triangular a; X has the dtype of a."""
    lead = _lead(a, b)
    return _matrix(lead, b.shape[-2], b.shape[-1], a)


def _lead(a: TensorMeta, b: TensorMeta) -> Shape:
    lead = broadcast([make(v.shape[:-2], v.dtype, v.device) for v in (a, b)])
    require(lead is not None, f"linear algebra: batches {a.shape} and {b.shape}")
    assert lead is not None
    return lead


@kernel("triangular_solve", aten.triangular_solve.default, LINEAR)
def triangular_solve(b: TensorMeta, a: TensorMeta, upper: bool, transpose: bool, unitriangular: bool) -> Metas:
    """(X with a X = b for triangular a, a), both broadcast to the common batch shape."""
    lead = _lead(a, b)
    return _matrix(lead, b.shape[-2], b.shape[-1], b), _matrix(lead, a.shape[-2], a.shape[-1], a)


@kernel("lu_factor", aten.linalg_lu_factor_ex.default)
def lu_factor(a: TensorMeta, pivot: bool, check_errors: bool) -> Metas:
    """(L and U in one matrix, int32 row swaps counted from 1, int32 status)."""
    lead, m, n = _split("lu_factor", a)
    return _same(a), _plain((*lead, _least(m, n)), a, torch.int32), _plain(lead, a, torch.int32)


@kernel("lu", aten.linalg_lu.default)
def lu(a: TensorMeta, pivot: bool) -> Metas:
    """(P, L, U) with a = P L U; P is empty unless pivot."""
    lead, m, n = _split("lu", a)
    k = _least(m, n)
    permutation = _plain((*lead, m, m) if pivot else (0,), a)
    return permutation, _matrix(lead, m, k, a), _matrix(lead, k, n, a)


@kernel("lu_unpack", aten.lu_unpack.default)
def lu_unpack(lu: TensorMeta, pivots: TensorMeta, unpack_data: bool, unpack_pivots: bool) -> Metas:
    """(P, L, U) from the result of lu_factor; P is empty unless unpack_pivots, L and U unless unpack_data."""
    lead, m, n = _split("lu_unpack", lu)
    k, none = _least(m, n), _plain((0,), lu)
    permutation = _plain((*lead, m, m), lu) if unpack_pivots else none
    if not unpack_data:
        return permutation, none, none
    return permutation, _matrix(lead, m, k, lu), _matrix(lead, k, n, lu)


@kernel("lu_solve", aten.linalg_lu_solve.default, Facts(linear_in=(2,)))
def lu_solve(lu: TensorMeta, pivots: TensorMeta, b: TensorMeta, left: bool, adjoint: bool) -> TensorMeta:
    """X with A X = b (left) or X A = b (not left), where lu_factor has factored A; with adjoint, A^H replaces A."""
    lead = _lead(lu, b)
    return _matrix(lead, b.shape[-2], b.shape[-1], b)


@kernel("solve", aten._linalg_solve_ex.default, Facts(linear_in=(1,)))
def solve(a: TensorMeta, b: TensorMeta, left: bool, check_errors: bool) -> Metas:
    """(X with a X = b (left) or X a = b (not left), LU of a, pivots, status); b may be a batch of vectors."""
    lead, n, _ = _split("solve", a)
    vector = len(b.shape) == 1 or (len(b.shape) == len(a.shape) - 1 and b.shape == a.shape[:-1])
    if vector:
        result = _plain(a.shape[:-1], b)
    else:
        both, (rows, columns) = _lead(a, b), b.shape[-2:]
        result = _matrix(both, rows, columns, b) if left else _plain((*both, rows, columns), b)
    return result, _same(a), _plain((*lead, n), a, torch.int32), _plain(lead, a, torch.int32)


@kernel("det", aten._linalg_det.default)
def det(a: TensorMeta) -> Metas:
    """(determinant, LU, pivots)."""
    lead, n, _ = _split("det", a)
    return _plain(lead, a), _same(a), _plain((*lead, n), a, torch.int32)


@kernel("slogdet", aten._linalg_slogdet.default)
def slogdet(a: TensorMeta) -> Metas:
    """(sign of the determinant, log of its absolute value, LU, pivots)."""
    lead, n, _ = _split("slogdet", a)
    return _plain(lead, a), _plain(lead, a, _real(a)), _same(a), _plain((*lead, n), a, torch.int32)


@kernel("inverse", aten.linalg_inv_ex.default)
def inverse(a: TensorMeta, check_errors: bool) -> Metas:
    """(inverse, int32 status)."""
    lead, _, _ = _split("inverse", a)
    return _same(a), _plain(lead, a, torch.int32)


# -- positive definite and symmetric


@kernel("cholesky_ex", aten.linalg_cholesky_ex.default)
def cholesky_ex(a: TensorMeta, upper: bool, check_errors: bool) -> Metas:
    """(triangular factor, int32 status): L with a = L L^H, or with upper U with a = U^H U."""
    lead, _, _ = _split("cholesky_ex", a)
    return _same(a), _plain(lead, a, torch.int32)


if hasattr(aten, "cholesky"):  # until torch 2.14

    @kernel("cholesky", aten.cholesky.default)
    def cholesky(a: TensorMeta, upper: bool) -> TensorMeta:
        """The triangular factor as of cholesky_ex; raises an error for matrices that are not positive definite."""
        return _same(a)


@kernel("cholesky_inverse", aten.cholesky_inverse.default)
def cholesky_inverse(a: TensorMeta, upper: bool) -> TensorMeta:
    """The inverse of the matrix whose Cholesky factor is a."""
    return _same(a)


@kernel("cholesky_solve", aten.cholesky_solve.default, LINEAR)
def cholesky_solve(b: TensorMeta, a: TensorMeta, upper: bool) -> TensorMeta:
    """X with A X = b for the matrix A whose Cholesky factor is a."""
    return _matrix(_lead(a, b), b.shape[-2], b.shape[-1], b)


@kernel("ldl_factor", aten.linalg_ldl_factor_ex.default)
def ldl_factor(a: TensorMeta, hermitian: bool, check_errors: bool) -> Metas:
    """(L and block-diagonal D in one matrix, int32 pivots, int32 status) of symmetric or Hermitian matrices."""
    lead, n, _ = _split("ldl_factor", a)
    return _same(a), _plain((*lead, n), a, torch.int32), _plain(lead, a, torch.int32)


@kernel("ldl_solve", aten.linalg_ldl_solve.default)
def ldl_solve(ld: TensorMeta, pivots: TensorMeta, b: TensorMeta, hermitian: bool) -> TensorMeta:
    """X with A X = b for the matrix A that ldl_factor has factored."""
    return _matrix(_lead(ld, b), b.shape[-2], b.shape[-1], b)


# -- orthogonal factors


@kernel("qr", aten.linalg_qr.default)
def qr(a: TensorMeta, mode: str) -> Metas:
    """(Q, R): of full size if mode is "complete"; Q is empty if mode is "r"."""
    lead, m, n = _split("qr", a)
    k = m if mode == "complete" else _least(m, n)
    return _plain((0,), a) if mode == "r" else _matrix(lead, m, k, a), _matrix(lead, k, n, a)


@kernel("geqrf", aten.geqrf.default)
def geqrf(a: TensorMeta) -> Metas:
    """(R in the upper triangle and Householder vectors below it, the scales of these vectors)."""
    lead, m, n = _split("geqrf", a)
    return _same(a), _plain((*lead, _least(m, n)), a)


@kernel("householder_product", aten.linalg_householder_product.default)
def householder_product(a: TensorMeta, tau: TensorMeta) -> TensorMeta:
    """The first columns of Q, the product of the Householder reflections from geqrf."""
    return _same(a)


@kernel("ormqr", aten.ormqr.default)
def ormqr(a: TensorMeta, tau: TensorMeta, other: TensorMeta, left: bool, transpose: bool) -> TensorMeta:
    """The product of other and Q (or its adjoint), where Q is the product of the Householder reflections from geqrf."""
    return _same(other)


@kernel("matrix_exp", aten.linalg_matrix_exp.default)
def matrix_exp(a: TensorMeta) -> TensorMeta:
    """The matrix exponential: the sum of a^k / k! over k."""
    return _plain(a.shape, a)
