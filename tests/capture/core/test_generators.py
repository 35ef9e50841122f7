"""Generators made as if they had run: `_native.generator_at`."""

from __future__ import annotations

import dis
import gc
import inspect
import sys
from types import CellType

import pytest

from smelt.capture import _native as native


def after_yield(code, count=1):
    """The offset behind the n-th `yield` of a code object."""
    instructions = list(dis.get_instructions(code))
    at = [i for i, each in enumerate(instructions) if each.opname == "YIELD_VALUE"][count - 1]
    return instructions[at + 1].offset


def example(scale):
    def numbers(n):
        try:
            while True:
                n = (yield n * scale) or n + 1
        except KeyError:
            yield "caught"

    return numbers


def made(n, scale=10, offset=None):
    code = example(scale).__code__
    offset = after_yield(code) if offset is None else offset
    return native.generator_at(code, globals(), [n, CellType(scale)], [], offset, False)


def test_it_continues_from_its_state():
    steps = made(3)
    assert inspect.getgeneratorstate(steps) == inspect.GEN_SUSPENDED and steps.gi_frame.f_locals["n"] == 3
    assert [next(steps), steps.send(7), next(steps), steps.throw(KeyError)] == [40, 70, 80, "caught"]
    assert list(steps) == []


def test_it_has_not_started():
    steps = made(3, offset=-1)
    assert inspect.getgeneratorstate(steps) == inspect.GEN_CREATED
    assert [next(steps), next(steps)] == [30, 40]


def test_it_delegates():
    def outer():
        yield from inner
        yield "end"

    inner, code = iter([1, 2]), outer.__code__
    offset = next(i.offset for i in dis.get_instructions(code) if i.opname == "YIELD_VALUE")
    behind = next(i.offset for i in dis.get_instructions(code) if i.offset > offset)
    steps = native.generator_at(code, globals(), [CellType(inner)], [inner], behind, True)
    assert steps.gi_yieldfrom is inner
    assert list(steps) == [1, 2, "end"]


def test_nothing_leaks():
    value = object()
    before = sys.getrefcount(value)
    for _ in range(100):
        steps = made(3, scale=value)
        steps.close()
        made(value, offset=-1)
    del steps
    gc.collect()
    assert sys.getrefcount(value) == before


def test_frame_state_that_does_not_fit_the_code_is_refused():
    code = example(1).__code__
    with pytest.raises(ValueError, match="does not fit"):
        native.generator_at(code, globals(), [1], [], -1, False)
    with pytest.raises(ValueError, match="must be a cell"):
        native.generator_at(code, globals(), [1, 2], [], -1, False)
    with pytest.raises(ValueError, match="does not fit"):
        native.generator_at(after_yield.__code__, globals(), [], [], -1, False)
