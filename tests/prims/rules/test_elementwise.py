"""Pointwise operators against eager: types, broadcasting, special values, whole numbers, numbers for tensors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from smelt.prims.rules import elementwise
from tests.prims.aten_check import check
from tests.prims.prim_check import names

aten = torch.ops.aten
SPECIAL = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.5, 0.5, 1.5, 2.5, -3.0, 1e-40, 300.0])
WHOLE = torch.tensor([0, 1, -1, 5, -6, 127, -128, 3, 2, -2])
BOOLS = torch.tensor([True, False])
NUMBERS = ("add", "sub", "rsub", "mul", "div", "remainder", "fmod", "floor_divide", "eq", "lt", "ge", "pow")
ONLY_TENSORS = ("atan2", "maximum", "minimum", "fmax", "fmin", "hypot", "copysign", "logical_and", "logical_xor")


def pairs(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = torch.meshgrid(x, x, indexing="ij")
    return a.flatten(), b.flatten()


def taken(op: Any, *args: Any, **kwargs: Any) -> bool:
    try:
        op(*args, **kwargs)
    except (RuntimeError, NotImplementedError, IndexError):
        return False
    return True


def compare(op: Any, *args: Any, exact: bool = True, **kwargs: Any) -> None:
    """Where eager takes the operands; signs of zeros count as well."""
    if not taken(op, *args, **kwargs):
        return
    prims = check(op, *args, scale=1.0, **kwargs)
    want = op(*args, **kwargs)
    if exact and want.dtype.is_floating_point and not want.isnan().any():
        (got,) = prims(*(a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)), torch.tensor(0))
        assert torch.equal(got.signbit(), want.signbit()), op


@pytest.mark.parametrize("name", elementwise.UNARY)
def test_of_one_operand(name: str) -> None:
    op = getattr(aten, name).default
    for x in (SPECIAL.double(), SPECIAL[3:9].double(), WHOLE, WHOLE.to(torch.int8), torch.rand(3, 0), torch.tensor(2)):
        compare(op, x)
    for x in (SPECIAL.bfloat16(), BOOLS):
        if taken(op, x) and not (x.dtype is torch.bool and name in DECLINED):
            check(op, x, scale=2.0)


DECLINED = {"abs", "neg", "bitwise_not", "floor", "ceil", "trunc", "round"}
"""Some stay eager's for bools."""


@pytest.mark.parametrize("name", NUMBERS)
def test_tensors_and_numbers(name: str) -> None:
    packet, scalar = getattr(aten, name), None
    for overload in ("Scalar", "Tensor_Scalar"):
        scalar = getattr(packet, overload, scalar) if overload in packet.overloads() else scalar
    tensor = getattr(packet, "Tensor_Tensor" if name == "pow" else "default" if name == "floor_divide" else "Tensor")
    a, b = pairs(SPECIAL.double())
    keep = b != 0 if name == "floor_divide" else b == b
    compare(tensor, a[keep], b[keep])
    x, y = pairs(WHOLE)
    keep = y > 0 if name in ("remainder", "fmod", "floor_divide", "div", "pow") else y == y
    for dtype in (torch.int64, torch.int8, torch.uint8):
        compare(tensor, x[keep].to(dtype), y[keep].to(dtype))
    compare(tensor, x[keep], y[keep].double() + 0.5)
    compare(tensor, x[keep].bfloat16(), y[keep].float())
    compare(tensor, x[keep], torch.tensor(2.5))
    compare(tensor, torch.rand(3, 1), torch.rand(2, 1, 4))
    compare(tensor, torch.rand(0, 1), torch.rand(3))
    compare(tensor, *pairs(BOOLS)) if name not in ("sub", "rsub") else None
    for number in (2, 0.5, True, -3):
        for value in (SPECIAL.double(), WHOLE, SPECIAL.bfloat16(), torch.tensor(2)):
            if scalar is not None:
                compare(scalar, value, number, exact=value.dtype is not torch.bfloat16)
            compare(tensor, value, torch.tensor(number), exact=value.dtype is not torch.bfloat16)


@pytest.mark.parametrize("name", ONLY_TENSORS)
def test_tensors(name: str) -> None:
    packet = getattr(aten, name)
    op = packet.default if "default" in packet.overloads() else packet.Tensor
    a, b = pairs(SPECIAL.double())
    compare(op, a, b, exact=name in ("atan2", "copysign", "hypot"))
    compare(op, a.float(), b.float(), exact=name in ("atan2", "copysign", "hypot"))
    compare(op, *pairs(WHOLE))
    compare(op, *pairs(BOOLS))
    compare(op, *pairs(SPECIAL.bfloat16()), exact=False)
    compare(op, torch.rand(3, 1), torch.rand(0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int32])
