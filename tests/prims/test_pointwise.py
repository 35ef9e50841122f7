"""Pointwise primitives against numpy and the standard library, and what their facts say against what they compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special

from smelt.abi.faults import NOT_IN_UNIT, TOO_FEW, fault_error
from smelt.base.errors import CompileError
from smelt.graph.ir.meta import meta_of
from smelt.prims import ops
from smelt.prims.table import PRIMS, Keeps, Kind, Prim, Takes
from tests.prims.prim_check import checked, to_meta

POINTWISE = {name: prim for name, prim in PRIMS.items() if prim.kind is Kind.POINTWISE}
UNARY = {name: prim for name, prim in POINTWISE.items() if prim.parameters == ("x",)}
BINARY = {name: prim for name, prim in POINTWISE.items() if prim.parameters == ("x", "y")}
SPECIAL = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.5, 0.5, 2.5, -3.0], dtype=torch.float64)
WHOLE = torch.tensor([0, 1, -1, 5, -6, 127, -128, 3, 2, -2], dtype=torch.int8)


def with_numpy(name: str) -> Callable[..., Any]:
    found = {
        "asin": np.arcsin,
        "acos": np.arccos,
        "atan": np.arctan,
        "asinh": np.arcsinh,
        "acosh": np.arccosh,
        "atanh": np.arctanh,
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "neg": np.negative,
        "sign": lambda x: np.nan_to_num(np.sign(x)),  # torch has 0 of NaN
        "erf": special.erf,
        "erfc": special.erfc,
        "erfinv": special.erfinv,
        "lgamma": special.gammaln,
        "digamma": special.digamma,
        "sigmoid": special.expit,
        "round": np.rint,
        "bitwise_not": np.bitwise_not,
        "clone": np.copy,
        "sub": np.subtract,
        "mul": np.multiply,
        "div": np.true_divide,
        "floor_div": np.floor_divide,
        "trunc_div": lambda x, y: np.trunc(x / y),
        "pow": np.power,
        "atan2": np.arctan2,
        "maximum": np.maximum,
        "minimum": np.minimum,
        "shift_left": np.left_shift,
        "shift_right": np.right_shift,
        **dict(eq=np.equal, ne=np.not_equal, lt=np.less, le=np.less_equal, gt=np.greater, ge=np.greater_equal),
    }
    return found.get(name) or getattr(np, name)


def takes_floats(prim: Prim) -> bool:
    return prim.facts.takes is not Takes.WHOLE


@pytest.mark.parametrize("name", [name for name, prim in UNARY.items() if takes_floats(prim)])
def test_one_operand(name: str) -> None:
    x = SPECIAL if name not in ("lgamma", "digamma") else SPECIAL[SPECIAL > 0]  # scipy and torch differ at poles
    with np.errstate(all="ignore"):
        want = with_numpy(name)(x.numpy())
    got = checked(name, x).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)
    if PRIMS[name].facts.exact:
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


@pytest.mark.parametrize("name", [name for name, prim in BINARY.items() if takes_floats(prim)])
def test_two_operands_and_numbers(name: str) -> None:
    x, y = (v.flatten() for v in torch.meshgrid(SPECIAL, SPECIAL, indexing="ij"))
    if name in ("floor_div", "trunc_div", "fmod", "remainder"):
        keep = x.isfinite() & y.isfinite() & (y != 0)
        x, y = x[keep], y[keep]
    with np.errstate(all="ignore"):
        want = with_numpy(name)(x.numpy(), y.numpy())
        by_number = with_numpy(name)(x.numpy(), np.full(x.shape, 0.5))
        of_number = with_numpy(name)(np.full(y.shape, 0.5), y.numpy())
    np.testing.assert_allclose(checked(name, x, y), want, rtol=1e-12)
    np.testing.assert_allclose(checked(name, x, 0.5), by_number, rtol=1e-12)
    np.testing.assert_allclose(checked(name, 0.5, y), of_number, rtol=1e-12)


@pytest.mark.parametrize(
    "name", ["bitwise_and", "bitwise_or", "bitwise_xor", "maximum", "minimum", "mul", "add", "sub"]
)
def test_whole_numbers_wrap(name: str) -> None:
    x, y = (v.flatten() for v in torch.meshgrid(WHOLE, WHOLE, indexing="ij"))
    np.testing.assert_array_equal(checked(name, x, y), with_numpy(name)(x.numpy(), y.numpy()))


@pytest.mark.parametrize(("name", "rounded"), [("floor_div", math.floor), ("trunc_div", math.trunc)])
def test_quotients_of_whole_numbers(name: str, rounded: Callable[[Any], int]) -> None:
    x, y = (v.flatten() for v in torch.meshgrid(WHOLE.long(), WHOLE[1:].long(), indexing="ij"))
    want = [rounded(Fraction(a, b)) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    assert checked(name, x, y).tolist() == want


def test_shifts_by_the_width_and_more_or_less_than_nothing() -> None:
    x = torch.tensor([5, -5, 127, -128], dtype=torch.int8)
    for amount in (8, 100, -1):
        assert checked("shift_left", x, amount).tolist() == [0, 0, 0, 0]
        assert checked("shift_right", x, amount).tolist() == [0, -1, 0, -1]
    assert checked("shift_right", x, 1).tolist() == [2, -3, 63, -64]
    assert checked("shift_left", x, 1).tolist() == [10, -10, -2, 0]


def test_fma_rounds_once() -> None:
    x = (1 + torch.rand(200) * 2.0**-11).float()
    z = -(x * x)
    got = checked("fma", x, x, z)
    want = [float(Fraction(a) ** 2 + Fraction(c)) for a, c in zip(x.tolist(), z.tolist(), strict=True)]
    assert got.tolist() == want and any(want)
    assert not (x * x + z).any()
    assert checked("fma", 2.0, x, 0.1).tolist() == pytest.approx((x * 2 + 0.1).tolist())


def test_where_takes_numbers_on_either_side() -> None:
    cond, x = torch.tensor([True, False, True]), torch.tensor([1.0, 2.0, math.nan])
    assert checked("where", cond, x, 7.0).tolist()[:2] == [1.0, 7.0]
    assert checked("where", cond, 7.0, x).tolist() == [7.0, 2.0, 7.0]
    assert checked("where", cond, x, -x).tolist()[:2] == [1.0, -2.0]


def test_conversions() -> None:
    x = torch.tensor([0.0, -0.5, 2.75, -2.75, 1 + 2.0**-8, 1 + 3 * 2.0**-8, math.nan], dtype=torch.float64)
    assert checked("convert", x[:4], torch.int16).tolist() == [0, 0, 2, -2]
    assert checked("convert", x, torch.bool).tolist() == [False] + [True] * 6
    assert checked("convert", x[4:6], torch.bfloat16).tolist() == [1.0, 1 + 2.0**-6]  # ties to even


@pytest.mark.parametrize("fault", [TOO_FEW, NOT_IN_UNIT])
def test_refuse_raises_the_error_that_the_number_names(fault: int) -> None:
    x = torch.tensor([1.0, 2.0])
    same = checked("refuse", x, torch.tensor([False, False]), fault)
    assert torch.equal(same, x) and same.data_ptr() != x.data_ptr()
    error = fault_error(fault)
    with pytest.raises(type(error)) as raised:
        ops.refuse(x, torch.tensor([False, True]), fault)
    assert str(raised.value) == str(error)


def test_a_clone_is_memory_of_its_own() -> None:
    x = torch.rand(3, 2).t()
    same = checked("clone", x)
    assert torch.equal(same, x) and same.data_ptr() != x.data_ptr()
    assert ops.clone.meta(meta_of(x)).stride == (1, 2)


F, G, WHOLES, B = torch.rand(3), torch.rand(4), torch.arange(3), torch.tensor([True, False, True])


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("add", (F, G)),
        ("add", (F, WHOLES)),
        ("mul", (2.0, 3.0)),
        ("fma", (F, F, G)),
        ("fma", (F, F, F.double())),
        ("where", (F, F, F)),
        ("where", (B, F, F.double())),
        ("where", (B, G, G)),
        ("where", (B, 1.0, 2.0)),
        ("refuse", (F, F, 4)),
        ("refuse", (G, B, 4)),
    ],
)
def test_wrong_operands(name: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(CompileError, match=f"prim {name}"):
        PRIMS[name].meta(*map(to_meta, args))


# -- facts


@pytest.mark.parametrize("name", POINTWISE)
def test_facts_about_the_type_of_the_result(name: str) -> None:
    prim, x = POINTWISE[name], WHOLE if POINTWISE[name].facts.takes is Takes.WHOLE else SPECIAL
    extra = {"where": (x, x), "fma": (x, x), "refuse": (x != x, 4), "convert": (x.dtype,)}
    args = (x > 0, *extra["where"]) if name == "where" else (x, *extra.get(name, (x,) * (len(prim.parameters) - 1)))
    if name == "refuse":
        args = (x, torch.zeros_like(x, dtype=torch.bool), 4)
    assert checked(name, *args).dtype is (torch.bool if prim.facts.boolean else x.dtype)
    if prim.facts.takes is Takes.WHOLE:
        with pytest.raises(RuntimeError):
            prim(*(a.double() if isinstance(a, torch.Tensor) else a for a in args))


@pytest.mark.parametrize("name", BINARY)
def test_commutative_means_that_operands_may_be_swapped(name: str) -> None:
    prim = BINARY[name]
    values = WHOLE if prim.facts.takes is Takes.WHOLE else SPECIAL[3:]
    x, y = (v.flatten() for v in torch.meshgrid(values, values, indexing="ij"))
    one, other = prim(x, y), prim(y, x)
    same = torch.equal(one.nan_to_num(77), other.nan_to_num(77))
    if prim.facts.commutative:
        assert same
    else:  # of maximum and minimum the sign of zero tells
        signs = torch.equal(one.signbit(), other.signbit()) if one.is_floating_point() else True
        assert not (same and signs) or name == "hypot"


@pytest.mark.parametrize("name", [name for name, prim in POINTWISE.items() if prim.facts.annihilated_by])
def test_zeros_that_make_all_zero(name: str) -> None:
    prim, x = POINTWISE[name], torch.rand(4) + 0.1
    for at in range(len(prim.parameters)):
        args: list[Any] = [x] * len(prim.parameters)
        if name == "convert":
            args[1] = torch.float64
        if not isinstance(args[at], torch.Tensor):
            continue
        args[at] = torch.zeros(4)
        assert (not prim(*args).any()) == (at in prim.facts.annihilated_by)


@pytest.mark.parametrize("name", [name for name, prim in UNARY.items() if prim.facts.keeps is not Keeps.NOTHING])
def test_operands_that_stay_what_they_are(name: str) -> None:
    """Of a type that a primitive gives back its kernel needs none: torch's agrees, where it has one."""
    keeps = UNARY[name].facts.keeps
    assert torch.equal(UNARY[name](WHOLE), WHOLE) == (keeps is Keeps.WHOLE)
    if name == "sign":
        assert torch.equal(torch.sign(B), B)


