"""Aliases and variants of other operators: batch norms with a reserve, `rrelu`, `isin` of a number, `_add_relu`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import Node

from smelt.prims.registry import DECOMPOSITIONS, Lowering, aten, decomposition, dtype_of, is_empty, rank_of, shape_of
from smelt.prims.rules.layers import normalization
from smelt.prims.rules.random import uniform01

for _other, _op in {
    aten._stack.default: aten.stack.default,
    aten._logcumsumexp.default: aten.logcumsumexp.default,
    aten._is_all_true.default: aten.all.default,
    aten._is_any_true.default: aten.any.default,
    aten.zero.default: aten.zeros_like.default,
}.items():
    decomposition(_other)(DECOMPOSITIONS[_op])


@decomposition(aten._aminmax.default)
def aminmax(p: Lowering, x: Node) -> Any:
    return DECOMPOSITIONS[aten.aminmax.default](p, x)


@decomposition(aten._aminmax.dim)
def aminmax_over(p: Lowering, x: Node, dim: int, keepdim: bool = False) -> Any:
    return DECOMPOSITIONS[aten.aminmax.default](p, x, dim=dim, keepdim=keepdim)


@decomposition(aten._add_relu.Tensor, aten._add_relu.Scalar)
def add_relu(p: Lowering, x: Node, y: Any, alpha: Any = 1) -> Node:
    y = y if isinstance(y, Node) else y * alpha
    scaled = isinstance(y, Node) and alpha != 1
    return p.pointwise(lambda a, b: p.maximum(p.add(a, p.mul(b, alpha) if scaled else b), 0), x, y)


@decomposition(aten.isin.Tensor_Scalar)
def is_number(p: Lowering, x: Node, number: Any, *, assume_unique: bool = False, invert: bool = False) -> Node:
    return p.pointwise(lambda a, b: (p.ne if invert else p.eq)(a, b), x, number)


@decomposition(aten.isin.Scalar_Tensor)
def has_number(p: Lowering, number: Any, x: Node, *, assume_unique: bool = False, invert: bool = False) -> Any:
    if is_empty(shape_of(x)):
        return NotImplemented
    found = p.any(p.eq(x, number), tuple(range(rank_of(x))))
    return p.logical_not(found) if invert else found


# -- batch norms with the result `reserve`, which only cuDNN fills: in these rules it is empty


def _with_reserve(p: Lowering, compute: Callable[[], Any]) -> Any:
    """Returns the results of a batch norm with an empty `reserve` inserted as the fourth result."""
    out, mean, rstd, reserve, *rest = metas = p.result
    p.result = (out, mean, rstd, *rest)
    values = compute()
    p.result = metas
    if values is NotImplemented:
        return NotImplemented
    nothing = p.full(reserve.shape, 0, reserve.dtype, reserve.device)
    return (*values[:3], nothing, *values[3:])


@decomposition(aten._batch_norm_with_update_functional.default)
def batch_norm_with_update(p: Lowering, x: Node, *rest: Any) -> Any:
    weight, bias, mean, var, momentum, eps = rest
    return _with_reserve(p, lambda: normalization.batch_norm(p, x, weight, bias, mean, var, True, momentum, eps))


@decomposition(aten._batch_norm_no_update.default)
def batch_norm_without_update(p: Lowering, x: Node, *rest: Any) -> Any:
    weight, bias, mean, var, momentum, eps = rest
    return _with_reserve(p, lambda: normalization.batch_norm(p, x, weight, bias, mean, var, False, momentum, eps)[:3])


@decomposition(aten.batch_norm_backward.default)
def batch_norm_backward(p: Lowering, g: Node, x: Node, weight: Any, *rest: Any) -> Any:
    mean, var, saved_mean, saved_rstd, update, eps, mask, _ = rest
    return normalization.batch_norm_backward(p, g, x, weight, mean, var, saved_mean, saved_rstd, update, eps, mask)


# -- leaky ReLU with random slopes


@decomposition(aten.rrelu_with_noise_functional.default)
def rrelu(
    p: Lowering, x: Node, noise: Node, lower: Any = 0.125, upper: Any = 1 / 3, training: bool = False, **options: Any
) -> Any:
    """Returns (out, slope of each element); in evaluation (out, noise), with the mean of lower and upper as the
    slope.
    """
    if not training:
        slope = (lower + upper) / 2
        return p.pointwise(lambda a: p.where(p.gt(a, 0), a, p.mul(a, slope)), x), noise
    drawn = uniform01(p, shape_of(x)) if options.get("generator") is None else None
    if drawn is None:
        return NotImplemented
    a = p.widen(x)
    drawn = p.add(p.mul(p.convert(drawn, dtype_of(a)), float(upper - lower)), float(lower))
    slopes = p.where(p.gt(a, 0), 1.0, drawn)
    return p.convert(p.mul(a, slopes), p.out.dtype), p.convert(slopes, dtype_of(noise))


@decomposition(aten.rrelu_with_noise_backward.default)
def rrelu_backward(
    p: Lowering, g: Node, x: Node, noise: Node, lower: float, upper: float, training: bool, of_result: bool
) -> Node:
    if training:
        return p.pointwise(lambda g, n: p.mul(g, n), g, noise)
    slope = (lower + upper) / 2
    return p.pointwise(lambda g, a: p.where(p.gt(a, 0), g, p.mul(g, slope)), g, x)
