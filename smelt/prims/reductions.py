"""Reduction primitives. Reduced dimensions are dropped; the dtype stays (convert first to accumulate wider)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from smelt.graph.ir.meta import TensorMeta
from smelt.prims.table import Facts, Fold, Kind, Shape, make, prim, require


def _without(shape: Shape, dims: Shape) -> Shape:
    return tuple(n for d, n in enumerate(shape) if d not in dims)


def _reduction(name: str, reference: Callable[..., Any], facts: Facts, dtype: torch.dtype | None = None) -> None:
    def meta(x: TensorMeta, dims: Shape) -> TensorMeta:
        for d in dims:
            require(0 <= d < len(x.shape), f"prim {name}: dimension {d} of shape {x.shape}")
        require(dtype is None or x.dtype is dtype, f"prim {name}: operand is {x.dtype}")
        return make(_without(x.shape, dims), x.dtype, x.device)

    meta.__doc__ = f"{name} over dims (non-negative, sorted; empty: x itself)."

    def run(x: Tensor, dims: Shape) -> Tensor:
        return reference(x, dims) if dims else x.clone()

    prim(name, kind=Kind.REDUCTION, reference=run, facts=facts)(meta)


def _each(reduce: Callable[..., Tensor]) -> Callable[[Tensor, Shape], Tensor]:
    def reference(x: Tensor, dims: Shape) -> Tensor:
        for d in sorted(dims, reverse=True):
            x = reduce(x, d)
        return x

    return reference


def _extremum(reduce: Callable[..., Tensor], lowest: bool) -> Callable[[Tensor, Shape], Tensor]:
    """Returns the reference of amax (`lowest`) or amin. For no elements the result is the neutral bound, as in
    generated kernels; the decomposition has already raised the error that eager raises.
    """

    def reference(x: Tensor, dims: Shape) -> Tensor:
        if all(x.shape[d] for d in dims):
            return reduce(x, dims)
        if x.dtype.is_floating_point:
            bound = -math.inf if lowest else math.inf
        else:
            bound = torch.iinfo(x.dtype).min if lowest else torch.iinfo(x.dtype).max
        return x.new_full(_without(tuple(x.shape), dims), bound)

    return reference


def _fold(combine: str, neutral: bool | int | None = None) -> Facts:
    return Facts(fold=Fold(combine, neutral))


_SUM = Facts(fold=Fold("sum", 0), annihilated_by=(0,))
_reduction("sum", lambda x, dims: torch.sum(x, dims, dtype=x.dtype), _SUM)  # the sum of a single -0.0 is 0.0
_reduction("prod", _each(lambda x, d: torch.prod(x, d, dtype=x.dtype)), _fold("prod", 1))
_reduction("amax", _extremum(torch.amax, True), _fold("max"))  # NaN propagates
_reduction("amin", _extremum(torch.amin, False), _fold("min"))
_reduction("any", _each(torch.any), _fold("max", False), torch.bool)
_reduction("all", _each(torch.all), _fold("min", True), torch.bool)


def _arg_reduction(name: str, reference: Callable[..., Any], combine: str) -> None:
    def meta(x: TensorMeta, dim: int) -> TensorMeta:
        require(0 <= dim < len(x.shape), f"prim {name}: dimension {dim} of shape {x.shape}")
        return make(_without(x.shape, (dim,)), torch.int64, x.device)

    meta.__doc__ = f"{name} along dim as int64: the first of equal elements; a NaN wins."
    prim(name, kind=Kind.REDUCTION, reference=reference, facts=Facts(fold=Fold(combine, finds=True)))(meta)


_arg_reduction("argmax", torch.argmax, "max")
_arg_reduction("argmin", torch.argmin, "min")
