"""Linear algebra: what the metadata tells of results (shape, dtype, order in memory) against LAPACK's, values by what
they have to be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from smelt.base.errors import CompileError
from smelt.prims import ops
from smelt.prims.kernels import linalg
from smelt.prims.table import PRIMS, Kind
from tests.prims.prim_check import checked, to_meta

NAMES = {name for name, prim in PRIMS.items() if prim.meta.__module__ == linalg.__name__}
SHAPES = [(3, 3), (5, 3), (3, 5), (1, 1), (2, 4, 3), (2, 1, 3, 4), (0, 3), (3, 0), (0, 3, 2)]
SQUARE = [(3, 3), (1, 1), (2, 4, 4), (2, 1, 3, 3), (0, 0), (0, 3, 3)]
DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]


def f(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype)


def spd(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    a = f(*shape, dtype=dtype)
    return a @ a.mH + torch.eye(shape[-1], dtype=dtype)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want.to(got.dtype), rtol=1e-3, atol=1e-3)


def laid_out(name: str, *args: Any) -> Any:
    """The results, whose metadata also has told their order in memory, where they have more than one column."""
    value, meta = checked(name, *args), PRIMS[name].meta(*map(to_meta, args))
    values, metas = (value, meta) if isinstance(value, tuple) else ((value,), (meta,))
    for v, m in zip(values, metas, strict=True):
        if v.numel():
            strides = zip(v.shape, v.stride(), m.stride, strict=True)
            assert all(s == t for n, s, t in strides if n != 1), (name, v.shape, v.stride(), m.stride)
    return value


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_factors_of_any_shape(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a = f(*shape, dtype=dtype)
    for full in (False, True):
        u, s, vh = laid_out("svd", a, full, True, None)
        k = s.shape[-1]
        close((u[..., :k] * s[..., None, :].to(dtype)) @ vh[..., :k, :], a)
        close(checked("svd", a, full, False, None)[1], s)
    for mode in ("reduced", "complete"):
        q, r = laid_out("qr", a, mode)
        close(q @ r, a)
    assert laid_out("qr", a, "r")[0].shape == (0,)
    p, low, up = checked("lu", a, True)
    close(p @ low @ up, a)
    lu, pivots, status = laid_out("lu_factor", a, True, False)
    assert not status.any()
    found = checked("lu_unpack", lu, pivots, True, True)
    close(found[0] @ found[1] @ found[2], a)
    assert [t.numel() for t in checked("lu_unpack", lu, pivots, False, True)[1:]] == [0, 0]
    assert checked("lu_unpack", lu, pivots, True, False)[0].numel() == 0
    close(
        laid_out("pinv", a, None, torch.tensor(1e-6, dtype=s.dtype), False) @ a @ torch.linalg.pinv(a),
        torch.linalg.pinv(a),
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SQUARE)
def test_of_square_matrices(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a, b = spd(*shape, dtype=dtype), f(*shape[:-1], 2, dtype=dtype)
    one = torch.eye(shape[-1], dtype=dtype).expand(shape)
    close(laid_out("inverse", a, False)[0] @ a, one)
    det, sign = laid_out("det", a)[0], laid_out("slogdet", a)
    close(sign[0] * sign[1].exp(), det)
    close(
        det.reshape(-1),
        torch.tensor(
            [np.linalg.det(m.numpy()) for m in a.flatten(0, -3)] if len(shape) > 2 else [np.linalg.det(a.numpy())],
            dtype=dtype,
        ),
    )
    values, vectors = laid_out("eigh", a, "L", True)
    close(a @ vectors, vectors * values[..., None, :].to(dtype))
    close(checked("eigh", a, "U", False)[0], values)
    values, vectors = checked("eig", a)
    close(a.to(values.dtype) @ vectors, vectors * values[..., None, :])
    close(checked("eigvals", a).real.sort()[0], values.real.sort()[0])
    low, status = laid_out("cholesky_ex", a, False, False)
    close(low @ low.mH, a)
    up, _ = laid_out("cholesky_ex", a, True, False)
    close(up.mH @ up, a)
    close(checked("cholesky_inverse", low, False) @ a, one)
    close(a @ laid_out("cholesky_solve", b, low, False), b)
    close(checked("matrix_exp", torch.zeros_like(a)), one)
    x, *_ = laid_out("solve", a, b, True, False)
    close(a @ x, b)
    close(laid_out("solve", a, b.mT.contiguous(), False, False)[0] @ a, b.mT)
    lu, pivots, _ = ops.lu_factor(a, True, False)
    close(a @ laid_out("lu_solve", lu, pivots, b, True, False), b)
    close(a.mH @ laid_out("lu_solve", lu, pivots, b, True, True), b)
    ld, places, _ = checked("ldl_factor", a, True, False)
    close(a @ laid_out("ldl_solve", ld, places, b, True), b)
    if "cholesky" in PRIMS:
        close(checked("cholesky", a, False), low)


def test_batches_are_broadcast() -> None:
    a, b = spd(3, 4, 4), f(2, 1, 4, 2)
    low = torch.linalg.cholesky(a)
    close(a @ laid_out("solve", a, b, True, False)[0], b.expand(2, 3, 4, 2))
    close(low @ laid_out("solve_triangular", low, b, False, True, False), b.expand(2, 3, 4, 2))
    close(a @ laid_out("cholesky_solve", b, low, False), b.expand(2, 3, 4, 2))
    x, same = checked("triangular_solve", b, low, False, False, False)
    close(low @ x, b.expand(2, 3, 4, 2))
    assert same.shape == (2, 3, 4, 4)
    lu, pivots, _ = ops.lu_factor(a, True, False)
    close(a @ laid_out("lu_solve", lu, pivots, b, True, False), b.expand(2, 3, 4, 2))


def test_triangles_from_the_right() -> None:
    up, b = torch.linalg.cholesky(spd(2, 3, 3)).mT, f(2, 5, 3)
    close(laid_out("solve_triangular", up, b, True, False, False) @ up, b)


@pytest.mark.parametrize(("a", "b"), [((3, 3), (3,)), ((2, 3, 3), (2, 3)), ((2, 3, 3), (3, 4)), ((1, 2, 2), (1, 2))])
def test_right_sides_that_are_vectors(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    m, v = spd(*a), f(*b)
    x, *_ = checked("solve", m, v, True, False)
    want = torch.linalg.solve(m, v)
    close(x, want)
    assert x.shape == want.shape


@pytest.mark.parametrize("shape", [(5, 3), (3, 3), (2, 4, 2)])
def test_reflections(shape: tuple[int, ...]) -> None:
    a = f(*shape)
    reflections, tau = laid_out("geqrf", a)
    q = laid_out("householder_product", reflections, tau)
    close(q @ reflections.triu()[..., : shape[-1], :], a)
    other = f(*shape[:-1], 2)
    whole = torch.linalg.qr(a, "complete")[0]
    found = laid_out("ormqr", reflections, tau, other, True, False)
    close(found.abs(), (whole @ other).abs()) if shape[-2] == shape[-1] else close(found.norm(), other.norm())


def test_a_singular_matrix_has_a_status() -> None:
    assert checked("inverse", torch.zeros(2, 2), False)[1].item() > 0
    assert checked("cholesky_ex", -torch.eye(2), False, False)[1].item() > 0


@pytest.mark.parametrize(("a", "b"), [((2, 3, 3), (4, 3, 2)), ((3, 2, 2), (2, 2, 2))])
def test_batches_that_do_not_fit(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    for name, args in (("solve", (f(*a), f(*b), True, False)), ("cholesky_solve", (f(*b), f(*a), False))):
        with pytest.raises(CompileError, match="linear algebra: batches"):
            PRIMS[name].meta(*map(to_meta, args))


@pytest.mark.parametrize("name", ["svd", "eigh", "lu", "qr", "det", "inverse", "cholesky_ex", "geqrf", "pinv", "solve"])
def test_vectors_are_no_matrices(name: str) -> None:
    prim = PRIMS[name]
    rest = [to_meta(f(3))] * (len(prim.parameters) - 1)
    with pytest.raises(CompileError, match=f"prim {name}"):
        prim.meta(to_meta(f(3)), *rest)


def test_all_are_kernels_and_zeros_solve_zeros() -> None:
    assert all(PRIMS[name].kind is Kind.KERNEL for name in NAMES)
    eye, zero = torch.eye(3), torch.zeros(3, 2)
    lu, pivots, _ = ops.lu_factor(eye, True, False)
    solved = {
        "solve": ops.solve(eye, zero, True, False)[0],
        "solve_triangular": ops.solve_triangular(eye, zero, True, True, False),
        "lu_solve": ops.lu_solve(lu, pivots, zero, True, False),
        "cholesky_solve": ops.cholesky_solve(zero, eye, False),
    }
    at = {"solve": (1,), "solve_triangular": (1,), "lu_solve": (2,), "cholesky_solve": (0,)}
    for name, value in solved.items():
        assert not value.any() and PRIMS[name].facts.linear_in == at[name]
