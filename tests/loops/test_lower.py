"""Every prim has a lowering or goes to an Extern; the interpreter agrees with the prims' eager references."""

import pytest
import torch
from torch import fx

from smelt.loops.interpret import interpret
from smelt.loops.ir import Extern, Reduction
from smelt.loops.lower import lower
from smelt.loops.registry import LOWERINGS
from smelt.prims.ops import PRIMS
from smelt.prims.table import Kind
from smelt.runtime.library.externs import EXTERNS
from tests.loops import graphs
from tests.loops.graphs import GraphBuilder, real_inputs, run_eager


def check(gm: fx.GraphModule, high: int = 4) -> None:
    inputs = real_inputs(gm, high)
    for want, got in zip(run_eager(gm, inputs), interpret(lower(gm), inputs), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)


def test_every_prim_has_a_lowering_or_names_a_kernel():
    for name, prim in PRIMS.items():
        assert (name in LOWERINGS) + (prim.kernel is not None) + (name in EXTERNS) == 1, name
    named = {name for name, prim in PRIMS.items() if prim.kind is Kind.KERNEL}
    assert named == {name for name, prim in PRIMS.items() if prim.kernel is not None}


def test_nothing_is_lowered_that_is_not_in_the_table():
    assert set(LOWERINGS) <= set(PRIMS)
    assert {name for name in EXTERNS if not name.startswith("aten")} <= set(PRIMS)


VIEWS = {
    "reshape": lambda g, x: g.reshape(x, (4, 3, 10)),
    "permute": lambda g, x: g.permute(x, (2, 0, 1)),
    "broadcast": lambda g, x: g.broadcast_in_dim(x, (2, 6, 4, 5), (1, 2, 3)),
    "slice": lambda g, x: g.slice(x, (1, 0, 1), (6, 4, 5), (2, 1, 3)),
    "flip": lambda g, x: g.flip(x, (0, 2)),
    "pad": lambda g, x: g.pad(x, (1, 0, 2), (0, 1, 2), 3.5),
    "cat": lambda g, x: g.cat((x, g.neg(x), x), 1),
    "slice_scatter": lambda g, x: g.slice_scatter(x, g.full((2, 4, 2), 7.0, torch.float32, "cpu"), (1, 0, 1),
                                                  (5, 4, 4), (2, 1, 2)),
    "chain": lambda g, x: g.reshape(g.permute(g.reshape(x, (2, 3, 20)), (1, 0, 2)), (6, 20)),
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_movement(name):
    g = GraphBuilder()
    check(g.build(VIEWS[name](g, g.input(6, 4, 5))))


@pytest.mark.parametrize("kind", ["sum", "prod", "amax", "amin"])
@pytest.mark.parametrize("dims", [(), (0,), (1,), (0, 2), (0, 1, 2)])
def test_folds(kind, dims):
    g = GraphBuilder()
    gm = g.build(getattr(g, kind)(g.input(3, 4, 5), dims))
    if dims:
        assert any(isinstance(node, Reduction) for node in lower(gm).nodes.values())
    check(gm)


def test_arg_folds_and_logic():
    g = GraphBuilder()
    x, m = g.input(3, 4, 5), g.input(3, 4, dtype=torch.bool)
    check(g.build(g.argmax(x, 1), g.argmin(x, 2), g.any(m, (1,)), g.all(m, (0, 1))))


def test_indexing():
    g = GraphBuilder()
    x, i, j = g.input(4, 5, 6), g.input(4, 2, 6, dtype=torch.int64), g.input(7, dtype=torch.int64)
    src, rows = g.input(4, 2, 6), g.input(7, 6)
    check(
        g.build(
            g.gather(x, 1, i), g.index_select(x, 0, j), g.index(x, (j, j, None)), g.index(x, (j, None, j)),
            g.scatter_add(x, 1, i, src), g.index_put(x, (j, j, None), rows, True),
        )
    )  # fmt: skip


def test_random_and_blocks():
    g = GraphBuilder()
    x, w, b, seed = g.input(4, 8), g.input(8), g.input(8), g.input(dtype=torch.int64)
    y, mean, rstd = graphs.layer_norm(g, x, w, b)
    z, _ = graphs.dropout(g, graphs.gelu(g, y), seed, 3, 0.25)
    check(g.build(y, mean, rstd, graphs.softmax(g, z, 1), *graphs.layer_norm_backward(g, z, x, mean, rstd, w)))


def test_products_are_extern():
    g = GraphBuilder()
    gm = g.build(g.mm(g.input(3, 4), g.input(4, 5)), *g.topk(g.input(3, 8), 2, 1, True, True))
    assert sum(isinstance(node, Extern) for node in lower(gm).nodes.values()) == 2
    check(gm)
