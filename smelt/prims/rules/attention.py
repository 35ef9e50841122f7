"""Scaled dot product attention as the engine of CUDA dispatches it: to one of three fused kernels of the library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from smelt.graph.meta import TensorMeta
from smelt.prims.ops import PRIMS
from smelt.prims.registry import LIBRARY, Lowering, any_dtype, aten, decomposition
from smelt.prims.rules.kernels import as_eager_lays_out

Optional = Node | None

for _way in ("", "_backward"):  # the seed of flash attention's dropout is unsigned
    any_dtype(getattr(aten, f"_scaled_dot_product_flash_attention{_way}").default)

LIBRARY |= {
    getattr(aten, f"_scaled_dot_product_{kind}_attention{way}").default
    for kind in ("flash", "efficient", "cudnn")
    for way in ("", "_backward")
}


def _forward(p: Lowering, name: str, *args: Any) -> Any:
    """The results of a kernel, and for what only dropout needs something that nobody reads."""
    values = p.emit(PRIMS[name], *args)
    kept = [v for v, meta in zip(values, p.result, strict=False) if meta is not None]
    as_eager_lays_out(tuple(kept), [meta for meta in p.result[:2] if meta is not None])
    rest = (p.full(m.shape, 0, m.dtype, m.device) if isinstance(m, TensorMeta) else m for m in p.result[2:])
    return (*(v if meta is not None else None for v, meta in zip(values, p.result, strict=False)), *rest)


def _backward(p: Lowering, name: str, *args: Any) -> Any:
    values = p.emit(PRIMS[name], *args)
    kept = [(v, meta) for v, meta in zip(values, p.result, strict=True) if v is not None and meta is not None]
    for value, meta in kept:
        as_eager_lays_out(value, meta)
    return values


@decomposition(aten._scaled_dot_product_flash_attention.default)
def flash(
    p: Lowering,
    q: Node,
    k: Node,
    v: Node,
    dropout: float = 0.0,
    causal: bool = False,
    debug: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    return NotImplemented if dropout or debug else _forward(p, "attention_flash", q, k, v, causal, scale)


@decomposition(aten._scaled_dot_product_flash_attention_backward.default)
def flash_backward(p: Lowering, g: Node, *args: Any, scale: float | None = None) -> Any:
    q, k, v, out, sums, first_q, first_k, _, _, dropout, causal, *_ = args
    if dropout or first_q is not None or first_k is not None:
        return NotImplemented
    return _backward(p, "attention_flash_backward", g, q, k, v, out, sums, causal, scale)


@decomposition(aten._scaled_dot_product_efficient_attention.default)
def efficient(
    p: Lowering,
    q: Node,
    k: Node,
    v: Node,
    bias: Optional,
    sums: bool,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    return NotImplemented if dropout else _forward(p, "attention_efficient", q, k, v, bias, sums, causal, scale)


@decomposition(aten._scaled_dot_product_efficient_attention_backward.default)
def efficient_backward(
    p: Lowering,
    g: Node,
    q: Node,
    k: Node,
    v: Node,
    bias: Optional,
    out: Node,
    sums: Node,
    seed: Node,
    offset: Node,
    dropout: float,
    mask: Sequence[bool],
    causal: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    if dropout:
        return NotImplemented
    wanted = tuple(bool(one) and meta is not None for one, meta in zip(mask, p.result, strict=True))
    return _backward(p, "attention_efficient_backward", g, q, k, v, bias, out, sums, wanted, causal, scale)


@decomposition(aten._scaled_dot_product_cudnn_attention.default)
def cudnn(
    p: Lowering,
    q: Node,
    k: Node,
    v: Node,
    bias: Optional,
    sums: bool,
    dropout: float = 0.0,
    causal: bool = False,
    debug: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    if dropout or debug:
        return NotImplemented
    return _forward(p, "attention_cudnn", q, k, v, bias, sums, causal, scale)


@decomposition(aten._scaled_dot_product_cudnn_attention_backward.default)
def cudnn_backward(p: Lowering, g: Node, *args: Any, scale: float | None = None) -> Any:
    q, k, v, out, sums, _, _, bias, first_q, first_k, _, _, dropout, causal = args
    if dropout or first_q is not None or first_k is not None:
        return NotImplemented
    return _backward(p, "attention_cudnn_backward", g, q, k, v, out, sums, bias, causal, scale)
