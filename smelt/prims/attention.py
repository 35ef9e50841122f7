"""Attention by the library's fused kernels on CUDA. All take (batch, heads, length, width) and do no dropout.

Where the program drops attention weights, torch's own operator stays: it draws from the device's generator. The kernels
are in `runtime/fused_attention.py`; the references compute the same by plain products.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from smelt.graph.meta import TensorMeta
from smelt.prims.products import by_rows
from smelt.prims.table import Kind, make, pointwise_like, prim

Pair = tuple[TensorMeta, TensorMeta]
Gradients = tuple[TensorMeta, TensorMeta, TensorMeta]

BLOCK = 32
"""The memory-efficient kernel pads the rows of its logsumexp to a multiple of this."""


def _out(q: TensorMeta, v: TensorMeta) -> TensorMeta:
    return by_rows((*q.shape[:3], v.shape[3]), q)


def _sums(q: TensorMeta, *shape: int) -> TensorMeta:
    return make((*q.shape[:2], *shape), torch.float32, q.device)


# -- in plain products


def _scores(q: Tensor, k: Tensor, bias: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    found = (q.float() @ k.float().mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        found = found + bias
    return found.masked_fill(torch.ones_like(found, dtype=torch.bool).triu(1), -math.inf) if causal else found


def _plain(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float | None) -> list[Tensor]:
    scores = _scores(q, k, bias, causal, scale)
    sums = scores.logsumexp(-1)
    return [((scores - sums[..., None]).exp() @ v.float()).to(q.dtype), sums]


def _plain_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    out: Tensor,
    sums: Tensor,
    causal: bool,
    scale: float | None,
) -> list[Tensor]:
    """Gradients by q, k, v and the scores."""
    weights = (_scores(q, k, bias, causal, scale) - sums[..., None]).exp()
    g = grad.float()
    scores = weights * (g @ v.float().mT - (g * out.float()).sum(-1, keepdim=True))
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    found = scores @ k.float() * factor, scores.mT @ q.float() * factor, weights.mT @ g, scores
    return [one.to(q.dtype) for one in found]


# -- flash


def _flash(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> tuple[Tensor, ...]:
    return tuple(_plain(q, k, v, None, causal, scale))


@prim("attention_flash", kind=Kind.PRODUCT, reference=_flash)
def attention_flash(q: TensorMeta, k: TensorMeta, v: TensorMeta, causal: bool, scale: float | None) -> Pair:
    """softmax(q k^T * scale) v -> (out, logsumexp of each row in float32). scale None means 1/sqrt(width)."""
    return _out(q, v), _sums(q, q.shape[2])


def _flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, causal: bool, scale: float | None
) -> tuple[Tensor, ...]:
    return tuple(_plain_backward(grad, q, k, v, None, out, sums, causal, scale)[:3])


@prim("attention_flash_backward", kind=Kind.PRODUCT, reference=_flash_backward)
def attention_flash_backward(
    grad: TensorMeta,
    q: TensorMeta,
    k: TensorMeta,
    v: TensorMeta,
    out: TensorMeta,
    sums: TensorMeta,
    causal: bool,
    scale: float | None,
) -> Gradients:
    """Gradients by q, k and v of attention_flash."""
    return by_rows(q.shape, q), by_rows(k.shape, k), by_rows(v.shape, v)


# -- memory-efficient: any mask, also float32


def _efficient(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sums: bool, causal: bool, scale: float | None
) -> tuple[Tensor, ...]:
    out, found = _plain(q, k, v, bias, causal, scale)
    rows = -q.shape[2] % BLOCK
    return out, torch.nn.functional.pad(found, (0, rows)) if sums else found[..., :0]


@prim("attention_efficient", kind=Kind.PRODUCT, reference=_efficient)
def attention_efficient(
    q: TensorMeta,
    k: TensorMeta,
    v: TensorMeta,
    bias: TensorMeta | None,
    sums: bool,
    causal: bool,
    scale: float | None,
) -> Pair:
    """softmax(q k^T * scale + bias) v -> (out, logsumexp of each row in padded rows; empty without `sums`)."""
    return _out(q, v), _sums(q, (q.shape[2] + BLOCK - 1) // BLOCK * BLOCK if sums else 0)


def _efficient_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    out: Tensor,
    sums: Tensor,
    mask: tuple[bool, ...],
    causal: bool,
    scale: float | None,
) -> tuple[Tensor | None, ...]:
    found = _plain_backward(grad, q, k, v, bias, out, sums[..., : q.shape[2]], causal, scale)
    if bias is not None:
        found[3] = found[3].sum_to_size(bias.shape)
    return tuple(one if wanted else None for one, wanted in zip(found, mask, strict=True))


@prim("attention_efficient_backward", kind=Kind.PRODUCT, reference=_efficient_backward)
def attention_efficient_backward(
    grad: TensorMeta,
    q: TensorMeta,
    k: TensorMeta,
    v: TensorMeta,
    bias: TensorMeta | None,
    out: TensorMeta,
    sums: TensorMeta,
    mask: tuple[bool, ...],
    causal: bool,
    scale: float | None,
) -> tuple[TensorMeta | None, ...]:
    """Gradients by q, k, v and bias of attention_efficient; None where `mask` is False."""
    each = (*(by_rows(x.shape, x) for x in (q, k, v)), None if bias is None else pointwise_like((bias,), bias.dtype))
    return tuple(one if wanted else None for one, wanted in zip(each, mask, strict=True))


# -- cuDNN


def _cudnn(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sums: bool, causal: bool, scale: float | None
) -> tuple[Any, ...]:
    out, found = _plain(q, k, v, bias, causal, scale)
    return out, found[..., None] if sums else found.flatten()[:0]


@prim("attention_cudnn", kind=Kind.PRODUCT, reference=_cudnn)
def attention_cudnn(
    q: TensorMeta,
    k: TensorMeta,
    v: TensorMeta,
    bias: TensorMeta | None,
    sums: bool,
    causal: bool,
    scale: float | None,
) -> Pair:
    """softmax(q k^T * scale + bias) v -> (out, logsumexp of each row, with a last dimension of 1; empty without)."""
    return _out(q, v), _sums(q, q.shape[2], 1) if sums else make((0,), torch.float32, q.device)


def _cudnn_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    sums: Tensor,
    bias: Tensor | None,
    causal: bool,
    scale: float | None,
) -> tuple[Tensor, ...]:
    return tuple(_plain_backward(grad, q, k, v, bias, out, sums[..., 0], causal, scale)[:3])


@prim("attention_cudnn_backward", kind=Kind.PRODUCT, reference=_cudnn_backward)
def attention_cudnn_backward(
    grad: TensorMeta,
    q: TensorMeta,
    k: TensorMeta,
    v: TensorMeta,
    out: TensorMeta,
    sums: TensorMeta,
    bias: TensorMeta | None,
    causal: bool,
    scale: float | None,
) -> Gradients:
    """Gradients by q, k and v of attention_cudnn."""
    return by_rows(q.shape, q), by_rows(k.shape, k), by_rows(v.shape, v)