@pytest.mark.parametrize("name", [name for name, prim in UNARY.items() if prim.facts.of_whole is not None])
def test_answers_for_whole_numbers(name: str) -> None:
    assert set(UNARY[name](WHOLE).tolist()) == {UNARY[name].facts.of_whole}


def test_which_primitives_have_another_for_bools() -> None:
    assert {name for name, prim in POINTWISE.items() if prim.facts.for_bool} == {
        "bitwise_not",
        "mul",
        "maximum",
        "minimum",
    }


@pytest.mark.parametrize("name", [name for name, prim in POINTWISE.items() if prim.facts.for_bool])
def test_replacements_of_primitives_for_bools(name: str) -> None:
    prim, other = POINTWISE[name], PRIMS[str(POINTWISE[name].facts.for_bool)]
    x, y = B[:2].repeat(2), B[:2].repeat_interleave(2)
    args = (x, y)[: len(prim.parameters)]
    assert torch.equal(prim(*args), other(*args)) and other(*args).dtype is torch.bool


EXACT = {"abs", "neg", "sign", "floor", "ceil", "round", "trunc", "copysign", "maximum", "minimum", "where"}


def test_which_results_need_no_rounding() -> None:
    assert {name for name, prim in POINTWISE.items() if prim.facts.exact} == EXACT


@pytest.mark.parametrize("name", sorted(EXACT))
def test_exact_results_need_no_rounding(name: str) -> None:
    prim, x = POINTWISE[name], SPECIAL.bfloat16()
    y = x.flip(0)
    args: tuple[torch.Tensor, ...] = (x > 0, x, y) if name == "where" else (x, y)[: len(prim.parameters)]
    wide = tuple(a.double() if a.is_floating_point() else a for a in args)
    assert torch.equal(prim(*wide).nan_to_num(9), prim(*args).double().nan_to_num(9))
    assert torch.equal(prim(*wide).bfloat16().double().nan_to_num(9), prim(*wide).nan_to_num(9))


def test_eager_refuses_integers_over_zero_as_recorded() -> None:
    zero = torch.zeros_like(WHOLE)
    for name, prim in BINARY.items():
        if name in ("atan2", "hypot", "copysign", "nextafter", "pow", "div"):
            continue
        if prim.facts.divides:
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                prim(WHOLE, zero)
        else:
            prim(WHOLE, zero)
