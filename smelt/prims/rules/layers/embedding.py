"""Embedding lookup and its dense gradient."""

from __future__ import annotations

from torch.fx import Node

from smelt.prims.registry import Lowering, aten, decomposition, device_of, dtype_of, rank_of, shape_of


@decomposition(aten.embedding.default)
def embedding(
    p: Lowering, weight: Node, indices: Node, padding: int = -1, by_frequency: bool = False, sparse: bool = False
) -> Node:
    return p.index(weight, (indices, *(None,) * (rank_of(weight) - 1)), False)


@decomposition(aten.embedding_dense_backward.default)
def embedding_dense_backward(p: Lowering, g: Node, indices: Node, rows: int, padding: int, by_frequency: bool) -> Node:
    """The rows of g, summed per index; the gradient of the padding row is zero."""
    a, width = p.widen(g), shape_of(g)[-1]
    dtype, device = dtype_of(a), device_of(g)
    if by_frequency:
        once = p.full(shape_of(indices), 1, dtype, device)
        counts = p.index_put(p.full((rows,), 0, dtype, device), (indices,), once, True)
        share = p.index(counts, (indices,))
        a = p.div(a, p.spread(share, shape_of(a), (rank_of(a) - 1,)))
    if padding >= 0:
        real = p.ne(indices, padding)
        a = p.where(p.spread(real, shape_of(a), (rank_of(a) - 1,)), a, 0.0)
    total = p.index_put(p.full((rows, width), 0, dtype, device), (indices, None), a, True)
    return p.convert(total, p.out.dtype)
