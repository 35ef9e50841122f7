"""Attention, one primitive per fused kernel: torch's for CPUs, three of torch's for CUDA, smelt's `attention_tiled`.

All take tensors of shape (batch, heads, length, width). The primitives for torch's kernels have no dropout: attention
with dropout stays an ATen operator, which draws from the device's generator. The signatures come from
`abi/attention.py`; the kernels are called by `runtime/library/`: `fallback.py` (CPUs), `fused_attention.py` and
`tiled_attention.py`. The references of the CUDA primitives compute the same values by plain matrix products.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from smelt.abi.attention import ATTENTIONS, Attention, Fourth, Sums, padded
from smelt.graph.ir.meta import TensorMeta
from smelt.prims import random_bits
from smelt.prims.table import Facts, Kind, Shape, Strides, make, pointwise_like, prim
from smelt.shapes.size import same_all

aten = torch.ops.aten

Operands = Mapping[str, Any]
"""The arguments of a call of an attention primitive, by name."""

ANNOTATIONS = {
    **dict.fromkeys(("grad", "q", "k", "v", "out"), "TensorMeta"),
    **dict.fromkeys(("bias", "seed"), "TensorMeta | None"),
    "causal": "bool",
    "scale": "float | None",
    "mask": "tuple[bool, ...]",
    "dropout": "float",
    "stream": "int",
    "precision": "str",
}

FLOPS = Facts(flops=lambda _, operands: 4 * (operands[0].numel * operands[1].shape[2]))
FLOPS_BACKWARD = Facts(flops=lambda _, operands: 10 * (operands[0].numel * operands[1].shape[2]))

# -- metadata of the results


def _by_rows(shape: Shape, like: TensorMeta) -> TensorMeta:
    """Returns the meta of (batch, heads, length, width) in memory order batch, length, heads, width, the order of a
    projection's result.
    """
    _, h, n, w = shape
    return TensorMeta(shape, like.dtype, (n * h * w, w, h * w, 1), like.device)


def _forward_metas(kind: Attention, operands: Operands) -> tuple[TensorMeta, TensorMeta]:
    q, shape = operands["q"], (*operands["q"].shape[:3], operands["v"].shape[3])
    if kind.kind != "cpu":
        out = _by_rows(shape, q)
    else:  # in the layout of q
        out = pointwise_like((q,), q.dtype) if same_all(shape, q.shape) else make(shape, q.dtype, q.device)
    return out, _sums_meta(kind, q, operands.get("sums", True))


def _sums_meta(kind: Attention, q: TensorMeta, wanted: bool) -> TensorMeta:
    shape: tuple[int, ...] = q.shape[:3]
    match kind.sums:
        case Sums.BY_ROW:
            _, heads, rows = shape
            wide = q.dtype if q.dtype is torch.float64 else torch.float32
            return TensorMeta(shape, wide, (rows * heads, 1, heads), q.device)
        case Sums.PADDED:
            shape = (*q.shape[:2], padded(q.shape[2]) if wanted else 0)
        case Sums.COLUMN:
            shape = (*shape, 1) if wanted else (0,)
    return make(shape, torch.float32, q.device)


def _backward_metas(kind: Attention, operands: Operands) -> tuple[TensorMeta | None, ...]:
    found: list[TensorMeta | None] = [_by_rows(x.shape, x) for x in (operands["q"], operands["k"], operands["v"])]
    q, bias = operands["q"], operands.get("bias")
    match kind.fourth:
        case Fourth.BIAS:
            found.append(None if bias is None else pointwise_like((bias,), bias.dtype))
        case Fourth.SCORES:
            found.append(make((*q.shape[:3], operands["k"].shape[2]), q.dtype, q.device))
    return _wanted(found, operands)


def _wanted(found: list[Any], operands: Operands) -> tuple[Any, ...]:
    mask = operands.get("mask", (True,) * len(found))
    return tuple(one if wanted else None for one, wanted in zip(found, mask, strict=True))


# -- the eager references, by torch's operators


def _of_library(kind: Attention, operands: Operands) -> tuple[Tensor, ...]:
    """Call torch's own kernel for CPUs, forward or backward."""
    op = aten._scaled_dot_product_flash_attention_for_cpu
    if "grad" in operands:
        op = aten._scaled_dot_product_flash_attention_for_cpu_backward
    *first, bias, scale = operands.values()
    return tuple(op(*first, attn_mask=bias, scale=scale))


