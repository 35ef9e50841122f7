"""Lowerings of reads and writes at data-dependent positions."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.graph.ir.meta import TensorMeta
from smelt.loops.ir import Index, Node, Ops, Scatter, Value
from smelt.loops.registry import Operand, lowering, pointwise, view
from smelt.shapes.expr import Expr
from smelt.shapes.size import IntLike, same


@lowering("gather")
def gather(name: str, meta: TensorMeta, x: Operand, dim: int, index: Operand) -> Node:
    size = x.shape[dim]

    def body(ops: Ops, position: Index) -> Value:
        found = ops.indirect(ops.load(index.name, position), size, False)
        return ops.load(x.name, (*position[:dim], found, *position[dim + 1 :]))

    return pointwise(name, meta, [index, x], body, "gather")


@lowering("index_select")
def index_select(name: str, meta: TensorMeta, x: Operand, dim: int, index: Operand) -> Node:
    size = x.shape[dim]

    def body(ops: Ops, position: Index) -> Value:
        found = ops.indirect(ops.load(index.name, (position[dim],)), size, False)
        return ops.load(x.name, (*position[:dim], found, *position[dim + 1 :]))

    return pointwise(name, meta, [index, x], body, "index_select")


class Picked:
    """The mapping of indices of x[indices] by NumPy's rule of advanced indexing, shared by index and index_put."""

    def __init__(self, shape: tuple[IntLike, ...], indices: Sequence[Operand | None], wrap: bool) -> None:
        self.shape, self.indices, self.wrap = shape, indices, wrap
        dims = [d for d, i in enumerate(indices) if i is not None]
        self.rank = next(len(i.shape) for i in indices if i is not None)
        adjacent = dims[-1] - dims[0] + 1 == len(dims)
        self.begin = dims[0] if adjacent else 0

    def kept_dims(self, rank: int) -> list[int]:
        """Returns the dimensions of the result that come from unindexed dimensions of x."""
        return [d for d in range(rank) if not self.begin <= d < self.begin + self.rank]

    def locate(self, ops: Ops, position: Index) -> Index:
        """Returns the index into x of element `position` of x[indices]."""
        picked = position[self.begin : self.begin + self.rank]
        kept = iter((*position[: self.begin], *position[self.begin + self.rank :]))
        result: list[Expr] = []
        for index, size in zip(self.indices, self.shape, strict=True):
            if index is None:
                result.append(next(kept))
            else:
                result.append(ops.indirect(ops.load(index.name, picked), size, self.wrap))
        return tuple(result)


@lowering("index")
def index(name: str, meta: TensorMeta, x: Operand, indices: Sequence[Operand | None], wrap: bool) -> Node:
    picked = Picked(x.shape, indices, wrap)
    operands = [*(i for i in indices if i is not None), x]
    return pointwise(
        name, meta, operands, lambda ops, position: ops.load(x.name, picked.locate(ops, position)), "index"
    )


@lowering("index_put")
def index_put(
    name: str,
    meta: TensorMeta,
    x: Operand,
    indices: Sequence[Operand | None],
    values: Operand,
    accumulate: bool,
    wrap: bool,
) -> Node:
    if same(values.meta.numel, 0):
        return view(name, meta, x, lambda position: position, "index_put")
    picked = Picked(x.shape, indices, wrap)
    names = [x.name, values.name, *(i.name for i in indices if i is not None)]
    return Scatter(
        name,
        meta,
        tuple(dict.fromkeys(names)),
        lambda ops, position: ops.load(x.name, position),
        values.shape,
        lambda ops, position: ops.load(values.name, position),
        picked.locate,
        accumulate,
        tuple(picked.kept_dims(len(values.shape))),
    )


def _scatter(name: str, meta: TensorMeta, x: Operand, dim: int, index: Operand, src: Operand, add: bool) -> Node:
    if same(index.meta.numel, 0):
        return view(name, meta, x, lambda position: position, "scatter")
    size = x.shape[dim]

    def target(ops: Ops, position: Index) -> Index:
        found = ops.indirect(ops.load(index.name, position), size, False)
        return (*position[:dim], found, *position[dim + 1 :])

    return Scatter(
        name,
        meta,
        tuple(dict.fromkeys((x.name, src.name, index.name))),
        lambda ops, position: ops.load(x.name, position),
        index.shape,
        lambda ops, position: ops.load(src.name, position),
        target,
        add,
        tuple(d for d in range(len(index.shape)) if d != dim),
    )


@lowering("scatter")
def scatter(name: str, meta: TensorMeta, x: Operand, dim: int, index: Operand, src: Operand) -> Node:
    return _scatter(name, meta, x, dim, index, src, add=False)


@lowering("scatter_add")
def scatter_add(name: str, meta: TensorMeta, x: Operand, dim: int, index: Operand, src: Operand) -> Node:
    return _scatter(name, meta, x, dim, index, src, add=True)
