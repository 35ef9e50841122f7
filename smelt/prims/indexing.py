"""Primitives that read or write at data-dependent indices, which are int64 or int32 tensors.

Only `index` and `index_put` accept negative indices (counted from the end), and only with `wrap`. An index out of
range, which is an error in eager, gives an undefined result unless the decomposition checks it. If several writes go to
one element, the accumulating primitives add all of them and the others keep any one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from smelt.graph.ir.meta import TensorMeta
from smelt.prims.table import Facts, Kind, Shape, make, pointwise_like, prim, require


def _need_index(name: str, index: TensorMeta) -> None:
    require(index.dtype in (torch.int64, torch.int32), f"prim {name}: the index is {index.dtype}")


@prim(
    "gather",
    kind=Kind.INDEXING,
    reference=lambda x, dim, index: torch.gather(x, dim, index.long()),
    facts=Facts(moves=True, linear_in=(0,)),
)
def gather(x: TensorMeta, dim: int, index: TensorMeta) -> TensorMeta:
    """out[i][j][k] = x[i][index[i][j][k]][k] for dim 1. The result has the shape of index, which is no larger than x in
    the other dimensions."""
    _need_index("gather", index)
    require(len(index.shape) == len(x.shape), f"prim gather: {x.shape} by {index.shape}")
    return make(index.shape, x.dtype, x.device)


@prim("index_select", kind=Kind.INDEXING, reference=torch.index_select, facts=Facts(moves=True, linear_in=(0,)))
def index_select(x: TensorMeta, dim: int, index: TensorMeta) -> TensorMeta:
    """The slices of x along dim that the 1-d index names."""
    _need_index("index_select", index)
    require(len(index.shape) == 1, f"prim index_select: the index has shape {index.shape}")
    return make(x.shape[:dim] + index.shape + x.shape[dim + 1 :], x.dtype, x.device)


def _indexed_shape(name: str, x: TensorMeta, indices: Sequence[TensorMeta | None]) -> Shape:
    """Returns the shape of x[indices] by NumPy's rule: the dimensions of the index tensors (all of one shape) replace
    the indexed dimensions if those are adjacent, else they come first.
    """
    require(len(indices) == len(x.shape), f"prim {name}: {len(indices)} indices for {x.shape}")
    indexed_dims = [d for d, i in enumerate(indices) if i is not None]
    require(bool(indexed_dims), f"prim {name}: no index")
    found = [i for i in indices if i is not None]
    for i in found:
        _need_index(name, i)
        require(i.shape == found[0].shape, f"prim {name}: indices {i.shape} and {found[0].shape}")
    kept = [n for d, n in enumerate(x.shape) if indices[d] is None]
    adjacent = indexed_dims[-1] - indexed_dims[0] + 1 == len(indexed_dims)
    at = indexed_dims[0] if adjacent else 0
    return (*kept[:at], *found[0].shape, *kept[at:])


def _index_arguments(indices: Sequence[Tensor | None]) -> tuple[Tensor | slice, ...]:
    return tuple(slice(None) if i is None else i.long() for i in indices)


@prim(
    "index",
    kind=Kind.INDEXING,
    reference=lambda x, indices, wrap=True: x[_index_arguments(indices)],
    facts=Facts(moves=True, linear_in=(0,)),
)
def index(x: TensorMeta, indices: Sequence[TensorMeta | None], wrap: bool = True) -> TensorMeta:
    """x[indices]; `indices` has one entry per dimension of x: an index tensor (all of one shape), or None for the whole
    dimension."""
    return make(_indexed_shape("index", x, indices), x.dtype, x.device)


@prim(
    "scatter",
    kind=Kind.SCATTER,
    reference=lambda x, dim, index, src: x.scatter(dim, index.long(), src),
    facts=Facts(linear_in=(0, 3)),
)
def scatter(x: TensorMeta, dim: int, index: TensorMeta, src: TensorMeta) -> TensorMeta:
    """A copy of x with out[i][index[i][j][k]][k] = src[i][j][k] for dim 1; src has the shape of index."""
    _need_index("scatter", index)
    require(src.shape == index.shape and src.dtype is x.dtype, f"prim scatter: src {src.dtype} {src.shape}")
    return pointwise_like((x,), x.dtype)


@prim(
    "scatter_add",
    kind=Kind.SCATTER,
    reference=lambda x, dim, index, src: x.scatter_add(dim, index.long(), src),
    facts=Facts(linear_in=(0, 3)),
)
def scatter_add(x: TensorMeta, dim: int, index: TensorMeta, src: TensorMeta) -> TensorMeta:
    """A copy of x with out[i][index[i][j][k]][k] += src[i][j][k] for dim 1; src has the shape of index."""
    _need_index("scatter_add", index)
    require(src.shape == index.shape and src.dtype is x.dtype, f"prim scatter_add: src {src.dtype} {src.shape}")
    return pointwise_like((x,), x.dtype)


def _index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool, wrap: bool = True
) -> Tensor:
    offsets = torch.arange(x.numel(), device=x.device).reshape(x.shape)[_index_arguments(indices)]
    flat = x.reshape(-1).index_put((offsets.reshape(-1),), values.reshape(-1), accumulate=accumulate)
    return flat.reshape(x.shape)


@prim("index_put", kind=Kind.SCATTER, reference=_index_put, facts=Facts(linear_in=(0, 2)))
def index_put(
    x: TensorMeta, indices: Sequence[TensorMeta | None], values: TensorMeta, accumulate: bool, wrap: bool = True
) -> TensorMeta:
    """A copy of x with x[indices] = values (or += when accumulate); values has the shape of x[indices]."""
    shape = _indexed_shape("index_put", x, indices)
    require(values.shape == shape and values.dtype is x.dtype, f"prim index_put: values {values.shape}, want {shape}")
    return pointwise_like((x,), x.dtype)


def _slice_scatter(x: Tensor, src: Tensor, starts: Shape, stops: Shape, steps: Shape) -> Tensor:
    result = x.clone()
    result[tuple(slice(a, b, s) for a, b, s in zip(starts, stops, steps, strict=True))] = src
    return result


@prim("slice_scatter", kind=Kind.COPY, reference=_slice_scatter, facts=Facts(moves=True, linear_in=(0, 1)))
def slice_scatter(x: TensorMeta, src: TensorMeta, starts: Shape, stops: Shape, steps: Shape) -> TensorMeta:
    """A copy of x with x[starts:stops:steps] = src, sliced in each dimension as by the prim `slice`."""
    want = tuple((b - a + s - 1) // s for a, b, s in zip(starts, stops, steps, strict=True))
    require(src.shape == want and src.dtype is x.dtype, f"prim slice_scatter: src {src.shape}, want {want}")
    return pointwise_like((x,), x.dtype)
