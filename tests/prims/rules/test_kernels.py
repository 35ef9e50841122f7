"""Operators that are kernels of torch's library: arguments, strides as eager's, what surrounds special functions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special as sp

from smelt.prims.kernels import special
from smelt.prims.registry import ANY_DTYPE, DECOMPOSITIONS
from smelt.prims.rules import kernels
from smelt.prims.table import PRIMS, Kind
from tests.prims.aten_check import check
from tests.prims.prim_check import names

aten = torch.ops.aten


def test_every_kernel_has_a_rule() -> None:
    for name, prim in PRIMS.items():
        if prim.kind is Kind.KERNEL and name not in ("view_as_real", "view_as_complex"):
            assert prim.kernel in DECOMPOSITIONS, name
    assert aten._linalg_svd.default in ANY_DTYPE and aten._fft_c2c.default in ANY_DTYPE
    assert aten.cummax.default not in ANY_DTYPE


def test_arguments() -> None:
    prim = PRIMS["searchsorted"]
    given = kernels.arguments(prim, ("s", "x"), {"right": True})
    assert given == ("s", "x", False, True, None, None)
    assert kernels.arguments(PRIMS["histc"], ("x", 5), {}) == ("x", 5, 0, 0)
    assert kernels.arguments(PRIMS["hash_tensor"], ("x", [1, 0]), {"keepdim": True}) == ("x", (1, 0), True, 0)
    assert kernels.arguments(PRIMS["segment_reduce"], ("x", "sum"), {"axis": 1})[2:6] == (None, None, None, 1)
    assert kernels.arguments(PRIMS["to_device"], ("x",), {"device": "cpu"}) == ("x", "cpu")


def test_results_have_eagers_layout() -> None:
    a = torch.randn(3, 4)
    prims = check(aten._linalg_svd.default, a)
    want = [t.stride() for t in aten._linalg_svd.default(a)]
    (node,) = (n for n in prims.graph.nodes if n.target is PRIMS["svd"])
    assert [m.stride for m in node.meta["val"]] == want
    x = torch.randn(3, 4).t()
    check(aten.cummax.default, x, 0)
    prims = check(aten.logcumsumexp.default, x, 0)
    (node,) = (n for n in prims.graph.nodes if n.target is PRIMS["logcumsumexp"])
    assert node.meta["val"].stride == aten.logcumsumexp.default(x, 0).stride()


@pytest.mark.parametrize("name", ["cummax", "logcumsumexp", "median", "nanmedian", "kthvalue", "mode"])
def test_kernels_on_edges(name: str) -> None:
    op = getattr(aten, name).default
    extra = {"cummax": (0,), "logcumsumexp": (-1,), "kthvalue": (1,)}.get(name, ())
    for x in (torch.randn(1), torch.randn(()), torch.randn(3, 1), torch.randn(4, 3).t()):
        check(op, x, *extra)


@pytest.mark.parametrize("name", special.UNARY)
def test_special_functions(name: str) -> None:
    op = getattr(aten, name).default
    x = torch.tensor([0.1, 0.5, 0.9])
    for value in (
        x.double(),
        x[:0],
        torch.tensor(2),
        torch.tensor([True, False]),
        torch.tensor([0, 1], dtype=torch.int8),
    ):
        check(op, value)
    assert names(check(op, x)) == [name]


@pytest.mark.parametrize("name", special.BINARY)
def test_special_functions_of_two(name: str) -> None:
    packet = getattr(aten, name)
    x = torch.tensor([[0.1], [0.5]], dtype=torch.float64)
    x = x + 1 if name == "special_zeta" else x
    y = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    y = y + 0.5 if name in ("igamma", "igammac", "special_zeta") else y
    check(packet.default, x, y)
    check(packet.default, x[0, 0], y.float())
    for overload, args in (
        ("x_scalar", (0.5, y)),
        ("n_scalar", (x, 2)),
        ("self_scalar", (1.5, y)),
        ("other_scalar", (x, 2.0)),
    ):
        if overload in packet.overloads():
            check(getattr(packet, overload), *args)


def test_whole_numbers_with_a_common_divisor() -> None:
    values = torch.tensor([0, 1, -4, 6, 15, -35, 100])
    x, y = (v.flatten() for v in torch.meshgrid(values, values, indexing="ij"))
    for dtype in (torch.int64, torch.int16):
        check(aten.gcd.default, x.to(dtype), y.to(dtype))
        prims = check(aten.lcm.default, x.to(dtype), y.to(dtype))
        got = prims(x.to(dtype), y.to(dtype), torch.tensor(0))[0]
        np.testing.assert_array_equal(got, np.lcm(x.numpy(), y.numpy()))
    check(aten.gcd.default, values[:, None].int(), values)
    check(aten.lcm.default, values.to(torch.uint8)[:2], torch.tensor([3], dtype=torch.uint8))


@pytest.mark.parametrize("order", [0, 1, 3])
def test_polygamma(order: int) -> None:
    x = torch.tensor([0.5, 1.5, 4.0])
    for op in (aten.polygamma.default, aten.special_polygamma.default):
        prims = check(op, order, x)
        assert names(prims) == (["digamma"] if order == 0 else ["polygamma"])
        check(op, order, torch.tensor([1, 2]))


@pytest.mark.parametrize("order", [1, 2, 5])
def test_mvlgamma(order: int) -> None:
    x = torch.tensor([3.0, 7.5], dtype=torch.float64)
    prims = check(aten.mvlgamma.default, x, order)
    want = [sp.multigammaln(v, order) for v in x.tolist()]
    assert prims(x, torch.tensor(0))[0].tolist() == pytest.approx(want)
    check(aten.mvlgamma.default, torch.tensor([5, 6]), order)
    assert kernels.LOG_PI == math.log(math.pi)


def test_frexp() -> None:
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        check(aten.frexp.Tensor, torch.tensor([0.0, 1.0, -3.0, 0.1]).to(dtype))
    check(aten.frexp.Tensor, torch.rand(0, 2))


def test_triangles_of_indices() -> None:
    check(aten.tril_indices.default, 3, 4, -1)
    check(aten.triu_indices.default, 3, 4)
    check(aten.triu_indices.default, 0, 4, 2, dtype=torch.int32)
