"""Operators that join several tensors into one: `block_diag` and `_chunk_cat`."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node

from smelt.prims.registry import Lowering, aten, decomposition, rank_of, shape_of
from smelt.shapes.size import larger


@decomposition(aten.block_diag.default)
def block_diag(p: Lowering, tensors: Sequence[Node]) -> Node:
    rows, columns = p.out.shape
    blocks, at = [], 0
    for x in tensors:
        shape = (1,) * (2 - rank_of(x)) + shape_of(x)
        x = p.convert(p.reshape(x, shape), p.out.dtype)
        blocks.append(p.pad(x, (0, at), (0, columns - at - shape[1]), 0))
        at += shape[1]
    return p.cat(tuple(blocks), 0)


@decomposition(aten._chunk_cat.default)
def chunk_cat(p: Lowering, tensors: Sequence[Node], dim: int, chunks: int) -> Node:
    """Returns the tensors, padded along dim to a multiple of `chunks`, reshaped to (..., chunks, size of a chunk) and
    joined.

    The last dimension of the result is the sum of the tensors' chunk sizes.
    """
    dim %= rank_of(tensors[0])
    lead, chunks_of_each = shape_of(tensors[0])[:dim], []
    for x in tensors:
        shape = shape_of(x)
        missing = larger(-shape[dim] % chunks, 0)
        zero, after = (0,) * len(shape), tuple(missing if d == dim else 0 for d in range(len(shape)))
        count = 1
        for n in shape[dim + 1 :]:
            count *= n
        filled = p.pad(p.convert(x, p.out.dtype), zero, after, 0)
        chunks_of_each.append(p.reshape(filled, (*lead, chunks, (shape[dim] + missing) // chunks * count)))
    return p.cat(tuple(chunks_of_each), dim + 1)
