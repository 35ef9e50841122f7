"""The backward of cuDNN's attention, for gradients in any layout.

PyTorch caches cuDNN's plans; the key contains sizes and strides of query, key, value and bias. A plan also depends on
the strides of the output and of its gradient, which are not in the key: a later call with the same key and another
layout of the gradient would read the gradient with wrong strides. Calls by eager and by compiled code may differ in
these layouts. So compiled code uses other keys (a dropout of -0.0, which equals 0 but differs in its bits), and copies
the output and the gradient to the layouts of the key's first call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_OP = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default

_planned: dict[tuple[Any, ...], tuple[Any, Any]] = {}
"""Strides of the output's gradient and of the output in the first call, by the contents of PyTorch's key."""


def cudnn_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, *rest: Any, scale: float | None = None
) -> tuple[Tensor, ...]:
    """Runs `aten._scaled_dot_product_cudnn_attention_backward` with the layouts for which the cached plan was made."""
    *numbers, dropout, causal = rest
    bias = numbers[3]
    if grad.stride(-1) != 1:  # the operator itself would make this copy
        grad = torch.empty_like(out).copy_(grad)
    layout = grad.stride(), out.stride()
    of_bias = None if bias is None else (bias.shape, bias.stride())
    sizes, strides = (q.shape, k.shape, v.shape), (q.stride(), k.stride(), v.stride())
    key = (q.device, q.dtype, *sizes, *strides, of_bias, dropout, causal)
    planned = _planned.setdefault(key, layout)
    if planned != layout:
        grad, out = (_in_strides(x, stride) for x, stride in zip((grad, out), planned, strict=True))
    return _OP(grad, q, k, v, out, *numbers, dropout or -0.0, causal, scale=scale)


def _in_strides(x: Tensor, stride: tuple[int, ...]) -> Tensor:
    if x.stride() == stride:
        return x
    return torch.empty_strided(x.shape, stride, dtype=x.dtype, device=x.device).copy_(x)
