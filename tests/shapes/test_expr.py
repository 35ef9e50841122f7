"""Index expressions against brute force and against sympy."""

import itertools
import math

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.graph.ir.meta import contiguous_stride
from smelt.shapes.assumptions import Assumptions
from smelt.shapes.expr import ZERO, Expr, Runtime, Var, constant, flat_index, reshape_index, variable
from smelt.shapes.size import Size, evaluate

A, B, C = Var("a", 6), Var("b", 4), Var("c", 10)
VARS = (A, B, C)


def values() -> list[dict]:
    return [dict(zip(VARS, point, strict=True)) for point in itertools.product(*(range(v.size) for v in VARS))]


@st.composite
def steps(draw: st.DrawFn) -> tuple[list, Expr]:
    """A program over a, b, c as (steps to replay on numbers, the expression)."""
    program: list = []
    e = ZERO
    for _ in range(draw(st.integers(1, 6))):
        match draw(st.sampled_from(["var", "const", "mul", "div", "mod"])):
            case "var":
                v, c = draw(st.sampled_from(VARS)), draw(st.integers(-12, 12))
                program.append(("var", v, c))
                e = e + variable(v) * c
            case "const":
                c = draw(st.integers(-9, 9))
                program.append(("const", c))
                e = e + c
            case "mul":
                c = draw(st.integers(-3, 4))
                program.append(("mul", c))
                e = e * c
            case "div":
                c = draw(st.integers(1, 24))
                program.append(("div", c))
                e = e // c
            case "mod":
                c = draw(st.integers(1, 24))
                program.append(("mod", c))
                e = e % c
    return program, e


def replay(program: list, point: dict) -> int:
    x = 0
    for step in program:
        match step:
            case ("var", v, c):
                x += point[v] * c
            case ("const", c):
                x += c
            case ("mul", c):
                x *= c
            case ("div", c):
                x //= c
            case ("mod", c):
                x %= c
    return x


@settings(max_examples=200, deadline=None)
@given(steps())
def test_simplified_form_has_the_same_values_and_its_range_holds(case):
    program, e = case
    low, high = e.range()
    for point in values():
        want = replay(program, point)
        assert e.evaluate(point) == want
        assert low <= want <= high
    moved = {A: variable(B) * 2 + 1, B: constant(3)}
    inner = e.substitute(moved)
    for point in values():
        assert inner.evaluate(point) == e.evaluate({A: point[B] * 2 + 1, B: 3, C: point[C]})


def test_sympy_agrees_on_linear_forms():
    a, b = sympy.symbols("a b")
    e = (variable(A) * 3 + 4 - variable(B)) * 2 + variable(B)
    assert sympy.expand((3 * a + 4 - b) * 2 + b - sympy.sympify(str(e))) == 0


@settings(max_examples=100, deadline=None)
@given(st.permutations([2, 3, 4, 2]), st.permutations([2, 3, 4, 2]), st.integers(0, 3))
def test_reshape_index(new, old, joined):
    old = [math.prod(old[:joined])] + list(old[joined:]) if joined else list(old)
    index = [variable(Var(f"i{d}", n)) for d, n in enumerate(new)]
    where = reshape_index(index, new, old)
    strides = [math.prod(old[d + 1 :]) for d in range(len(old))]
    for flat, point in enumerate(itertools.product(*(range(n) for n in new))):
        env = {Var(f"i{d}", n): p for (d, n), p in zip(enumerate(new), point, strict=True)}
        assert sum(w.evaluate(env) * s for w, s in zip(where, strides, strict=True)) == flat


def test_reshape_there_and_back_leaves_no_division():
    shape, merged = (8, 12, 64), (96, 64)
    index = [variable(Var(f"i{d}", n)) for d, n in enumerate(merged)]
    there = reshape_index(index, merged, shape)
    assert any(list(part.divisions()) for part in there)
    assert reshape_index(there, shape, merged) == tuple(index)
    assert flat_index(there, (768, 64, 1)) == index[0] * 64 + index[1]


