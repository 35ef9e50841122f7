"""Pairs of loop variables against their meaning: equal values of the common variables are the same place in memory."""

import itertools
import math

import pytest

from smelt.schedule.align import Alignment, Digits, align, align_sequences
from smelt.schedule.dependencies import Names
from smelt.shapes.expr import Expr, Var, constant, variable


def digits(*sizes: int, name: str) -> Digits:
    """A contiguous access along variables of these sizes (the outermost first), the smallest step first."""
    made = [Var(f"{name}{i}", size) for i, size in enumerate(sizes)]
    return [(math.prod(sizes[i + 1 :]), var) for i, var in enumerate(made)][::-1]


def value_of(expr: Expr, values: dict[Var, int]) -> int:
    return int(expr.const) + sum(int(c) * values[atom] for atom, c in expr.terms)  # type: ignore[index]


def places(access: Digits, alignment: Alignment, left: bool, common: list[Var]) -> list[int]:
    """Where each value of the common variables leads to, by the access and what its variables are then."""
    given = alignment.substitution(alignment.left if left else alignment.right)
    exprs = [(int(c), given.get(var, variable(var))) for c, var in access]
    runs = itertools.product(*(range(int(var.size)) for var in common))
    values = (dict(zip(common, run, strict=True)) for run in runs)
    return [sum(c * value_of(expr, each) for c, expr in exprs) for each in values]


CASES = [
    ((6,), (6,)), ((2, 3), (6,)), ((6,), (2, 3)), ((4, 6), (24,)), ((4, 6), (2, 2, 6)), ((4, 6), (8, 3)),
    ((2, 12, 5), (24, 5)), ((2, 3, 4), (6, 4)), ((12, 2), (3, 8)), ((30,), (2, 3, 5)), ((8, 9), (4, 2, 3, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), CASES)
def test_pairs_lead_to_the_same_indices(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    left, right = digits(*one, name="a"), digits(*other, name="b")
    found = align(left, right, Names())
    assert isinstance(found, Alignment)
    common = [piece for _, _, piece in reversed(found.pairs)]
    here, there = places(left, found, True, common), places(right, found, False, common)
    assert here == there
    assert sorted(here) == list(range(math.prod(one)))  # every place once


REFUSED = [
    (((4, 6), (6, 4)), "do not divide"),
    (((2, 3), (3,)), "more elements"),
    (((3,), (2, 3)), "more elements"),
    (((2, 0), (2, 0)), "no elements"),
]


@pytest.mark.parametrize(("shapes", "reason"), REFUSED)
def test_shapes_without_matching_loops_are_refused_with_the_reason(
    shapes: tuple[tuple[int, ...], ...], reason: str
) -> None:
    found = align(digits(*shapes[0], name="a"), digits(*shapes[1], name="b"), Names())
    assert isinstance(found, str) and reason in found


def test_other_strides_are_refused() -> None:
    a, b = Var("a", 4), Var("b", 4)
    found = align([(2, a)], [(1, b)], Names())
    assert isinstance(found, str) and found.startswith("strides differ")


def test_a_whole_variable_stays_itself() -> None:
    left, right = digits(5, 7, name="a"), digits(5, 7, name="b")
    found = align(left, right, Names())
    assert isinstance(found, Alignment)
    assert all(pieces == [var] for var, pieces in found.left.items())
    assert found.substitution(found.left) == {}
    assert found.substitution(found.right) == {b: variable(a) for (_, a), (_, b) in zip(left, right, strict=True)}


def test_a_second_access_goes_on_where_the_first_ended() -> None:
    names = Names()
    first = align(digits(4, name="a"), digits(4, name="b"), names)
    assert isinstance(first, Alignment)
    second = align_sequences([Var("c", 6)], [Var("d", 2), Var("e", 3)], names, first)
    assert second is first
    assert len(first.pairs) == 3  # 4; then 3 and 2
    assert [str(piece.size) for _, _, piece in first.pairs] == ["4", "3", "2"]


def test_parts_of_which_the_last_is_short_are_paired_with_the_whole() -> None:
    """10 places in 3 parts of 4: the whole is 4 * part + place."""
    whole, part, row = Var("w", 10), Var("p", 3), Var("r", 4)
    found = align([(1, whole)], [(1, row), (4, part)], Names(), limits=({}, {row: (part, 10)}))
    assert isinstance(found, Alignment)
    joined = found.substitution(found.left)[whole]
    assert joined == variable(part) * 4 + variable(row) + constant(0)
    refused = align([(1, Var("x", 11))], [(1, row), (4, part)], Names(), limits=({}, {row: (part, 10)}))
    assert isinstance(refused, str)


def test_align_splits_what_differs():
    names = Names()
    batch, row, width = Var("b", 4), Var("s", 8), Var("w", 12)
    both, heads, depth = Var("bs", 32), Var("h", 3), Var("d", 4)
    found = align([(1, width), (12, row), (96, batch)], [(1, depth), (4, heads), (12, both)], names)
    assert not isinstance(found, str)
    assert [p.size for p in found.left[width]] == [4, 3]
    assert [p.size for p in found.right[both]] == [8, 4]
    assert isinstance(align([(1, width)], [(2, width)], names), str)
