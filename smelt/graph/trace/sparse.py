"""Sparse gradients in a trace: gradients of embeddings, which contain only the rows that were read.

A trace tensor is always strided. A trace tensor that represents a sparse gradient has the dense values, for operators
that compute with it, and in `storage_view.rows` the indices and values of the sparse tensor, which the backward finally
returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.base.errors import Unsupported
from smelt.graph.ir.storage_view import Rows, ViewedTensor

aten = torch.ops.aten
Call = Callable[..., Any]
"""Function `call(op, *args, **kwargs)` that runs an operator in the trace."""

SUM, MEAN = 0, 1


def from_rows(call: Call, size: Sequence[int], rows: Rows) -> ViewedTensor:
    """Returns a gradient of the given size: zeros, with the rows added at their indices."""
    values, rows_read = rows.values, call(aten.view.default, rows.indices, [-1])
    if rows.but is not None:
        outer = [-1] + [1] * (values.ndim - 1)
        dropped = call(aten.view.default, call(aten.eq.Scalar, rows_read, rows.but), outer)
        values = call(aten.masked_fill.Scalar, values, dropped, 0)
    base = call(aten.new_zeros.default, values, list(size))
    dense = call(aten.index_add.default, base, 0, rows_read, values)
    dense.storage_view.rows = rows
    return dense


def of_coordinates(call: Call, size: Sequence[int], indices: ViewedTensor, values: ViewedTensor) -> ViewedTensor:
    """Compute `torch.sparse_coo_tensor(indices, values, size)` in a backward.

    Raises:
        Unsupported: the coordinates have more than one dimension.
    """
    if indices.ndim != 2 or indices.shape[0] != 1:
        raise Unsupported("a sparse gradient of single elements", why="only sparse rows are traced")
    return from_rows(call, size, Rows(indices, values, None))


def of_bags(call: Call, args: Sequence[Any]) -> ViewedTensor:
    """Returns the sparse gradient of `embedding_bag`: each row read gets the gradient of its bag, scaled as in the
    forward.

    Args:
        args: all arguments of `aten._embedding_bag_backward`.

    Raises:
        Unsupported: maxima, or gradients scaled by the number of reads of a row, which are not sparse in eager either.
    """
    grad, indices, offsets, bags, sizes, _, rows, by_frequency, mode, _, factors, padding = args
    if by_frequency or mode not in (SUM, MEAN):
        raise Unsupported("a sparse gradient of maxima, or one scaled by frequency", hint="use sparse=False")
    if bags.numel() != indices.numel():  # the fast kernels do not return the bag of each index
        bags = bag_of_each(call, offsets, indices.numel())
    values = call(aten.index_select.default, grad, 0, bags)
    if mode == MEAN:
        share = call(aten.reciprocal.default, call(aten._to_copy.default, sizes, dtype=grad.dtype))
        share = call(aten.index_select.default, share, 0, bags)
        values = call(aten.mul.Tensor, values, call(aten.unsqueeze.default, share, 1))
    if factors is not None:
        values = call(aten.mul.Tensor, values, call(aten.unsqueeze.default, factors, 1))
    indices = call(aten.view.default, indices, [1, -1])
    return from_rows(call, (rows, grad.shape[1]), Rows(indices, values, padding if padding >= 0 else None))


def bag_of_each(call: Call, offsets: ViewedTensor, count: int) -> ViewedTensor:
    """Returns for each of `count` positions the last bag that begins at or before it."""
    positions = call(aten.arange.default, count, dtype=offsets.dtype, device=offsets.device)
    after = call(aten.searchsorted.Tensor, offsets, positions, right=True)
    return call(aten.sub.Tensor, after, 1)


def add_rows(call: Call, a: Rows, b: Rows) -> Rows | None:
    """Returns the sum of two sparse gradients; None if it has to be dense."""
    if a.but != b.but or a.indices.dtype != b.indices.dtype:
        return None
    indices = call(aten.cat.default, [a.indices, b.indices], 1)
    return Rows(indices, call(aten.cat.default, [a.values, b.values], 0), a.but)