def test_which_of_two_zeros(dtype: torch.dtype) -> None:
    """Of a full vector eager gives the second, the primitives give the first: the operands change places."""
    width = elementwise._VECTOR_BYTES // dtype.itemsize
    for count in (1, width - 1, width, width + 1):
        x, y = torch.rand(count).to(dtype), torch.rand(count).to(dtype)
        changed = dtype.is_floating_point and count >= width
        for op, args in (
            (aten.maximum.default, (x, y)),
            (aten.minimum.default, (x, y)),
            (aten.clamp.Tensor, (x, None, y)),
        ):
            (node,) = (n for n in check(op, *args).graph.nodes if n.op == "call_function")
            assert [str(a) for a in node.args] == (["x1", "x0"] if changed else ["x0", "x1"])


def test_bounds_that_are_numbers_keep_their_position() -> None:
    nodes = check(aten.clamp.default, torch.rand(32), 0.25, 0.5).graph.nodes
    assert [n.args[1] for n in nodes if n.op == "call_function"] == [0.25, 0.5]


SHIFTS = ["bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__"]


@pytest.mark.parametrize("name", SHIFTS)
def test_shifts(name: str) -> None:
    packet = getattr(aten, name)
    x, y = pairs(torch.tensor([0, 1, -1, 5, -6, 8, 63, 64, 100]))
    for dtype in (torch.int64, torch.int8):
        compare(packet.Tensor, x.to(dtype), y.to(dtype))
    scalar = "Scalar" if name.startswith("__") else "Tensor_Scalar"
    for amount in (0, 2, 64, -1):
        compare(getattr(packet, scalar), x, amount)
    if name.startswith("__") and taken(packet.Tensor, SPECIAL[3:6], SPECIAL[3:6]):
        check(packet.Tensor, SPECIAL[3:6], SPECIAL[3:6], fallback=True)


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
def test_rounded_quotients(mode: str | None) -> None:
    a, b = pairs(SPECIAL.double())
    compare(aten.div.Tensor_mode, a, b, rounding_mode=mode)
    x, y = pairs(WHOLE)
    compare(aten.div.Tensor_mode, x[y != 0], y[y != 0], rounding_mode=mode)
    compare(aten.div.Tensor_mode, (x[y > 0] + 0.3).bfloat16(), y[y > 0].bfloat16(), rounding_mode=mode)
    for number in (2, -3, 0.7):
        for value in (SPECIAL.double(), WHOLE, SPECIAL.bfloat16()):
            compare(aten.div.Scalar_mode, value, number, rounding_mode=mode)


@pytest.mark.parametrize("alpha", [0, 1, 2, -3, 2.5])
def test_factors(alpha: float) -> None:
    x, y = torch.randn(3, 4).double(), torch.randn(4).double()
    for name in ("add", "sub", "rsub"):
        packet = getattr(aten, name)
        check(packet.Tensor, x, y, alpha=alpha)
        check(packet.Scalar, x, 2.5, alpha) if name == "rsub" else check(packet.Scalar, x, 2.5, alpha)
        if alpha == int(alpha):
            check(packet.Tensor, WHOLE, WHOLE.flip(0), alpha=int(alpha))
    check(aten.add.Tensor, *pairs(BOOLS), alpha=bool(alpha))
    for name in ("addcmul", "addcdiv"):
        check(getattr(aten, name).default, x, y, torch.rand(3, 1).double() + 1, value=alpha)
    assert ("fma" in names(check(aten.add.Tensor, x, y, alpha=alpha))) == (alpha != 1)


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.5, 0.7, 1.0])
def test_lerp(weight: float) -> None:
    a, b = torch.randn(3, 4).double(), torch.randn(3, 4).double() * 1e9
    check(aten.lerp.Scalar, a, b, weight)
    check(aten.lerp.Tensor, a, b, torch.full((4,), weight).double())
    one = check(aten.lerp.Scalar, a, b, 1.0)(a, b, torch.tensor(0))[0]
    assert torch.equal(one, b)


def test_choices() -> None:
    cond, x = torch.tensor([[True], [False]]), torch.randn(3)
    check(aten.where.self, cond, x, x.double())
    check(aten.where.self, cond, WHOLE, torch.tensor(2.5))
    check(aten.where.ScalarOther, cond, x, 2)
    check(aten.where.ScalarSelf, cond, 2.5, WHOLE)
    check(aten.where.Scalar, cond, 2, 3)
    check(aten.where.Scalar, cond, 2.5, False)
    check(aten.masked_fill.Scalar, x, cond, -math.inf)
    check(aten.masked_fill.Tensor, WHOLE, torch.tensor(True), torch.tensor(3))


