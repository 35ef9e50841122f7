"""Adds the gradient of an embedding's rows to another gradient of the same table, instead of to a table of zeros.

An embedding table that is also the weight of the last linear layer (GPT-2, BERT) gets the sum of two gradients: a
matrix product, and zeros to which rows are added. Both terms and the sum have the size of the table. If the rows are
added to the product instead, there is only one tensor of this size, of which only those rows are written twice. The
pass applies on CPUs, in float32 and float64.

Rows with the same index are first summed among themselves, in their original order: if a thousand small rows were added
to a large element one by one, rounding would lose them. For this an integer tensor of the table's length stores, for
each index, the position of one of its rows, and all rows with that index are added at that position.
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

MIN_ROW_ELEMENTS = 16
"""Minimum number of elements of a table's row. For shorter rows the integer tensor would not be small compared with the
table.
"""

MIN_TABLE_TO_GRADIENT_ROWS = 2
"""Minimum ratio of the table's rows to the gradient's rows; below it, summing the rows separately costs more than the
zeros.
"""


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
    """Returns `values` with equal indices summed: one row of each index is the sum of all its rows, and its other rows
    are zeros.
    """
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
    """Returns (rows added to zeros, other term) of a sum; None if no term has that form, or if it has other readers."""
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
    """Whether summing the rows separately is cheaper than zeros of the table's size. Symbolic sizes are taken at their
    lower bounds."""
    width, count, rows = (
        lowest(n) or 0 for n in (math.prod(table[1:]), math.prod(indices.meta["val"].shape), table[0])
    )
    return width >= MIN_ROW_ELEMENTS and count * MIN_TABLE_TO_GRADIENT_ROWS <= rows
