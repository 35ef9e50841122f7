"""Losses over pairs of classes or over alignments. `reduction` is ATen's: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

import torch

from smelt.graph.ir.meta import TensorMeta
from smelt.prims.table import Number, Shape, kernel, make

aten = torch.ops.aten


def _like(x: TensorMeta) -> TensorMeta:
    return make(x.shape, x.dtype, x.device)


def _loss(x: TensorMeta, reduction: int) -> TensorMeta:
    """Returns the meta of a loss: one number per row without reduction, else one number."""
    return make(x.shape[:1] if reduction == 0 and len(x.shape) > 1 else (), x.dtype, x.device)


@kernel("multi_margin_loss", aten.multi_margin_loss.default)
def multi_margin_loss(
    x: TensorMeta, target: TensorMeta, p: Number, margin: Number, weight: TensorMeta | None, reduction: int
) -> TensorMeta:
    """The mean over the other classes of max(0, margin - x[target] + x[class]) ** p."""
    return make(target.shape if reduction == 0 else (), x.dtype, x.device)


@kernel("multi_margin_loss_backward", aten.multi_margin_loss_backward.default)
def multi_margin_loss_backward(
    grad: TensorMeta,
    x: TensorMeta,
    target: TensorMeta,
    p: Number,
    margin: Number,
    weight: TensorMeta | None,
    reduction: int,
) -> TensorMeta:
    """The gradient of multi_margin_loss with respect to x."""
    return _like(x)


@kernel("multilabel_margin_loss", aten.multilabel_margin_loss_forward.default)
def multilabel_margin_loss(x: TensorMeta, target: TensorMeta, reduction: int) -> tuple[TensorMeta, TensorMeta]:
    """(loss, mask that is 1 at target classes); the target classes of a row are its numbers before the first -1."""
    return _loss(x, reduction), make(target.shape, x.dtype, x.device)


@kernel("multilabel_margin_loss_backward", aten.multilabel_margin_loss_backward.default)
def multilabel_margin_loss_backward(
    grad: TensorMeta, x: TensorMeta, target: TensorMeta, reduction: int, is_target: TensorMeta
) -> TensorMeta:
    """The gradient of multilabel_margin_loss with respect to x."""
    return _like(x)


def _alignments(log_probs: TensorMeta, targets: TensorMeta, longest: int) -> tuple[TensorMeta, TensorMeta]:
    steps, batch = log_probs.shape[:2]
    return (
        make((batch,), log_probs.dtype, log_probs.device),
        make((batch, steps, 2 * longest + 1), log_probs.dtype, log_probs.device),
    )


@kernel("ctc_loss", aten._ctc_loss.default)
def ctc_loss(
    log_probs: TensorMeta,
    targets: TensorMeta,
    input_lengths: Shape,
    target_lengths: Shape,
    blank: int,
    zero_infinity: bool,
) -> tuple[TensorMeta, TensorMeta]:
    """(-log of the targets' probability, log of the probability of each of their prefixes); log_probs is (steps, batch,
    classes)."""
    return _alignments(log_probs, targets, max(target_lengths, default=0))


@kernel("ctc_loss_backward", aten._ctc_loss_backward.default)
def ctc_loss_backward(
    grad: TensorMeta,
    log_probs: TensorMeta,
    targets: TensorMeta,
    input_lengths: Shape,
    target_lengths: Shape,
    losses: TensorMeta,
    prefixes: TensorMeta,
    blank: int,
    zero_infinity: bool,
) -> TensorMeta:
    """The gradient of ctc_loss with respect to log_probs."""
    return _like(log_probs)
