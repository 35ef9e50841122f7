"""Results that are other shapes of products: the product writes them, in every target and with symbolic sizes."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from smelt.base.options import Options
from smelt.codegen.cpp.host import render_cpp
from smelt.graph.ir.meta import contiguous_stride
from smelt.loops.lower import lower
from smelt.schedule.plan import Schedule, schedule
from tests.codegen.cpp.test_kernel import check
from tests.codegen.test_symbolic import run_at
from tests.loops.graphs import GraphBuilder
from tests.loops.symbolic import SymbolicBuilder


def plan_of(g: GraphBuilder, *outputs: object, updates: dict[int, str] | None = None) -> Schedule:
    return schedule(lower(g.build(*outputs)), Options(), updates)


def in_rows(node: fx.Node) -> fx.Node:
    """The value as a caller wants it, whatever strides its operand has."""
    meta = node.meta["val"]
    node.meta["val"] = replace(meta, stride=contiguous_stride(meta.shape))
    return node


def test_the_product_writes_its_other_shape() -> None:
    g = GraphBuilder()
    x, w = g.input(12, 16), g.input(16, 40)
    logits = g.mm(x, w)
    shown = g.reshape(logits, (3, 4, 40))
    gm = g.build(shown, g.amax(logits, (1,)), g.exp(shown))
    plan = schedule(lower(gm), Options())
    assert plan.program.outputs[0].name == "mm" and "reshape" not in plan.stored
    assert render_cpp(plan).host_source.count("as_strided") == 1  # where the product writes
    check(gm)


def test_a_transposed_result_is_written_as_such() -> None:
    """Also a square one, whose shape does not tell."""
    for columns in (40, 12):
        g = GraphBuilder()
        x, w = g.input(12, 16), g.input(16, columns)
        turned = g.permute(g.mm(x, w), (1, 0))
        shown = g.reshape(turned, (columns, 3, 4)) if columns == 40 else turned
        gm = g.build(in_rows(shown))
        plan = schedule(lower(gm), Options())
        assert plan.program.outputs[0].name == "mm" and plan.strides["mm"] == (1, 12) and not plan.groups
        check(gm)


def test_a_batched_product_in_another_order() -> None:
    g = GraphBuilder()
    product = g.bmm(g.input(1, 6, 5), g.input(1, 5, 8))
    gm = g.build(in_rows(g.reshape(g.permute(product, (2, 0, 1)), (4, 2, 6))))
    assert schedule(lower(gm), Options()).program.outputs[0].name == "bmm"
    check(gm)


def test_a_transposed_result_of_what_others_read_is_copied() -> None:
    g = GraphBuilder()
    x, w = g.input(12, 16), g.input(16, 40)
    product = g.mm(x, w)
    gm = g.build(in_rows(g.permute(product, (1, 0))), g.exp(product))
    assert [o.name for o in schedule(lower(gm), Options()).program.outputs] == ["permute", "exp"]
    check(gm)


def test_slices_are_copied() -> None:
    """A caller who keeps some rows does not keep all."""
    g = GraphBuilder()
    x, w = g.input(12, 16), g.input(16, 40)
    gm = g.build(g.slice(g.mm(x, w), (0, 0), (4, 40), (1, 1)))
    assert "slice_1" in schedule(lower(gm), Options()).stored
    check(gm)


def test_two_shapes_of_one_product_do_not_share_memory() -> None:
    g = GraphBuilder()
    x, w = g.input(12, 16), g.input(16, 40)
    product = g.mm(x, w)
    gm = g.build(g.reshape(product, (3, 4, 40)), g.reshape(product, (6, 2, 40)))
    assert [o.name for o in schedule(lower(gm), Options()).program.outputs] == ["mm", "reshape_1"]
    check(gm)


def test_the_product_itself_and_its_other_shape() -> None:
    g = GraphBuilder()
    x, w = g.input(12, 16), g.input(16, 40)
    product = g.mm(x, w)
    gm = g.build(product, g.reshape(product, (3, 4, 40)))
    assert [o.name for o in schedule(lower(gm), Options()).program.outputs] == ["mm", "reshape"]
    check(gm)


def test_new_values_of_inputs_stay_kernels() -> None:
    g = GraphBuilder()
    x, w, old = g.input(12, 16), g.input(16, 40), g.input(3, 4, 40)
    shown = g.reshape(g.mm(x, w), (3, 4, 40))
    plan = plan_of(g, shown, updates={0: old.name})
    assert plan.program.outputs[0].name == "reshape"


def test_externs_read_the_product_in_its_own_shape() -> None:
    g = GraphBuilder()
    x, w, v = g.input(12, 16), g.input(16, 40), g.input(40, 8)
    product = g.mm(x, w)
    check(g.build(g.reshape(product, (3, 4, 40)), g.mm(product, v)))


def test_batched_products() -> None:
    g = GraphBuilder()
    a, b = g.input(6, 5, 4), g.input(6, 4, 7)
    gm = g.build(g.reshape(g.bmm(a, b), (2, 3, 5, 7)))
    assert schedule(lower(gm), Options()).program.outputs[0].name == "bmm"
    check(gm)


def test_sizes_that_change() -> None:
    made = SymbolicBuilder(3, 5)
    s0, s1 = made.symbols
    x, w = made.input(s0 * s1, 16), made.input(16, 40)
    gm = made.build(made.reshape(made.mm(x, w), (s0, s1, 40)))
    assert schedule(lower(gm), Options()).program.outputs[0].name == "mm"
    run_at(gm, made.known, [(3, 5), (7, 2), (1, 4)], 1000, 1e-4)


def test_half_precision() -> None:
    g = GraphBuilder()
    x, w = g.input(12, 16, dtype=torch.bfloat16), g.input(16, 40, dtype=torch.bfloat16)
    check(g.build(g.reshape(g.mm(x, w), (3, 4, 40))), 2e-2)
