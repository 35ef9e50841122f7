"""smelt/codegen/phases.py: in which pass over a row values are computed, and which ones the row keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from smelt.base.options import Options
from smelt.codegen.nest import make_nest
from smelt.codegen.phases import Phases
from smelt.loops.lower import lower
from smelt.schedule.machine import CPU, Loops, Machine, Realization
from smelt.schedule.plan import schedule
from tests.loops.graphs import GraphBuilder, layer_norm, repeated, softmax
from tests.loops.symbolic import SymbolicBuilder

SHAPE = (8, 32)


def phases(
    build: Callable[[GraphBuilder], Any], g: GraphBuilder | None = None, machine: Machine = CPU, keep: bool = True
) -> Phases:
    """Of the program's one kernel."""
    g = g or GraphBuilder()
    made = build(g)
    plan = schedule(lower(g.build(*(made if isinstance(made, tuple) else (made,)))), Options(), None, machine)
    (group,) = plan.groups.values()
    return Phases(make_nest(group, plan), plan, keep)


def names(members: list[Any]) -> list[str]:
    return [member.name for member in members]


def normal(g: GraphBuilder) -> Any:
    return softmax(g, g.input(*SHAPE), 1)


def test_a_softmax_goes_over_its_row_three_times() -> None:
    found = phases(normal)
    assert found.count == 3
    rows = [names(found.roots(phase)[0]) for phase in range(3)]
    assert rows == [["amax"], ["sum_1"], []]
    assert [names(found.roots(phase)[2]) for phase in range(3)] == [[], [], ["div"]]
    assert [found.depth(name) for name in ("x0", "amax", "exp", "sum_1", "div")] == [0, 1, 1, 2, 2]


def test_a_costly_value_is_kept_for_a_later_pass() -> None:
    found = phases(normal)
    assert found.temporaries == {"exp": "w0"}
    assert phases(normal, keep=False).temporaries == {}
    assert phases(lambda g: softmax_of(g, g.input(*SHAPE))).temporaries == {}, "one subtraction is repeated"


def softmax_of(g: GraphBuilder, x: Any) -> Any:
    """Of what costs an addition, which a pass computes again."""
    shifted = g.sub(x, repeated(g, g.amax(x, (1,)), SHAPE, (1,)))
    return g.sub(shifted, repeated(g, g.sum(shifted, (1,)), SHAPE, (1,)))


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({"row_buffer_bytes": 32 * 8}, 1),
        ({"row_buffer_bytes": 32 * 8 - 1}, 0),
        ({"row_buffers_bytes": 32 * 8}, 1),
        ({"row_buffers_bytes": 32 * 8 - 1}, 0),
        ({"min_kept_additions": 10**6}, 0),
    ],
)
def test_rows_keep_no_more_than_there_is_room_for(limits: dict[str, int], kept: int) -> None:
    assert len(phases(normal, machine=replace(CPU, loops=Loops(**limits))).temporaries) == kept


def test_stored_value_is_read_back_instead_of_recomputed() -> None:
    def build(g: GraphBuilder) -> Any:
        x = g.input(*SHAPE)
        costly = g.exp(g.sub(x, repeated(g, g.amax(x, (1,)), SHAPE, (1,))))
        return costly, g.div(costly, repeated(g, g.sum(costly, (1,)), SHAPE, (1,)))

    found = phases(build)
    assert found.temporaries == {} and found.is_stored("exp") and not found.is_stored("x0")
    assert names(found.roots(1)[2]) == ["exp"] and names(found.roots(2)[2]) == ["div"]


def test_operands_of_what_a_row_keeps_are_not_kept_beside_it() -> None:
    def build(g: GraphBuilder, shown: bool) -> Any:
        x = g.input(*SHAPE)
        costly = g.exp(g.sub(x, repeated(g, g.amax(x, (1,)), SHAPE, (1,))))
        square = g.tanh(costly)
        made = g.div(square, repeated(g, g.sum(square, (1,)), SHAPE, (1,)))
        return (made, square) if shown else made

    assert phases(lambda g: build(g, False)).temporaries == {"tanh": "w0"}
    assert phases(lambda g: build(g, True)).temporaries == {}


def test_results_of_rows_are_stored_when_they_are_there() -> None:
    def build(g: GraphBuilder) -> Any:
        x = g.input(*SHAPE)
        top = g.amax(x, (1,))
        total = g.sum(g.exp(g.sub(x, repeated(g, top, SHAPE, (1,)))), (1,))
        return top, total, g.div(x, repeated(g, total, SHAPE, (1,)))

    found = phases(build)
    assert [names(found.outer_stores(phase)) for phase in range(4)] == [[], ["amax"], ["sum_1"], []]


def test_a_symbolic_width_has_room_for_the_widest_row() -> None:
    g = SymbolicBuilder(6, 32)
    n, m = g.symbols
    found = phases(lambda g: softmax(g, g.input(n, m), 1), g)
    assert found.temporaries == {"exp": "w0"} and found.room == CPU.loops.row_buffer_bytes // 8
    assert not g.known.assumed


def test_values_of_a_row_are_stored_before_the_next_pass() -> None:
    def build(g: GraphBuilder) -> Any:
        y, mean, rstd = layer_norm(g, g.input(*SHAPE), g.input(32), g.input(32))
        return y, mean, rstd

    found = phases(build)
    stores = [names(found.outer_stores(phase)) for phase in range(found.count + 1)]
    assert stores[0] == [] and sorted(stores[1] + stores[2]) == ["div", "rsqrt"] and found.count == 3
    assert "div" in stores[1] and "rsqrt" in stores[2]
    assert [len(found.roots(phase)[2]) for phase in range(3)] == [0, 0, 1]


def test_columns_are_folded_in_the_pass_of_what_they_read() -> None:
    def build(g: GraphBuilder) -> Any:
        x = g.input(64, 96)
        centred = g.sub(x, repeated(g, g.amax(x, (1,)), (64, 96), (1,)))
        return centred, g.sum(g.mul(centred, centred), (0,))

    found = phases(build)
    assert found.count == 2
    assert names(found.roots(0)[1]) == [] and len(found.roots(1)[1]) == 1
    (column,) = found.roots(1)[1]
    assert found.depth(column.name) == 0, "outside of the loops it is there before the kernel runs"


def test_costs_add_up_to_bytes_in_memory() -> None:
    found = phases(lambda g: g.exp(g.mul(g.neg(x := g.input(*SHAPE)), g.neg(x))))
    plan = found.plan
    plain = {name: found.cost(name) for name in plan.program.nodes}
    assert plain["x0"] == 1 and plain["neg"] == 2 and plain["mul"] == 1 + plain["neg"] + plain["neg_1"]


def test_a_value_of_fewer_elements_costs_nothing() -> None:
    def build(g: GraphBuilder) -> Any:
        row = g.exp(g.input(8))
        return g.mul(g.input(*SHAPE), g.broadcast_in_dim(row, SHAPE, (0,)))

    found = phases(build, machine=replace(CPU, realization=Realization(repeats=1000)))
    assert found.cost("exp") == 0 and found.cost("x2") == 1