def _scores(operands: Operands) -> Tensor:
    q, k, bias = operands["q"], operands["k"], operands.get("bias")
    found: Tensor = (q.float() @ k.float().mT) * _factor(operands)
    if bias is not None:
        found = found + bias
    return (
        found.masked_fill(torch.ones_like(found, dtype=torch.bool).triu(1), -math.inf) if operands["causal"] else found
    )


def _factor(operands: Operands) -> float:
    scale: float | None = operands["scale"]
    return operands["q"].shape[-1] ** -0.5 if scale is None else scale


def _kept(scores: Tensor, operands: Operands) -> Tensor | float:
    """Returns the factor of each attention weight: 0 for dropped weights, 1 / (1 - rate) for the others."""
    if operands.get("seed") is None:
        return 1.0
    dropout = operands["dropout"]
    return (random_bits.uniform(operands["seed"], operands["stream"], scores.shape) < 1 - dropout) / (1 - dropout)


def _forward(kind: Attention, operands: Operands) -> tuple[Tensor, Tensor]:
    q, v, scores = operands["q"], operands["v"], _scores(operands)
    sums = scores.logsumexp(-1)
    unseen = math.inf if kind.kind == "tiled" else -math.inf  # for a fully masked row, whose weights become 0
    sums = sums.masked_fill(sums == -math.inf, unseen)
    out = ((scores - sums[..., None]).exp() * _kept(scores, operands)) @ v.float()
    return out.to(q.dtype), _stored(kind, sums, operands.get("sums", True))


def _stored(kind: Attention, sums: Tensor, wanted: bool) -> Tensor:
    match kind.sums:
        case Sums.PADDED:
            rows, value = sums.shape[2], math.inf if kind.kind == "tiled" else 0.0
            return torch.nn.functional.pad(sums, (0, padded(rows) - rows), value=value) if wanted else sums[..., :0]
        case Sums.COLUMN:
            return sums[..., None] if wanted else sums.flatten()[:0]
    return sums


def _backward(kind: Attention, operands: Operands) -> tuple[Tensor | None, ...]:
    q, k, v, g, bias = operands["q"], operands["k"], operands["v"], operands["grad"].float(), operands.get("bias")
    sums = operands["sums"][..., 0] if kind.sums is Sums.COLUMN else operands["sums"][..., : q.shape[2]]
    plain, factor = _scores(operands), _factor(operands)
    weights, kept = (plain - sums[..., None]).exp(), _kept(plain, operands)
    scores = weights * (g @ v.float().mT * kept - (g * operands["out"].float()).sum(-1, keepdim=True))
    found = [scores @ k.float() * factor, scores.mT @ q.float() * factor, (weights * kept).mT @ g]
    if kind.fourth is Fourth.SCORES:
        found.append(scores)
    if kind.fourth is Fourth.BIAS:
        found.append(scores if bias is None else scores.sum_to_size(bias.shape))
    return _wanted([one.to(q.dtype) for one in found], operands)


# -- the primitives


def _enter(kind: Attention, backward: bool, facts: Facts) -> None:
    names = kind.backward if backward else kind.forward
    metas: Callable[[Attention, Operands], Any] = _backward_metas if backward else _forward_metas
    run: Callable[[Attention, Operands], Any] = _backward if backward else _forward
    if kind.kind == "cpu":
        run = _of_library

    def meta(*args: Any) -> Any:
        return metas(kind, dict(zip(names, args, strict=True)))

    def reference(*args: Any) -> Any:
        return run(kind, dict(zip(names, args, strict=True)))

    annotations = ANNOTATIONS | {"sums": "TensorMeta" if backward else "bool"}
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kinds, annotation=annotations[name]) for name in names]
    meta.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    meta.__doc__ = kind.about[backward]
    name = f"attention_{kind.kind}" + ("_backward" if backward else "")
    prim(name, kind=Kind.PRODUCT, reference=reference, facts=facts)(meta)


for _kind in ATTENTIONS.values():
    _strides = Strides.ROWS if _kind.kind == "tiled" else Strides.GIVEN
    _enter(_kind, False, replace(FLOPS, strides=_strides))
    _enter(_kind, True, replace(FLOPS_BACKWARD, strides=_strides))
