"""Matrix products and convolution. The partition does not recompute them in the backward by default."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from smelt.graph.ir.meta import TensorMeta, contiguous_stride
from smelt.prims.table import Facts, Kind, Shape, Strides, make, prim, require
from smelt.shapes.size import known_equal, same, same_all

aten = torch.ops.aten

MATMUL = Facts(
    annihilated_by=(0, 1),
    matmul=True,
    into=True,
    fresh=True,
    strides=Strides.MATRIX,
    flops=lambda made, operands: 2 * (made[0].numel * operands[0].shape[-1]),
)
ADDED = replace(MATMUL, annihilated_by=(), linear_in=(0, 2), matmul=False)
"""The facts of a product with an added term. `matmul` is False: kernel templates would round the product before they
add the term, and these primitives round once."""
CONVOLUTION = Facts(
    fresh=True,
    strides=Strides.IMAGES,
    flops=lambda made, operands: 2 * (made[0].numel * math.prod(operands[1].shape[1:])),
)


@prim("mm", kind=Kind.PRODUCT, reference=torch.mm, facts=MATMUL)
def mm(a: TensorMeta, b: TensorMeta) -> TensorMeta:
    """(n, k) @ (k, m); accumulates in float32 or wider and rounds once."""
    ok = len(a.shape) == len(b.shape) == 2 and a.shape[1] == b.shape[0] and a.dtype is b.dtype
    require(ok, f"prim mm: {a.dtype} {a.shape} @ {b.dtype} {b.shape}")
    return make((a.shape[0], b.shape[1]), a.dtype, a.device)


@prim("bmm", kind=Kind.PRODUCT, reference=torch.bmm, facts=MATMUL)
def bmm(a: TensorMeta, b: TensorMeta) -> TensorMeta:
    """(batch, n, k) @ (batch, k, m)."""
    ok = len(a.shape) == len(b.shape) == 3 and a.shape[0] == b.shape[0] and a.shape[2] == b.shape[1]
    require(ok and a.dtype is b.dtype, f"prim bmm: {a.dtype} {a.shape} @ {b.dtype} {b.shape}")
    return make((a.shape[0], a.shape[1], b.shape[2]), a.dtype, a.device)


def _addmm(a: Tensor, b: Tensor, x: Tensor, beta: float, alpha: float) -> Tensor:
    function = torch.addmm if a.dim() == 2 else torch.baddbmm
    return function(x, a, b, beta=beta, alpha=alpha)


def _sum_meta(product: TensorMeta, x: TensorMeta) -> TensorMeta:
    sizes = zip(reversed(x.shape), reversed(product.shape), strict=False)
    ok = len(x.shape) <= len(product.shape) and all(same(n, 1) or known_equal(n, whole) for n, whole in sizes)
    require(ok and x.dtype is product.dtype, f"{product.dtype} {product.shape} + {x.dtype} {x.shape}")
    return product


@prim("addmm", kind=Kind.PRODUCT, reference=_addmm, facts=ADDED)
def addmm(a: TensorMeta, b: TensorMeta, x: TensorMeta, beta: float, alpha: float) -> TensorMeta:
    """beta * x + alpha * (n, k) @ (k, m), rounded once, where x is broadcast to the product."""
    return _sum_meta(mm(a, b), x)


@prim("baddbmm", kind=Kind.PRODUCT, reference=_addmm, facts=ADDED)
def baddbmm(a: TensorMeta, b: TensorMeta, x: TensorMeta, beta: float, alpha: float) -> TensorMeta:
    """beta * x + alpha * (batch, n, k) @ (batch, k, m), rounded once, where x is broadcast to the product."""
    return _sum_meta(bmm(a, b), x)


def convolution_shape(
    x: Shape, w: Shape, stride: Shape, padding: Shape, dilation: Shape, transposed: bool, extra: Shape, groups: int
) -> Shape:
    """Returns the result shape of a convolution of x (batch, channels, *space) with weights of shape w; `extra`: output
    padding.
    """
    space = []
    for n, k, s, p, d, e in zip(x[2:], w[2:], stride, padding, dilation, extra, strict=True):
        span = d * (k - 1) + 1
        space.append((n - 1) * s - 2 * p + span + e if transposed else (n + 2 * p - span) // s + 1)
    return (x[0], w[1] * groups if transposed else w[0], *space)


def is_channels_last(x: TensorMeta) -> bool:
    """Whether the memory order is batch, space, channels, and not row-major as well (as for a single channel)."""
    rank = len(x.shape)
    if rank not in (4, 5) or same_all(x.stride, contiguous_stride(x.shape)):
        return False
    order = (0, *range(2, rank), 1)
    expected = 1
    for d in reversed(order):
        if not same(x.shape[d], 1) and not known_equal(x.stride[d], expected):
            return False
        expected *= x.shape[d]
    return True


def channels_last_stride(shape: Shape) -> Shape:
    """Returns the strides of `shape` in memory order batch, space, channels."""
    order = (0, *range(2, len(shape)), 1)
    steps = contiguous_stride(tuple(shape[d] for d in order))
    result = [0] * len(shape)
    for d, step in zip(order, steps, strict=True):
        result[d] = step
    return tuple(result)


def _convolved(shape: Shape, x: TensorMeta, w: TensorMeta) -> TensorMeta:
    if len(shape) in (4, 5) and (is_channels_last(x) or is_channels_last(w)):
        return TensorMeta(shape, x.dtype, channels_last_stride(shape), x.device)
    return make(shape, x.dtype, x.device)


def _convolution(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: Shape,
    padding: Shape,
    dilation: Shape,
    transposed: bool,
    output_padding: Shape,
    groups: int,
) -> Tensor:
    return aten.convolution(
        x, w, bias, list(stride), list(padding), list(dilation), transposed, list(output_padding), groups
    )


@prim("convolution", kind=Kind.PRODUCT, reference=_convolution, facts=replace(CONVOLUTION, linear_in=(0, 2)))
def convolution(
    x: TensorMeta,
    w: TensorMeta,
    bias: TensorMeta | None,
    stride: Shape,
    padding: Shape,
    dilation: Shape,
    transposed: bool,
    output_padding: Shape,
    groups: int,
) -> TensorMeta:
    """Convolution in 1 to 3 dimensions of x (batch, channels, *space); tuples hold one entry per dimension."""
    rank = len(x.shape) - 2
    ok = rank >= 1 and all(len(t) == rank for t in (stride, padding, dilation, output_padding))
    require(ok and x.dtype is w.dtype, f"prim convolution: {x.dtype} {x.shape} with {w.dtype} {w.shape}")
    shape = convolution_shape(x.shape, w.shape, stride, padding, dilation, transposed, output_padding, groups)
    return _convolved(shape, x, w)


def _convolution_backward(
    grad: Tensor,
    x: Tensor,
    w: Tensor,
    bias_shape: Shape | None,
    stride: Shape,
    padding: Shape,
    dilation: Shape,
    transposed: bool,
    output_padding: Shape,
    groups: int,
    mask: tuple[bool, bool, bool],
) -> tuple[Tensor | None, ...]:
    sizes = None if bias_shape is None else list(bias_shape)
    options = (list(stride), list(padding), list(dilation), transposed, list(output_padding), groups, list(mask))
    return tuple(aten.convolution_backward(grad, x, w, sizes, *options))


def _flops_of_gradients(made: Sequence[TensorMeta], operands: Sequence[TensorMeta]) -> Any:
    """Returns the multiplications and additions: the gradients of the image and of the weight each cost as much as the
    convolution; the gradient of the bias is only a sum.
    """
    grad, _, w = operands[:3]
    return 2 * (grad.numel * math.prod(w.shape[1:])) * sum(len(meta.shape) > 1 for meta in made)


@prim(
    "convolution_backward",
    kind=Kind.PRODUCT,
    reference=_convolution_backward,
    facts=replace(CONVOLUTION, flops=_flops_of_gradients),
)
def convolution_backward(
    grad: TensorMeta,
    x: TensorMeta,
    w: TensorMeta,
    bias_shape: Shape | None,
    stride: Shape,
    padding: Shape,
    dilation: Shape,
    transposed: bool,
    output_padding: Shape,
    groups: int,
    mask: tuple[bool, bool, bool],
) -> tuple[TensorMeta | None, TensorMeta | None, TensorMeta | None]:
    """Gradients with respect to x, w and bias; entries whose mask is False are None."""
    last = is_channels_last(x) or is_channels_last(w)

    def gradient(wanted: bool, like: Shape) -> TensorMeta | None:
        if not wanted:
            return None
        if last and len(like) in (4, 5):
            return TensorMeta(like, grad.dtype, channels_last_stride(like), grad.device)
        return make(like, grad.dtype, grad.device)

    return gradient(mask[0], x.shape), gradient(mask[1], w.shape), gradient(mask[2], (grad.shape[1],))
