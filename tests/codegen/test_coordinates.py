"""smelt/codegen/coordinates.py: rearranged loops go to the same elements, all accesses of each step together."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from smelt.base.options import Options
from smelt.codegen.coordinates import Coordinates
from smelt.loops.lower import lower
from smelt.schedule.group import Role
from smelt.schedule.plan import schedule
from smelt.shapes.expr import Quotient, Remainder, Var, variable
from smelt.shapes.size import hint
from tests.loops.graphs import GraphBuilder, softmax
from tests.loops.symbolic import SymbolicBuilder

Program = Callable[[GraphBuilder], Any]


def coordinates(build: Program) -> Coordinates:
    g = GraphBuilder()
    plan = schedule(lower(g.build(build(g))), Options())
    (group,) = plan.groups.values()
    return Coordinates(group, plan)


def steps(c: Coordinates) -> Counter[tuple[int, ...]]:
    """How often the loops come to each tuple of memory places. A place that stops early stands for none."""
    offsets = [expr for expr, _ in c.offsets()]
    found: Counter[tuple[int, ...]] = Counter()
    for point in itertools.product(*(range(v.size) for v in c.order)):
        values = dict(zip(c.order, point, strict=True))
        if all((base + variable(low)).evaluate(values) < limit for low, (base, limit) in c.limits.items()):
            found[tuple(place.evaluate(values) for place in offsets)] += 1
    return found


def transposed(g: GraphBuilder) -> Any:
    return g.reshape(g.permute(g.input(4, 3, 6), (1, 0, 2)), (3, 24))


PROGRAMS: dict[str, Program] = {
    "contiguous": lambda g: g.exp(g.input(3, 4, 5)),
    "transposed": transposed,
    "regrouped": lambda g: g.add(g.reshape(g.permute(g.input(2, 6, 4), (0, 2, 1)), (8, 6)), g.input(8, 6)),
    "repeated": lambda g: g.add(g.input(4, 6), g.broadcast_in_dim(g.input(6), (4, 6), (1,))),
    "rows": lambda g: softmax(g, g.input(4, 3, 5), 2),
    "columns": lambda g: g.sum(g.input(4, 3, 5), (0,)),
    "other strides": lambda g: g.sum(g.input(4, 3, 5, stride=(1, 20, 4)), (1,)),
    "two orders": lambda g: g.add(g.input(6, 8), g.input(6, 8, stride=(1, 6))),
    "sliced": lambda g: g.neg(g.slice(g.input(6, 8), (1, 0), (5, 8), (1, 2))),
    "ones": lambda g: g.exp(g.input(1, 1)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_arranged_loops_make_the_same_steps(name: str) -> None:
    c = coordinates(PROGRAMS[name])
    before, roles = steps(c), Counter(c.roles[v] for v in c.order for _ in range(1))
    sizes = {role: [v.size for v in c.of(role)] for role in Role}
    c.arrange()
    assert steps(c) == before and set(c.roles) == set(c.order)
    for role, old in sizes.items():
        count = 1
        for n in old:
            count *= n
        now = 1
        for v in c.of(role):
            now *= v.size
        assert now == count, "a loop keeps its role"
    assert set(roles) == {c.roles[v] for v in c.order}


def test_loops_of_a_role() -> None:
    c = coordinates(PROGRAMS["rows"])
    assert [v.size for v in c.of(Role.KEPT)] == [4, 3] and [v.size for v in c.of(Role.INNER)] == [5]
    assert c.of(Role.FOLDED) == [] and c.of(Role.KEPT) + c.of(Role.INNER) == c.order


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("contiguous", [60]), ("transposed", [3, 4, 6]), ("repeated", [4, 6]), ("ones", []), ("sliced", [16])],
)
def test_neighbours_are_one_loop_and_larger_strides_are_outside(name: str, sizes: list[int]) -> None:
    c = coordinates(PROGRAMS[name])
    c.arrange()
    assert [v.size for v in c.order] == sizes


def test_no_division_is_left_where_a_loop_can_be_split() -> None:
    c = coordinates(transposed)
    assert any(expr.divisions() and [*expr.divisions()] for expr, _ in c.offsets())
    c.split_divisions()
    assert not any([*expr.divisions()] for expr, _ in c.offsets()) and len(c.order) == 3
    c = coordinates(lambda g: g.reshape(g.permute(g.input(5, 3), (1, 0)), (15,)))
    c.split_divisions()
    assert sorted(v.size for v in c.order) == [3, 5]


def test_strides_weigh_bytes() -> None:
    """The order follows the operand with more elements to move."""
    c = coordinates(lambda g: g.add(g.add(g.input(6, 8, stride=(1, 6)), g.input(6, 8, stride=(1, 6))), g.input(6, 8)))
    c.arrange()
    assert [v.size for v in c.order] == [8, 6], "the result lies as its first operand does"
    strides = coordinates(PROGRAMS["contiguous"]).strides()
    assert sorted(strides.values()) == [1.0, pytest.approx(2.585, abs=1e-3), pytest.approx(4.392, abs=1e-3)]


def test_the_rival_of_the_last_loop() -> None:
    """The one that is contiguous where the last one strides, if both are long enough."""
    c = coordinates(PROGRAMS["two orders"])
    c.arrange()
    last, other = c.order[-1], c.order[0]
    assert c.rival(6) == other and c.rival(7) is None and c.rival(1) == other != last
    assert coordinates(PROGRAMS["contiguous"]).rival(1) is None and coordinates(PROGRAMS["ones"]).rival(1) is None


def test_loops_of_nothing_and_those_with_limits_are_not_joined() -> None:
    c = coordinates(PROGRAMS["contiguous"])
    a, b, _ = c.order
    c.limits = {b: (variable(a) * 4, 10)}
    before = steps(c)
    c.merge_neighbours()
    assert a in c.order and b in c.order and steps(c) == before
    g = GraphBuilder()
    plan = schedule(lower(g.build(g.exp(g.input(0, 4)))), Options())
    (group,) = plan.groups.values()
    c = Coordinates(group, plan)
    c.arrange()
    assert sorted(v.size for v in c.order) == [0, 4]


def test_limits_move_with_the_loops_that_they_are_of() -> None:
    c = coordinates(PROGRAMS["contiguous"])
    a, b, _ = c.order
    c.limits = {b: (variable(a) * 4, 10)}
    before = steps(c)
    high, low = Var("high", 2), Var("low", 2)
    c.replace(b, (high, low), variable(high) * 2 + variable(low))
    assert list(c.limits) == [low] and steps(c) == before and c.order[1:3] == [high, low]
    rows, left = Var("rows", 3), Var("left", 1)
    c.replace(a, (rows, left), variable(rows) + variable(left))
    assert steps(c) == before and c.roles[rows] is c.roles[high]


def test_symbolic_loops_are_joined_by_form() -> None:
    g = SymbolicBuilder(5, 7)
    n, m = g.symbols
    plan = schedule(lower(g.build(g.exp(g.input(n, m, 3)))), Options())
    (group,) = plan.groups.values()
    c = Coordinates(group, plan)
    c.arrange()
    assert [str(v.size) for v in c.order] == ["3*s0*s1"] or [hint(v.size) for v in c.order] == [105]
    assert not g.known.assumed
    assert not any(isinstance(a, (Quotient, Remainder)) for expr, _ in c.offsets() for a, _ in expr.terms)
