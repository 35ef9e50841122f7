"""A gradient of rows is added into the other gradient of the same table, instead of into zeros of its size.

An embedding whose weights are also those of the last product (GPT-2, BERT) has two gradients: a product, and zeros into
which rows are added. Both are as large as the table, and so is their sum. With the product in the place of the zeros
there is one such tensor, and nothing but the rows is touched twice. For kernels on a CPU, in float32 and float64.
"""

from __future__ import annotations

import torch
from torch import fx
from torch.fx import Node

from smelt.graph.meta import TensorMeta
from smelt.prims.simplify import constant_of, is_constant, operands
from smelt.prims.table import PRIMS

ADD, INDEX_PUT = PRIMS["add"], PRIMS["index_put"]


def add_rows_into_sums(gm: fx.GraphModule) -> fx.GraphModule:
    """Write x + index_put(zeros, places, rows, accumulate) as index_put(x, places, rows, accumulate), in the graph."""
    for node in list(gm.graph.nodes):
        found = _rows_and_other(node) if node.target is ADD else None
        if found is None:
            continue
        rows, other = found
        zeros, *rest = operands(rows)
        with gm.graph.inserting_before(node):
            total = gm.graph.create_node("call_function", INDEX_PUT, (other, *rest), {})
        total.meta = dict(node.meta)
        node.replace_all_uses_with(total)
        for unused in (node, rows, zeros):
            if not unused.users:
                gm.graph.erase_node(unused)
    return gm


def _rows_and_other(node: Node) -> tuple[Node, Node] | None:
    """The two terms of a sum, if one of them is rows that are added to zeros, for this sum alone."""
    a, b = operands(node)
    meta: TensorMeta = node.meta["val"]
    if not isinstance(a, Node) or not isinstance(b, Node) or a is b:
        return None
    if meta.device.type != "cpu" or meta.dtype not in (torch.float32, torch.float64):
        return None
    return (a, b) if _is_rows(a) else (b, a) if _is_rows(b) else None


def _is_rows(node: Node) -> bool:
    if node.target is not INDEX_PUT or len(node.users) != 1:
        return False
    base, _, _, accumulate, *_ = operands(node)
    return bool(accumulate) and is_constant(base) and constant_of(base) == 0
