"""Matrix products and convolutions. Scales and added terms become pointwise operators, which fuse with others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from smelt.prims.dtypes import LOW_PRECISION
from smelt.prims.registry import Lowering, aten, decomposition, dtype_of, is_empty, rank_of, shape_of
from smelt.shapes.size import Size, same_all


@decomposition(aten.mm.default)
def mm(p: Lowering, a: Node, b: Node) -> Any:
    return p.mm(a, b) if _has_supported_dtypes(a, b) else NotImplemented


@decomposition(aten.bmm.default)
def bmm(p: Lowering, a: Node, b: Node) -> Any:
    return p.bmm(a, b) if _has_supported_dtypes(a, b) else NotImplemented


def _has_supported_dtypes(a: Node, b: Node) -> bool:
    """Whether the factors have the same dtype, not bool. (Eager accepts different dtypes if the product is empty.)"""
    return dtype_of(a) is dtype_of(b) is not torch.bool


def _uses_blas(p: Lowering) -> bool:
    """Whether eager multiplies in this dtype with BLAS, which does not read the factors if alpha is 0."""
    return p.out.device.type == "cuda" or p.out.dtype not in LOW_PRECISION


def _add_to_product(
    p: Lowering, x: Node, product: Callable[[], Node], beta: Any, alpha: Any, by_blas: bool = True
) -> Node:
    """Returns beta * x + alpha * product(), rounded after the addition.

    As in eager, x is ignored if beta is 0, even if it contains NaN; the product is ignored if alpha is 0 and BLAS would
    compute it.
    """

    def compute(y: Node, *rest: Node) -> Node:
        y = y if alpha == 1 else p.mul(y, alpha)
        return p.add(y, rest[0] if beta == 1 else p.mul(rest[0], beta)) if rest else y

    if beta == 0 and alpha == 1:
        return product()
    if not isinstance(alpha, Node) and alpha == 0 and by_blas and _uses_blas(p):
        if not isinstance(beta, Node) and beta == 0:
            return p.full(p.out.shape, 0, p.out.dtype, p.out.device)
        return p.pointwise(lambda y: y if beta == 1 else p.mul(y, beta), x, dtype=p.out.dtype)
    return p.pointwise(compute, product(), *([] if beta == 0 else [x]))


def _adds_before_rounding(p: Lowering, *numbers: Any) -> bool:
    """Whether the library should add the term, so that the result is rounded once: in low precision, if the scales
    `numbers` are constants. Rounding the product before the addition would lose digits where the two cancel.
    """
    return p.out.dtype in LOW_PRECISION and not any(isinstance(n, (Node, Size)) for n in numbers)


@decomposition(aten.addmm.default)
def addmm(p: Lowering, x: Node, a: Node, b: Node, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if _adds_before_rounding(p, beta, alpha):
        return p.addmm(a, b, x, beta, alpha)
    return _add_to_product(p, x, lambda: p.mm(a, b), beta, alpha)


@decomposition(aten.baddbmm.default)
def baddbmm(p: Lowering, x: Node, a: Node, b: Node, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if _adds_before_rounding(p, beta, alpha):
        return p.baddbmm(a, b, x, beta, alpha)
    *_, rows, depth = shape_of(a)
    work = rows * depth * shape_of(b)[-1]
    by_blas = p.out.device.type == "cuda" or isinstance(work, Size) or work >= _MIN_BLAS_MULTIPLICATIONS
    return _add_to_product(p, x, lambda: p.bmm(a, b), beta, alpha, by_blas)


_MIN_BLAS_MULTIPLICATIONS = 400
"""Minimum number of multiplications of each product of a batch for which eager uses BLAS instead of its own loops."""


@decomposition(aten.addbmm.default)
def addbmm(p: Lowering, x: Node, a: Node, b: Node, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if dtype_of(a) in LOW_PRECISION:  # eager sums over the batch before it rounds
        return NotImplemented
    return _add_to_product(p, x, lambda: p.sum(p.bmm(a, b), (0,)), beta, alpha)


@decomposition(aten.mv.default)
def mv(p: Lowering, a: Node, v: Node) -> Any:
    return p.reshape(p.mm(a, p.keep(v, (1,))), shape_of(a)[:1]) if _has_supported_dtypes(a, v) else NotImplemented


@decomposition(aten.addmv.default)
def addmv(p: Lowering, x: Node, a: Node, v: Node, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if is_empty(shape_of(a)) and not same_all(p.out.shape, shape_of(a)[:1]):  # eager returns beta * x
        return p.pointwise(lambda y: y if beta == 1 else p.mul(y, beta), x, dtype=p.out.dtype)
    if not _has_supported_dtypes(a, v):
        return NotImplemented
    if _adds_before_rounding(p, beta, alpha):
        column = p.keep(x, (1,)) if rank_of(x) and not same_all(shape_of(x), (1,)) else x
        return p.reshape(p.addmm(a, p.keep(v, (1,)), column, beta, alpha), p.out.shape)
    return _add_to_product(p, x, lambda: mv(p, a, v), beta, alpha)


@decomposition(aten.dot.default, aten.vdot.default)
def dot(p: Lowering, a: Node, b: Node) -> Node:
    return p.convert(p.sum(p.mul(p.widen(a), p.widen(b)), (0,)), p.out.dtype)


@decomposition(aten.addr.default)
def addr(p: Lowering, x: Node, a: Node, b: Node, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if p.out.dtype is torch.bool:
        return NotImplemented

    def compute(x: Node, u: Node, v: Node) -> Node:
        outer = p.mul(u, v) if alpha == 1 else p.mul(p.mul(u, v), alpha)
        return outer if beta == 0 else p.add(outer, x if beta == 1 else p.mul(x, beta))

    return p.pointwise(compute, x, p.keep(a, (1,)), b)


@decomposition(aten.linear.default)
def linear(p: Lowering, x: Node, weight: Node, bias: Node | None = None) -> Any:
    if rank_of(weight) != 2 or not rank_of(x) or not shape_of(weight)[0]:
        return NotImplemented
    rows = p.reshape(x, (p.out.numel // shape_of(weight)[0], shape_of(x)[-1]))
    transposed_weight = p.permute(weight, (1, 0))
    if bias is not None and _adds_before_rounding(p):
        return p.reshape(p.addmm(rows, transposed_weight, bias, 1, 1), p.out.shape)
    product = p.reshape(p.mm(rows, transposed_weight), p.out.shape)
    return product if bias is None else p.pointwise(lambda y, b: p.add(y, b), product, bias)


# -- convolution


def _per_dimension(values: Sequence[int], rank: int) -> tuple[int, ...]:
    """Returns one entry per spatial dimension; a list with a single entry applies to all."""
    return tuple(values) * rank if len(values) == 1 else tuple(values)


@decomposition(aten.convolution.default)
def convolution(
    p: Lowering,
    x: Node,
    weight: Node,
    bias: Node | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    rank = rank_of(weight) - 2
    if is_empty(p.out.shape):
        return NotImplemented
    sizes = (_per_dimension(v, rank) for v in (stride, padding, dilation))
    return p.convolution(x, weight, bias, *sizes, transposed, _per_dimension(output_padding, rank), groups)


@decomposition(aten.convolution_backward.default)
def convolution_backward(
    p: Lowering,
    g: Node,
    x: Node,
    weight: Node,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> Any:
    rank = rank_of(weight) - 2
    sizes = [_per_dimension(v, rank) for v in (stride, padding, dilation)]
    options = (*sizes, transposed, _per_dimension(output_padding, rank), groups)
    # the gradient of the bias is a sum of g: as a reduction prim it fuses with the operators that compute g
    wanted = (mask[0], mask[1], False)
    bias_shape = None if bias_sizes is None else tuple(bias_sizes)
    dx, dw, _ = p.convolution_backward(g, x, weight, bias_shape, *options, wanted) if any(wanted) else (None,) * 3
    space = (0, *range(2, rank + 2))
    db = p.convert(p.sum(p.widen(g), space), dtype_of(g)) if mask[2] else None
    return dx, dw, db
