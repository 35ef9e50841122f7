"""Attention by fused kernels on CUDA: three of the library, and `attention_tiled` of our own.

All take (batch, heads, length, width). Those of the library drop no weights here: where they do, torch's own operator
stays, which draws from the device's generator. The kernels are in `runtime/library/fused_attention.py` and
`runtime/library/tiled_attention.py`; the references compute the same by plain products.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from smelt.graph.ir.meta import TensorMeta
from smelt.prims import random_bits
from smelt.prims.products import ATTENTION, ATTENTION_BACKWARD, by_rows
from smelt.prims.table import Kind, Strides, make, pointwise_like, prim

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


@prim("attention_flash", kind=Kind.PRODUCT, reference=_flash, facts=ATTENTION)
def attention_flash(q: TensorMeta, k: TensorMeta, v: TensorMeta, causal: bool, scale: float | None) -> Pair:
    """softmax(q k^T * scale) v -> (out, logsumexp of each row in float32). scale None means 1/sqrt(width)."""
    return _out(q, v), _sums(q, q.shape[2])


def _flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, causal: bool, scale: float | None
) -> tuple[Tensor, ...]:
    return tuple(_plain_backward(grad, q, k, v, None, out, sums, causal, scale)[:3])


@prim("attention_flash_backward", kind=Kind.PRODUCT, reference=_flash_backward, facts=ATTENTION_BACKWARD)
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


@prim("attention_efficient", kind=Kind.PRODUCT, reference=_efficient, facts=ATTENTION)
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


@prim("attention_efficient_backward", kind=Kind.PRODUCT, reference=_efficient_backward, facts=ATTENTION_BACKWARD)
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


@prim("attention_cudnn", kind=Kind.PRODUCT, reference=_cudnn, facts=ATTENTION)
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


@prim("attention_cudnn_backward", kind=Kind.PRODUCT, reference=_cudnn_backward, facts=ATTENTION_BACKWARD)
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


# -- our own: float32 rounded to TF32, and dropout


def _weights(scores: Tensor, sums: Tensor) -> Tensor:
    """A row of which nothing is seen has an infinite logsumexp, and weights of 0."""
    return (scores - sums[..., None]).exp()


def _kept(scores: Tensor, seed: Tensor | None, dropout: float, stream: int) -> Tensor:
    """What weights are multiplied by: 0 where they are dropped."""
    if seed is None:
        return torch.ones_like(scores)
    return (random_bits.uniform(seed, stream, scores.shape) < 1 - dropout) / (1 - dropout)


def _tiled(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    seed: Tensor | None,
    sums: bool,
    causal: bool,
    scale: float | None,
    dropout: float,
    stream: int,
    precision: str,
) -> tuple[Tensor, ...]:
    scores = _scores(q, k, bias, causal, scale)
    found = scores.logsumexp(-1)
    found = found.masked_fill(found == -math.inf, math.inf)
    out = (_weights(scores, found) * _kept(scores, seed, dropout, stream)) @ v.float()
    rows = -q.shape[2] % BLOCK
    found = torch.nn.functional.pad(found, (0, rows), value=math.inf) if sums else found[..., :0]
    return out.to(q.dtype), found


@prim("attention_tiled", kind=Kind.PRODUCT, reference=_tiled, facts=replace(ATTENTION, strides=Strides.ROWS))
def attention_tiled(
    q: TensorMeta,
    k: TensorMeta,
    v: TensorMeta,
    bias: TensorMeta | None,
    seed: TensorMeta | None,
    sums: bool,
    causal: bool,
    scale: float | None,
    dropout: float,
    stream: int,
    precision: str,
) -> Pair:
    """As attention_efficient, with weights dropped as `random` of the same seed and stream says.

    Args:
        dropout: the share that is dropped; the seed is None where it is 0.
        precision: of products of float32, "tf32" or "ieee".
    """
    return _out(q, v), _sums(q, (q.shape[2] + BLOCK - 1) // BLOCK * BLOCK if sums else 0)


def _tiled_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    out: Tensor,
    sums: Tensor,
    seed: Tensor | None,
    mask: tuple[bool, ...],
    causal: bool,
    scale: float | None,
    dropout: float,
    stream: int,
    precision: str,
) -> tuple[Tensor | None, ...]:
    plain = _scores(q, k, bias, causal, scale)
    weights, kept = _weights(plain, sums[..., : q.shape[2]]), _kept(plain, seed, dropout, stream)
    g, factor = grad.float(), q.shape[-1] ** -0.5 if scale is None else scale
    scores = weights * (g @ v.float().mT * kept - (g * out.float()).sum(-1, keepdim=True))
    found = scores @ k.float() * factor, scores.mT @ q.float() * factor, (weights * kept).mT @ g, scores
    return tuple(one.to(q.dtype) if wanted else None for one, wanted in zip(found, mask, strict=True))


@prim(
    "attention_tiled_backward",
    kind=Kind.PRODUCT,
    reference=_tiled_backward,
    facts=replace(ATTENTION_BACKWARD, strides=Strides.ROWS),
)
def attention_tiled_backward(
    grad: TensorMeta,
    q: TensorMeta,
    k: TensorMeta,
    v: TensorMeta,
    bias: TensorMeta | None,
    out: TensorMeta,
    sums: TensorMeta,
    seed: TensorMeta | None,
    mask: tuple[bool, ...],
    causal: bool,
    scale: float | None,
    dropout: float,
    stream: int,
    precision: str,
) -> tuple[TensorMeta | None, ...]:
    """Gradients by q, k, v and each score of attention_tiled; None where `mask` is False."""
    scores = make((*q.shape[:3], k.shape[2]), q.dtype, q.device)
    each = (*(by_rows(x.shape, x) for x in (q, k, v)), scores)
    return tuple(one if wanted else None for one, wanted in zip(each, mask, strict=True))