def test_mixed_radix_cuts():
    h, d = variable(Var("h", 12)), variable(Var("d", 64))
    flat = h * 64 + d
    assert flat // 64 == h
    assert flat % 64 == d
    assert (flat // 32) % 2 == d // 32
    assert (flat % 128) == (h % 2) * 64 + d
    assert (flat // 128) * 128 + flat % 128 == flat


def symbolic(*hints: int) -> tuple[Assumptions, list[Size]]:
    known = Assumptions()
    return known, [known.symbol(n) for n in hints]


@pytest.mark.parametrize(
    "reshape",
    [
        lambda b, t: ((b, t, 12, 8), (b * t, 96)),
        lambda b, t: ((b * t, 96), (b, t, 12, 8)),
        lambda b, t: ((b * 12, t, 8), (b, 12, t * 8)),
        lambda b, t: ((b * t * 96,), (b, t, 96)),
        lambda b, t: ((b, t), (t, b)),
        lambda b, t: ((b, t - 1, 6), (6 * b, t - 1)),
        lambda b, t: ((t // 2 * 2, b), (t // 2, 2 * b)),
    ],
)
def test_symbolic_reshapes_hold_for_every_size(reshape):
    known, (b, t) = symbolic(4, 6)
    new, old = reshape(b, t)
    variables = [Var(f"i{d}", n) for d, n in enumerate(new)]
    where = reshape_index([variable(v) for v in variables], new, old)
    assert known.assumed == []
    for values in ({s: n for s, n in zip(known.symbols, ns, strict=True)} for ns in ((4, 6), (2, 2), (3, 5), (7, 4))):
        strides = contiguous_stride([evaluate(n, values) for n in old])
        for flat, point in enumerate(itertools.product(*(range(evaluate(n, values)) for n in new))):
            env = dict(zip(variables, point, strict=True))
            assert sum(w.evaluate(env, values) * s for w, s in zip(where, strides, strict=True)) == flat


def test_symbolic_reshapes_leave_no_more_divisions_than_static_ones():
    known, (b, t) = symbolic(4, 6)
    shape, merged = (b, t, 64), (b * t, 64)
    index = [variable(Var(f"i{d}", n)) for d, n in enumerate(merged)]
    there = reshape_index(index, merged, shape)
    assert any(list(part.divisions()) for part in there)
    assert reshape_index(there, shape, merged) == tuple(index)
    assert flat_index(there, (64 * t, 64, 1)) == index[0] * 64 + index[1]
    h, d = variable(Var("h", t)), variable(Var("d", b * 8))
    flat = h * (b * 8) + d
    assert (flat // (b * 8), flat % (b * 8)) == (h, d)
    assert flat // 8 == h * b + d // 8
    assert known.assumed == []


def test_variables_of_two_graphs_with_symbols_of_one_name_differ():
    (_, (one,)), (_, (other,)) = symbolic(4), symbolic(4)
    assert Var("i0", one) != Var("i0", other)
    assert str(variable(Var("i0", one)) * (one + 1) + one) == "(s0 + 1)*i0 + s0"


def test_cached_simplification_of_a_loaded_index_depends_on_its_value():
    for value in ("at depth 1", "at depth 2"):
        (part, _), *_ = (Expr(((Runtime("j0", 10, value), 1),), 0) // 2).terms
        (atom, _), *_ = part.of.terms
        assert atom.value == value


@pytest.mark.parametrize(("block", "row"), [(444, 333), (512, 333), (384, 96), (5, 7), (1, 2)])
def test_a_row_in_blocks_is_not_divided(block: int, row: int) -> None:
    """Three dimensions that run as one and are cut where none of them ends: the place is the number of the element."""
    high, low = Var("high", 18), Var("low", block)
    element = variable(high) * block + variable(low)
    place = element // (3 * row) * (3 * row) + element // 3 % row * 3 + element % 3
    values = [(high, h, low, v) for h in range(18) for v in (0, block // 2, block - 1)]
    assert all(place.evaluate({a: i, b: j}) == i * block + j for a, i, b, j in values)
    assert place == element
