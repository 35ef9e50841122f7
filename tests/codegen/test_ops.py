"""smelt/codegen/ops.py: where a value comes from, and which conditions it holds under, on a target of plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from smelt.base.errors import CompileError
from smelt.base.options import Options
from smelt.codegen.ops import OpsRenderer
from smelt.codegen.parameters import Arguments
from smelt.codegen.scope import Scopes, V
from smelt.loops.ir import Condition, Index
from smelt.loops.lower import lower
from smelt.schedule.plan import Schedule, schedule
from smelt.shapes.expr import Var, constant, variable
from tests.loops.graphs import GraphBuilder

ROW = Var("i", 8)
PLACE = variable(ROW)


class Text(OpsRenderer):
    """A target without loops: each value is a name, and `lines` are what defines them."""

    def __init__(self, plan: Schedule) -> None:
        super().__init__(plan, Scopes(), Arguments(), set())
        self.names[ROW], self.depths[ROW] = "i", 0
        self.members: set[str] = set()

    @property
    def lines(self) -> list[str]:
        return self.scopes.stack[0].lines

    def define(self, text: str) -> V:
        return self.scopes.define("T", text, torch.float32, 0)

    def from_memory(self, name: str, index: Index) -> V:
        return self.define(f"{name}[{self.text_of(index[0])}]" + "".join(f" if {m.text}" for m in self.masks))

    def mask(self, conditions: Sequence[Condition]) -> V:
        text = " & ".join(f"{c.low}<={self.text_of(c.expr)}<{c.high}" for c in conditions)
        return V(text, torch.bool, 0)

    def choose(self, mask: V, value: V, other: V) -> V:
        return self.define(f"{mask.text} ? {value.text} : {other.text}")

    def is_member(self, name: str, index: Index) -> bool:
        return name in self.members or super().is_member(name, index)

    def constant(self, value: Any, dtype: torch.dtype) -> V:
        return V(str(value), dtype, 0)

    def apply(self, op: str, dtype: torch.dtype, *args: V) -> V:
        return self.define(f"{op}({', '.join(a.text for a in args)})")


def text() -> Text:
    """Of sin(exp(x) + y) as a kernel: nothing in it but the result has a buffer."""
    g = GraphBuilder()
    x, y = g.input(8), g.input(8)
    return Text(schedule(lower(g.build(g.sin(g.add(g.exp(x), y)), g.mm(g.input(8, 8), g.input(8, 8)))), Options()))


def test_values_without_buffers_are_computed_once_for_each_index() -> None:
    ops = text()
    first = ops.load("add", (PLACE,))
    assert ops.lines == [
        "const T t0 = x0[i];",
        "const T t1 = exp(t0);",
        "const T t2 = x1[i];",
        "const T t3 = add(t1, t2);",
    ]
    assert ops.load("add", (PLACE,)) is first and len(ops.lines) == 4
    other = ops.load("exp", (constant(7) - PLACE,))
    assert (
        other != first and ops.lines[4:] == ["const T t4 = x0[-i + 7];", "const T t5 = exp(t4);"] or len(ops.lines) == 6
    )


def test_load_without_buffer_or_body_is_an_error() -> None:
    ops = text()
    ops.plan.stored.discard("mm")
    with pytest.raises(CompileError, match="mm has neither a buffer nor a body"):
        ops.load("mm", (PLACE, PLACE))


def test_conditions_that_are_decided_are_not_asked() -> None:
    ops = text()
    value, other = V("value", torch.float32, 0), V("other", torch.float32, 0)
    assert ops.masked([Condition(PLACE, 0, 8)], lambda: value, other) is value
    assert ops.masked([], lambda: value, other) is value
    for never in (Condition(PLACE, 8, None), Condition(PLACE, None, 0)):
        assert ops.masked([Condition(PLACE, 2, None), never], lambda: pytest.fail("it is read nowhere"), other) is other
    ops.masked([Condition(PLACE, 0, 8), Condition(PLACE, 2, 5)], lambda: value, other)
    assert ops.lines == ["const T t0 = 2<=i<5 ? value : other;"]


def test_a_condition_inside_of_itself_is_asked_once() -> None:
    ops = text()
    here = [Condition(PLACE, 2, 5)]
    seen: list[list[str]] = []

    def inner() -> V:
        seen.append([m.text for m in ops.masks])
        return ops.masked(here, lambda: ops.load("x0", (PLACE,)), V("never", torch.float32, 0))

    ops.masked(here, inner, V("0", torch.float32, 0))
    assert seen == [["2<=i<5"]] and not ops.masks
    assert ops.lines == ["const T t0 = x0[i] if 2<=i<5;", "const T t1 = 2<=i<5 ? t0 : 0;"]


def test_a_value_is_known_where_more_conditions_hold_and_nowhere_else() -> None:
    ops = text()
    zero = V("0", torch.float32, 0)
    outer, inner = [Condition(PLACE, 2, None)], [Condition(PLACE, None, 5)]

    def load() -> V:
        return ops.load("x0", (PLACE,))

    ops.masked(outer, lambda: ops.masked(inner, load, load()), zero)
    assert [line for line in ops.lines if "x0" in line] == ["const T t0 = x0[i] if 2<=i<None;"]
    ops.masked(inner, load, zero)
    assert len([line for line in ops.lines if "x0" in line]) == 2
    load()
    ops.masked([Condition(PLACE, 1, None)], load, zero)
    assert len([line for line in ops.lines if "x0" in line]) == 3, "what holds everywhere holds there"


def test_value_computed_by_the_loops_is_loaded_without_mask() -> None:
    ops = text()
    ops.members = {"exp"}
    zero = V("0", torch.float32, 0)
    ops.masked([Condition(PLACE, 2, None)], lambda: ops.load("add", (PLACE,)), zero)
    assert ops.lines[:3] == ["const T t0 = x0[i];", "const T t1 = exp(t0);", "const T t2 = x1[i] if 2<=i<None;"]
    assert not ops.masks
