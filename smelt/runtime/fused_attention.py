"""External kernels of attention on CUDA: flash, memory-efficient, cuDNN. None drops attention weights.

Forwards give (out, logsumexp of each row), backwards the gradients, as the prims `attention_*` describe them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from smelt.runtime.externs import Candidate, Spec, register

aten = torch.ops.aten
Params = Mapping[str, Any]
Specs = list[Spec | None]


def _no_numbers(x: Tensor) -> tuple[Tensor, Tensor]:
    """Seed and offset of a dropout that does not happen; on the device, so that nothing waits for a copy."""
    nothing = torch.empty((), dtype=torch.int64, device=x.device)
    return nothing, nothing


def _repeated(bias: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """The bias of every batch, head and row, in the memory of those that differ."""
    return None if bias is None else bias.expand(*q.shape[:3], k.shape[2])


@register("attention_flash")
def flash(params: Params, inputs: Specs, outputs: list[Spec]) -> list[Candidate]:
    op, causal, scale = aten._scaled_dot_product_flash_attention.default, params["causal"], params["scale"]
    return [Candidate("aten", lambda q, k, v: op(q, k, v, 0.0, causal, scale=scale)[:2])]


@register("attention_flash_backward")
def flash_backward(params: Params, inputs: Specs, outputs: list[Spec]) -> list[Candidate]:
    op, causal, scale = aten._scaled_dot_product_flash_attention_backward.default, params["causal"], params["scale"]

    def call(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor) -> Any:
        numbers = torch.empty(2, dtype=torch.uint64, device=q.device), _no_numbers(q)[0]
        lengths = q.shape[2], k.shape[2]
        return op(grad, q, k, v, out, sums, None, None, *lengths, 0.0, causal, *numbers, scale=scale)

    return [Candidate("aten", call)]


@register("attention_efficient")
def efficient(params: Params, inputs: Specs, outputs: list[Spec]) -> list[Candidate]:
    op, sums = aten._scaled_dot_product_efficient_attention.default, params["sums"]
    causal, scale = params["causal"], params["scale"]

    def call(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Any:
        return op(q, k, v, _repeated(bias, q, k), sums, 0.0, causal, scale=scale)[:2]

    return [Candidate("aten", call)]


@register("attention_efficient_backward")
def efficient_backward(params: Params, inputs: Specs, outputs: list[Spec]) -> list[Candidate]:
    op, mask = aten._scaled_dot_product_efficient_attention_backward.default, params["mask"]
    causal, scale = params["causal"], params["scale"]

    def call(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor, sums: Tensor) -> Any:
        bias = _repeated(bias, q, k)
        found = op(grad, q, k, v, bias, out, sums, *_no_numbers(q), 0.0, list(mask), causal, scale=scale)
        return tuple(one if wanted else None for one, wanted in zip(found, mask, strict=True))

    return [Candidate("aten", call)]


@register("attention_cudnn")
def cudnn(params: Params, inputs: Specs, outputs: list[Spec]) -> list[Candidate]:
    op, sums = aten._scaled_dot_product_cudnn_attention.default, params["sums"]
    causal, scale = params["causal"], params["scale"]

    def call(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Any:
        out, found, *_ = op(q, k, v, _repeated(bias, q, k), sums, 0.0, causal, scale=scale)
        return out, found if sums else torch.empty(0, dtype=torch.float32, device=q.device)

    return [Candidate("aten", call)]


@register("attention_cudnn_backward")
def cudnn_backward(params: Params, inputs: Specs, outputs: list[Spec]) -> list[Candidate]:
    op, causal, scale = aten._scaled_dot_product_cudnn_attention_backward.default, params["causal"], params["scale"]

    def call(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, bias: Tensor | None) -> Any:
        lengths, whole = (q.shape[2], k.shape[2]), _repeated(bias, q, k)
        return op(
            grad, q, k, v, out, sums, *_no_numbers(q), whole, None, None, *lengths, 0.0, causal, scale=scale
        )  # fmt: skip

    return [Candidate("aten", call)]
