"""smelt/loops/ir.py: what conditions prove by the ranges of their variables, and who reads whom in a program."""

from __future__ import annotations

import itertools

import pytest
import torch

from smelt.graph.ir.meta import TensorMeta
from smelt.loops.ir import Condition, Extern, Input, Item, LoopProgram, Pointwise, Ref, references
from smelt.shapes.assumptions import Assumptions
from smelt.shapes.expr import Var, constant, variable

FIVE, THREE = Var("i", 5), Var("j", 3)


@pytest.mark.parametrize(("low", "high"), [*itertools.product((None, -4, 0, 1, 4, 9), (None, -3, 0, 1, 5, 6, 13))])
def test_conditions_of_numbers_are_decided_exactly(low: int | None, high: int | None) -> None:
    """Ranges of sums of different variables are exact: what holds for all values, or for none, is known."""
    for expr, values in (
        (variable(FIVE), range(5)),
        (variable(FIVE) * 2 - variable(THREE) - 1, [2 * i - j - 1 for i in range(5) for j in range(3)]),
        (constant(4), [4]),
    ):
        above = [low is None or low <= n for n in values]
        below = [high is None or n < high for n in values]
        condition = Condition(expr, low, high)
        assert condition.open_low() is not all(above) and condition.open_high() is not all(below)
        assert condition.holds_always() is (all(above) and all(below))
        assert condition.holds_never() is (not any(above) or not any(below))


def test_steps_are_tested_wherever_they_are_not_one() -> None:
    assert Condition(variable(FIVE), 0, 5).holds_always()
    assert not Condition(variable(FIVE), 0, 5, 2).holds_always()
    assert not Condition(variable(FIVE), 0, 5, 2).holds_never() and Condition(variable(FIVE), 5, 9, 2).holds_never()


def test_conditions_of_symbols_are_decided_by_what_is_known_and_assume_nothing() -> None:
    known = Assumptions()
    n = known.symbol(7)
    i = variable(Var("i", n))
    assert Condition(i, 0, n).holds_always() and Condition(i + n, n, n * 2).holds_always()
    assert Condition(i, n, None).holds_never() and Condition(i, None, 0).holds_never()
    for unknown in (Condition(i, 1, None), Condition(i, None, n - 1), Condition(i, 0, 7), Condition(i, 7, None)):
        assert not unknown.holds_always() and not unknown.holds_never()  # though the example has 7
    assert not known.assumed


def test_references_are_found_in_their_order_at_any_depth() -> None:
    value = (Ref("a"), [3, Ref("b"), {"k": Ref("a"), "l": (Ref("c"),)}], "text", None)
    assert references(value) == ["a", "b", "a", "c"]
    assert references("a") == references(None) == references(()) == []


def test_each_user_of_a_value_is_listed_once_in_program_order() -> None:
    meta = TensorMeta((), torch.float32, (), torch.device("cpu"))
    nodes = [
        Input("x", meta),
        Pointwise("square", meta, ("x", "x"), lambda ops, index: None, "mul"),
        Extern("call", (meta, None), ("square", "x"), len, ()),
        Item("item", meta, ("call",), 0),
    ]
    program = LoopProgram({node.name: node for node in nodes}, [], ["x"])
    assert program.users() == {"x": ["square", "call"], "square": ["call"], "call": ["item"], "item": []}
