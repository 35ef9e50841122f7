"""Conditions over sizes as programs for the C core: their yes is the yes of Python, which is asked otherwise."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import smelt
from smelt.capture import _native as native
from smelt.capture.guards import guards as guards_module
from smelt.capture.guards.size_programs import size_program

PLACES = {"a": 0, "b": 1}
INTERESTING = (-7, -1, 0, 1, 2, 3, 12, 2**31, 2**62, True, 2.5, 2**70)


def answer(condition: str, *values: Any) -> tuple[bool, bool]:
    """(whether the guards hold, whether Python was asked)"""
    asked = []

    def sizes(a: Any, b: Any) -> Any:
        asked.append(1)
        return eval(condition)

    program = size_program(condition, PLACES)
    assert program is not None
    guards = native.Guards(
        [(-1, native.LOCAL, 0), (-1, native.LOCAL, 1)], [(1, native.PYTHON, (sizes, (0, 1), program))], []
    )
    return guards.check(values, {}) is not None, bool(asked)


@pytest.mark.parametrize(
    "condition",
    [
        "a == b", "1 <= a <= 12", "a*b + 3 > -b", "a // 2 != b % 3", "(a - 1) // (-2) < b", "a**3 <= b**2 * 5",
        "2 <= a and a * a >= b", "(a % -3) == -1", "True",
    ],
)  # fmt: skip
def test_programs_answer_as_python_does(condition: str) -> None:
    for a, b in itertools.product(INTERESTING, INTERESTING):
        try:
            wanted = bool(eval(condition))
        except ZeroDivisionError:
            wanted = False
        holds, asked = answer(condition, a, b)
        assert holds == wanted, (condition, a, b)
        small = all(type(v) is int and abs(v) < 10**4 for v in (a, b))
        if wanted and small:
            assert not asked, (condition, a, b)


@pytest.mark.parametrize(
    "condition", ["a < 1.5", "a == 1 or b == 2", "f(a)", "a / 2 == b", "c > 1", "not a", "a**9 > b"]
)
def test_unsupported_condition_is_left_to_python(condition: str) -> None:
    assert size_program(condition, PLACES) is None


def test_deep_expressions_fit_the_stack_or_stay_in_python() -> None:
    deep = "a"
    for _ in range(60):
        deep = f"(b + {deep})"
    assert size_program(f"{deep} > 0", PLACES) is None
    powers = "a"
    for _ in range(40):
        powers = f"(-({powers} ** 1))"
    assert size_program(f"{powers} > 0", PLACES) is None
    flat = " + ".join(["a"] * 200)
    assert answer(f"{flat} > 0", 1, 1) == (True, False)


def test_malformed_programs_are_refused() -> None:
    for program in ((99, 0), (0,), (2, 0), (1, 7), (0, 1)):
        with pytest.raises(ValueError, match="program"):
            native.Guards([(-1, native.LOCAL, 0)], [(0, native.PYTHON, (bool, (0,), program))], [])


def test_dynamic_shapes_are_guarded_without_python(monkeypatch: pytest.MonkeyPatch) -> None:
    programs: list[Any] = []

    def recorded(*args: Any) -> Any:
        programs.append(size_program(*args))
        return programs[-1]

    monkeypatch.setattr(guards_module, "size_program", recorded)

    def f(x: Any, y: Any) -> Any:
        return (x + y) * x.shape[0] if x.shape[0] * 2 > 6 else x - y

    compiled = smelt.compile(f, backend="eager", dynamic=True)
    for rows in (4, 5, 9, 3, 2, 11):
        x, y = torch.randn(rows, 3), torch.randn(rows, 3)
        assert torch.equal(compiled(x, y), f(x, y))
    assert programs and None not in programs
