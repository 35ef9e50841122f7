"""Symbolic sizes against sympy and against plain numbers."""

from __future__ import annotations

import math

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from smelt.base.errors import SpecializationError
from smelt.shapes.assumptions import Assumptions
from smelt.shapes.size import Size, evaluate, hint, known_at_most, known_less, lowest, same, symbols, text


@st.composite
def formulas(draw, depth=3):
    """Python source over a, b and small numbers."""
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from(["a", "b", "1", "2", "3", "8", "12"]))
    left, right = draw(formulas(depth=depth - 1)), draw(formulas(depth=depth - 1))
    return f"({left} {draw(st.sampled_from(['+', '-', '*']))} {right})"


def pair(a=6, b=10):
    owner = Assumptions()
    return owner, owner.symbol(a), owner.symbol(b)


@given(formulas(), formulas(), st.integers(2, 40), st.integers(2, 40))
def test_polynomials_are_sympy_s(f, g, x, y):
    owner, a, b = pair()
    ours = eval(f, {"a": a, "b": b}) * eval(g, {"a": a, "b": b})
    s0, s1 = sympy.symbols("s0 s1", integer=True)
    theirs = sympy.expand(eval(f"({f}) * ({g})", {"a": s0, "b": s1}))
    assert sympy.expand(eval(text(ours), {"s0": s0, "s1": s1})) == theirs
    numbers = dict(zip(owner.symbols, (x, y), strict=True))
    assert evaluate(ours, numbers) == theirs.subs({s0: x, s1: y})
    assert not owner.assumed


@given(
    formulas(), st.sampled_from(["a", "b", "4", "(a*b)", "(2*a)", "(a*3)", "(a + b)"]), st.integers(2, 40), st.data()
)
def test_division_and_remainder(f, by, x, data):
    """Whatever the form, its value is right for every size that the assumptions allow."""
    y = data.draw(st.integers(2, 40))
    owner, a, b = pair()
    given = {"a": a, "b": b}
    quotient, rest = eval(f"({f}) // {by}", given), eval(f"({f}) % {by}", given)
    numbers = dict(zip(owner.symbols, (x, y), strict=True))
    if not all(fact.holds(numbers) for fact in owner.assumed):
        return
    value, divisor = eval(f, {"a": x, "b": y}), eval(by, {"a": x, "b": y})
    assert evaluate(quotient, numbers) == value // divisor
    assert evaluate(rest, numbers) == value % divisor
    names = {symbol.name: number for symbol, number in numbers.items()}
    assert eval(text(quotient), names) == value // divisor and eval(text(rest), names) == value % divisor


@given(formulas(), formulas(), st.integers(2, 40), st.integers(2, 40))
def test_an_answer_holds_where_the_assumptions_hold(f, g, x, y):
    owner, a, b = pair()
    left, right = eval(f, {"a": a, "b": b}), eval(g, {"a": a, "b": b})
    less, equal = left < right, left == right
    assert less == (hint(left) < hint(right)) and equal == (hint(left) == hint(right))
    numbers = dict(zip(owner.symbols, (x, y), strict=True))
    if all(fact.holds(numbers) for fact in owner.assumed):
        assert less == (evaluate(left, numbers) < evaluate(right, numbers))
        assert equal == (evaluate(left, numbers) == evaluate(right, numbers))


@given(formulas(), st.integers(2, 60), st.integers(2, 60))
def test_bounds_hold(f, x, y):
    owner, a, b = pair()
    value = eval(f, {"a": a, "b": b})
    low = lowest(value)
    assert low is None or low <= evaluate(value, dict(zip(owner.symbols, (x, y), strict=True)))


def test_size_arithmetic_of_reshapes():
    owner, a, b = pair()
    assert same(a * b * 768 // (b * 64), a * 12) and same((a * 768 + 5) % 768, 5) and (a * b) % b == 0
    assert same((a * b - 1) // b, a - 1) and same((a * b - 1) % b, b - 1)
    assert known_less(a, a * b) and known_at_most(a * 2, a * b) and not known_less(b, a)
    assert same(math.prod([a, 3, b]), 3 * a * b) and max(a, 1) is a
    assert not owner.assumed


def test_floor_divisions_are_bounded_by_what_they_divide():
    owner, a, b = pair()
    half = (a + 1) // 2
    assert known_less(half, a * 2) and known_at_most(a, half * 2) and known_at_most(half * b, a * b)
    assert half < a and not owner.assumed  # ceil(a / 2) < a from 2 on
    assert a <= 64 and known_at_most(a, a * b)  # also where a range alone would give a bound, and a worse one
    assert 2**63 - 1 > a * b and not a * 3 - b > 2**63 - 1 and len(owner.assumed) == 1
    assert same((a - 1) // -1, 1 - a) and (a * 2) % -2 == 0
    assert str((a * 3 + 1) // 4) == "((s0*3 + 1) // 4)"


def test_a_question_is_asked_once_and_written_down():
    owner, a, b = pair()
    assert a < b and a < b and not b < a
    assert a % 3 == 0 and (a * b) % 3 == 0
    assert [str(fact) for fact in owner.assumed] == ["s0 < s1", "(s0 % 3) == 0", "((s0*s1) % 3) == 0"]
    assert a <= 100 and a.owner.symbols[0].high == 100 and a < 101
    assert len(owner.assumed) == 4


def test_equal_sizes_become_one():
    owner = Assumptions()
    a, b = owner.symbol(6), owner.symbol(6)
    assert a == b and known_at_most(a, b + 1) is False
    assert owner.simplify(a - b) == 0 and int(b * 2) == 12
    assert not isinstance(owner.simplify(a), Size)
    assert [str(fact) for fact in owner.assumed] == ["s0 == s1", "s0*2 == 12"]


def test_a_marked_size_is_not_pinned():
    owner = Assumptions(lambda: "model.py:7")
    a = owner.symbol(6, kept=True)
    assert a % 2 == 0 and a > 3
    with pytest.raises(SpecializationError, match="marked dynamic") as caught:
        int(a + 1)
    assert "model.py:7" in str(caught.value)


def test_symbols_of_a_value():
    owner, a, b = pair()
    assert {s.name for s in symbols(a // 4 + 1, b % a)} == {"s0", "s1"}


def test_bounds_of_a_quotient_refine_its_dividend():
    owner, a, b = pair()
    quarter = a // 4
    product = quarter * b
    assert not known_less(0, product) and quarter > 0
    assert owner.symbols[0].low == 4 and known_less(0, product) and not known_less(1, quarter)
    assert (b // 2) * 3 + 1 < 20 and owner.symbols[1].high == 13
    assert len(owner.assumed) == 2
