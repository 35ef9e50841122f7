"""Loop programs print every node with its body."""

import torch

from smelt.loops.describe import describe
from smelt.loops.lower import lower
from tests.loops import graphs
from tests.loops.graphs import GraphBuilder


def test_every_kind_of_node_is_printed():
    g = GraphBuilder()
    x, i, seed = g.input(4, 6), g.input(4, 6, dtype=torch.int64), g.input(dtype=torch.int64)
    dropped, _ = graphs.dropout(g, g.pad(x, (0, 1), (0, 0), 2.0), seed, 5, 0.5)
    values, _ = g.topk(x, 2, 1, True, True)
    text = describe(lower(g.build(dropped, g.sum(x, (1,)), g.scatter_add(x, 1, i, x), values, g.gather(x, 1, i))))
    for part in ("= input", "sum over i1 < 6", "random(", "stream 5", "extern topk", "+=", "if 0 <= ", "return "):
        assert part in text
