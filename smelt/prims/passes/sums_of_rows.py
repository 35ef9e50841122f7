"""A gradient of rows is added into the other gradient of the same table, instead of into zeros of its size.

An embedding whose weights are also those of the last product (GPT-2, BERT) has two gradients: a product, and zeros into
which rows are added. Both are as large as the table, and so is their sum. With the product instead of the zeros
there is one such tensor, and nothing but the rows is touched twice. For kernels on a CPU, in float32 and float64.

Rows of one index are summed before they meet the product, in the order in which the zeros would have taken them: a
thousand small rows that are added to a large element one by one are lost in its rounding. An index that is as long as
the table remembers one of the rows of each index, and all rows of the index are added at that one's position.
"""

from __future__ import annotations

import math

import torch
from torch import fx
from torch.fx import Node

from smelt.graph.ir.meta import TensorMeta
from smelt.graph.ir.module import copied
from smelt.prims.builder import Builder
from smelt.prims.simplify import constant_of, is_constant, operands
from smelt.prims.table import PRIMS, Shape
from smelt.shapes.size import lowest

ADD, INDEX_PUT = PRIMS["add"], PRIMS["index_put"]

NARROWEST = 16
"""Elements of a row from which on the index, a number for each row of the table, is small beside the table."""

SMALLEST_PART = 2
"""The rows are at most the table's over this: sums of their own beside the table cost less than its zeros."""


def add_rows_into_sums(gm: fx.GraphModule) -> fx.GraphModule:
    """Write x + index_put(zeros, indices, rows, accumulate) as index_put(x, indices, sums of rows, accumulate)."""
    if not any(node.target is ADD and _rows_and_other(node) is not None for node in gm.graph.nodes):
        return gm
    gm = copied(gm)
    for node in list(gm.graph.nodes):
        found = _rows_and_other(node) if node.target is ADD else None
        if found is None:
            continue
        rows, other = found
        zeros, (indices, *rest), values, _, wrap = operands(rows)
        p = Builder(gm.graph)
        p.scope = {key: value for key, value in node.meta.items() if key != "val"}
        with gm.graph.inserting_before(node):
            sums = _summed_by_index(p, indices, values, rows.meta["val"].shape[0], wrap)
            total = p.unique(INDEX_PUT, (other, (indices, *rest), sums, True, wrap))
        total.meta = dict(node.meta)
        node.replace_all_uses_with(total)
        for unused in (node, rows, zeros):
            if not unused.users:
                gm.graph.erase_node(unused)
    return gm


def _summed_by_index(p: Builder, indices: Node, values: Node, rows: int, wrap: bool) -> Node:
    """The values, where all those of one index are summed in one of them and the others are zeros."""
    meta: TensorMeta = values.meta["val"]
    shape = indices.meta["val"].shape
    count, device = math.prod(shape), meta.device
    flat, width = p.reshape(indices, (count,)), meta.shape[len(shape) :]
    numbers = p.iota(count, 0, 1, torch.int64, device)
    first = p.index_put(p.full((rows,), 0, torch.int64, device), (flat,), numbers, False, wrap)
    owners = p.index(first, (flat,), wrap)
    zeros = p.full((count, *width), 0.0, meta.dtype, device)
    listed = p.reshape(values, (count, *width))
    sums = p.index_put(zeros, (owners, *(None,) * len(width)), listed, True, False)
    return p.reshape(sums, meta.shape)


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
    base, (indices, *rest), values, accumulate, _ = operands(node)
    if not accumulate or not is_constant(base) or constant_of(base) != 0:
        return False
    return indices is not None and not any(rest) and _are_few(indices, values, node.meta["val"].shape)


def _are_few(indices: Node, values: Node, table: Shape) -> bool:
    """Whether sums of the rows take less memory than the table. Numbers of rows that vary are taken to be small."""
    width, count, rows = (
        lowest(n) or 0 for n in (math.prod(table[1:]), math.prod(indices.meta["val"].shape), table[0])
    )
    return width >= NARROWEST and count * SMALLEST_PART <= rows