@pytest.mark.parametrize("x", [SPECIAL.double(), WHOLE, SPECIAL.bfloat16()], ids=["float", "whole", "low"])
def test_bounds(x: torch.Tensor) -> None:
    counts = torch.ones(1).clamp(max=math.nan).isnan().item()  # to 2.11 a NaN that is the only bound is none
    for low, high in ((-1, 2), (None, 1), (0, None), (2, -1), (0.5, 1.5), (0, math.nan), *[(None, math.nan)] * counts):
        compare(aten.clamp.default, x, low, high, exact=False)
    a, b = x[:1] * 0 + 1, x.flip(0)
    for low, high in ((a, b), (None, b), (b, None)):
        compare(aten.clamp.Tensor, x, low, high, exact=False)
    compare(aten.clamp_min.default, x, 1)
    compare(aten.clamp_max.default, x, -0.5)
    compare(aten.clamp_min.Tensor, x, b, exact=False)
    compare(aten.clamp_max.Tensor, x, b, exact=False)
    for values in ((), (1.0,), (0.5, 7.0), (None, None, -7.0)):
        check(aten.nan_to_num.default, x, *values)


ONE = "square sgn frac isposinf isneginf deg2rad rad2deg sinc logit special_entr logical_not".split()


@pytest.mark.parametrize("name", ONE)
def test_a_few_primitives(name: str) -> None:
    op = getattr(aten, name).default
    for x in (SPECIAL.double(), WHOLE, WHOLE.to(torch.int8), BOOLS, torch.rand(0, 2), torch.tensor(0.25).double()):
        compare(op, x, exact=name != "frac")
    check(op, SPECIAL.bfloat16(), scale=2.0)


@pytest.mark.parametrize("eps", [None, 0.0, 0.1, 0.5])
def test_logit_bounds(eps: float | None) -> None:
    check(aten.logit.default, torch.tensor([0.0, 0.05, 0.5, 0.95, 1.0, 1.1, math.nan]).double(), eps)


TWO = "logaddexp logaddexp2 xlogy special_xlog1py ldexp heaviside".split()


@pytest.mark.parametrize("name", TWO)
def test_a_few_primitives_of_two(name: str) -> None:
    packet = getattr(aten, name)
    op = packet.Tensor if "Tensor" in packet.overloads() else packet.default
    a, b = pairs(SPECIAL.double())
    keep = b.abs() < 100 if name == "ldexp" else b == b if name.startswith("x") else a == a
    compare(op, a[keep], b[keep], exact=False)
    x, y = pairs(WHOLE)
    compare(op, x[y < 20], y[y < 20], exact=False)
    compare(op, torch.rand(3, 1), torch.rand(2, 1, 4), exact=False)
    for overload, args in (
        ("Scalar_Self", (2.0, b)),
        ("Scalar_Other", (a, 0.5)),
        ("self_scalar", (0, b)),
        ("other_scalar", (a, 2)),
    ):
        if overload in packet.overloads():
            compare(getattr(packet, overload), *args, exact=False)


def test_heaviside_of_bools_stays() -> None:
    check(aten.heaviside.default, BOOLS, BOOLS, fallback=True)


@pytest.mark.parametrize("equal_nan", [False, True])
def test_closeness(equal_nan: bool) -> None:
    a, b = pairs(SPECIAL.double())
    check(aten.isclose.default, a, b, 1e-5, 1e-8, equal_nan)
    check(aten.isclose.default, a, b * (1 + 1e-3), 1e-3, 0.0, equal_nan)
    check(aten.isclose.default, a, b + 0.5, 0.0, 0.5, equal_nan)
    check(aten.isclose.default, WHOLE, WHOLE, 1e-5, 1e-8, equal_nan, fallback=True)


@pytest.mark.parametrize("decimals", [-2, -1, 0, 1, 3])
def test_decimals(decimals: int) -> None:
    x = torch.tensor([0.0, 2.5, -3.455, 125.0, 1234.5678, -15.0]).double()
    check(aten.round.decimals, x, decimals=decimals)


def test_neighbours() -> None:
    a, b = pairs(SPECIAL.double())
    compare(aten.nextafter.default, a, b)
    compare(aten.nextafter.default, a.float(), b.float())
    check(aten.nextafter.default, SPECIAL.bfloat16(), SPECIAL.bfloat16(), fallback=True)


def test_bits() -> None:
    x, y = pairs(WHOLE)
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__", "__xor__"):
        packet = getattr(aten, name)
        check(packet.Tensor, x, y)
        check(packet.Tensor, *pairs(BOOLS))
        check(packet.Scalar, x.to(torch.int8), 6)
        check(packet.Scalar, BOOLS, True)


def test_a_half_as_exponent_is_a_root() -> None:
    compare(aten.pow.Tensor_Scalar, SPECIAL.double(), 0.5)
    compare(aten.pow.Tensor_Scalar, SPECIAL.double(), -0.5)
    for exponent in (0, 1, 2, 3, -1, -2, 0.25, 1.5, math.inf):
        compare(aten.pow.Tensor_Scalar, SPECIAL.double(), exponent)
    for exponent in (0, 1, 2, 3, 7):
        compare(aten.pow.Tensor_Scalar, WHOLE, exponent)
    compare(aten.pow.Scalar, 2, WHOLE[3:5].abs())
    compare(aten.pow.Scalar, -1.5, SPECIAL.double())
