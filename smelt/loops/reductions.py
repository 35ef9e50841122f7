"""Lowerings of reductions."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.graph.ir.meta import TensorMeta
from smelt.loops.facts import FOLDS
from smelt.loops.ir import Node, Reduction
from smelt.loops.registry import LOWERINGS, Lowering, Operand, pointwise, view
from smelt.prims.table import Fold
from smelt.shapes.size import same


def _fold(kind: str, fold: Fold) -> Lowering:
    neutral = fold.neutral

    def lower(name: str, meta: TensorMeta, x: Operand, dims: Sequence[int]) -> Node:
        if not dims:
            return view(name, meta, x, lambda index: index, kind)
        if same(x.meta.numel, 0) and neutral is not None:
            return pointwise(name, meta, [], lambda ops, index: ops.constant(neutral, meta.dtype), "full")
        return _reduction(name, meta, x, kind, tuple(dims))

    return lower


def _arg_fold(kind: str) -> Lowering:
    return lambda name, meta, x, dim: _reduction(name, meta, x, kind, (dim,))


def _reduction(name: str, meta: TensorMeta, x: Operand, kind: str, dims: tuple[int, ...]) -> Reduction:
    source = x.name
    return Reduction(
        name, meta, (source,), lambda ops, index: ops.load(source, index), kind, x.shape, dims, x.meta.dtype
    )


LOWERINGS.update({kind: _arg_fold(kind) if fold.finds else _fold(kind, fold) for kind, fold in FOLDS.items()})
