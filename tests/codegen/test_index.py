"""The text of index expressions gives what the expressions do, by C's division, for all values of their variables."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from smelt.codegen.index import IndexRenderer
from smelt.codegen.parameters import Arguments
from smelt.codegen.scope import Scopes
from smelt.shapes.assumptions import Assumptions
from smelt.shapes.expr import Expr, Quotient, Remainder, Var, constant, variable
from tests.codegen.c_text import value_of

A, B = Var("a", 6), Var("b", 5)
POINTS = [{A: a, B: b} for a, b in itertools.product(range(6), range(5))]


def renderer() -> IndexRenderer:
    made = IndexRenderer(Scopes(), Arguments())
    made.names, made.depths = {A: "i", B: "j"}, {A: 1, B: 2}
    return made


def random_expr(draw: random.Random) -> Expr:
    made = constant(draw.randint(-9, 9))
    for _ in range(draw.randint(1, 5)):
        match draw.randrange(4):
            case 0:
                made = made + variable(draw.choice((A, B))) * draw.randint(-12, 12)
            case 1:
                made = made // draw.randint(1, 9)
            case 2:
                made = made % draw.randint(1, 9)
            case 3:
                made = made * draw.randint(-3, 4) + variable(draw.choice((A, B)))
    return made


@pytest.mark.parametrize("seed", range(40))
def test_text_gives_what_the_expression_does(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(10):
        expr = random_expr(draw)
        text = renderer().text_of(expr)
        for point in POINTS:
            assert value_of(text, {"i": point[A], "j": point[B]}) == expr.evaluate(point), (text, str(expr))


@pytest.mark.parametrize("low", [-7, 0, 3])
def test_sizes_of_which_nothing_is_known_divide_as_in_python(low: int) -> None:
    known = Assumptions()
    size = known.symbol(4)
    made = renderer()
    for atom in (Quotient, Remainder):
        text = made.atom_text(atom(variable(A) + low, size))
        lines = [re.fullmatch(r"const int64_t (\w+) = (.*);", line) for line in made.scopes.stack[0].lines]
        for a, n in itertools.product(range(6), range(1, 9)):
            names = {"i": a, "z0": n}
            for line in filter(None, lines):
                names[line[1]] = value_of(line[2], names)
            assert value_of(text, names) == ((a + low) // n if atom is Quotient else (a + low) % n)


def test_depth_is_that_of_the_innermost_loop() -> None:
    made = renderer()
    assert made.depth_of(constant(3)) == 0 and made.depth_of(variable(A) * 2) == 1
    assert made.depth_of(variable(A) + (variable(B) * 3) // 7) == 2


def test_index_that_may_overflow_32_bits_is_widened() -> None:
    far = Var("c", 2**20)
    made = renderer()
    made.names[far], made.depths[far] = "k", 1
    assert "(int64_t)" not in made.text_of(variable(far) * 2000)
    assert made.text_of(variable(far) * 5000) == "5000 * (int64_t)k"
    assert made.text_of(variable(A) * 2**32) == f"(int64_t){2**32} * (int64_t)i"
