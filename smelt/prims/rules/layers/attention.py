"""Scaled dot product attention as PyTorch dispatches it: to a kernel for CPUs, or to one of three fused CUDA kernels.

Smelt's kernel `attention_tiled` replaces the memory-efficient CUDA kernel in two cases: for float32 operands whose
products may be rounded to TF32, which that kernel does not use; and for dropout with the graph's seed, because that
kernel needs a seed on the CPU. See docs/decisions/0021.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from smelt.base.precision import products_round_to_tf32
from smelt.graph.ir.meta import TensorMeta, contiguous_stride
from smelt.prims.dtypes import LOW_PRECISION
from smelt.prims.ops import PRIMS
from smelt.prims.registry import LIBRARY, Lowering, any_dtype, aten, decomposition, is_empty, shape_of
from smelt.prims.rules.kernels import set_eager_strides
from smelt.prims.simplify import constant_of
from smelt.shapes.size import same, same_all

Optional = Node | None

for _suffix in ("", "_backward"):  # `rng_state`, a result of the forward, is uint64
    any_dtype(getattr(aten, f"_scaled_dot_product_flash_attention{_suffix}").default)

LIBRARY |= {
    getattr(aten, f"_scaled_dot_product_{kind}_attention{suffix}").default
    for kind in ("flash", "efficient", "cudnn")
    for suffix in ("", "_backward")
}


def _emit(p: Lowering, name: str, operands: Mapping[str, Any]) -> Any:
    return p.emit(PRIMS[name], *map(operands.__getitem__, PRIMS[name].parameters))


def _forward(p: Lowering, name: str, **operands: Any) -> Any:
    """Returns the results of a kernel, and zeros for the results that only the gradient of dropout needs."""
    out, sums = _emit(p, name, operands)
    promised = p.result[1]
    if promised is not None and is_empty(shape_of(sums)) and not is_empty(promised.shape):
        sums = p.full(promised.shape, 0, promised.dtype, promised.device)  # unused without a gradient
    values = out, sums
    kept = [v for v, meta in zip(values, p.result, strict=False) if meta is not None]
    set_eager_strides(tuple(kept), [meta for meta in p.result[:2] if meta is not None])
    rest = (p.full(m.shape, 0, m.dtype, m.device) if isinstance(m, TensorMeta) else m for m in p.result[2:])
    return (*(v if meta is not None else None for v, meta in zip(values, p.result, strict=False)), *rest)


def _backward(p: Lowering, name: str, **operands: Any) -> Any:
    values = _emit(p, name, operands)
    kept = [(v, meta) for v, meta in zip(values, p.result, strict=True) if v is not None and meta is not None]
    for value, meta in kept:
        set_eager_strides(value, meta)
    return values


@decomposition(aten._scaled_dot_product_flash_attention_for_cpu.default)
def cpu(
    p: Lowering,
    q: Node,
    k: Node,
    v: Node,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: Optional = None,
    scale: float | None = None,
) -> Any:
    how = {"dropout": dropout, "causal": causal, "bias": attn_mask, "scale": scale}
    return _emit(p, "attention_cpu", {"q": q, "k": k, "v": v, **how})


@decomposition(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def cpu_backward(p: Lowering, g: Node, *args: Any, attn_mask: Optional = None, scale: float | None = None) -> Any:
    q, k, v, out, sums, dropout, causal = args
    how = {"dropout": dropout, "causal": causal, "bias": attn_mask, "scale": scale}
    return _emit(p, "attention_cpu_backward", {"grad": g, "q": q, "k": k, "v": v, "out": out, "sums": sums, **how})


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
    if dropout or debug:
        return NotImplemented
    return _forward(p, "attention_flash", q=q, k=k, v=v, causal=causal, scale=scale)


@decomposition(aten._scaled_dot_product_flash_attention_backward.default)
def flash_backward(p: Lowering, g: Node, *args: Any, scale: float | None = None) -> Any:
    q, k, v, out, sums, first_q, first_k, _, _, dropout, causal, *_ = args
    if dropout or first_q is not None or first_k is not None:
        return NotImplemented
    return _backward(
        p, "attention_flash_backward", grad=g, q=q, k=k, v=v, out=out, sums=sums, causal=causal, scale=scale
    )


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
    original, bias = bias, _contiguous_rows(p, _without_constant_zero(bias))
    precision, seed = _tiled_precision(p, q, k, v, bias, dropout), p.seeds.get(p.out.device) if dropout else None
    how: dict[str, Any] = {"q": q, "k": k, "v": v, "sums": sums, "causal": causal, "scale": scale}
    if precision and not dropout:
        return _forward(p, "attention_tiled", **how, bias=bias, seed=None, dropout=0.0, stream=0, precision=precision)
    if precision and seed is not None and not p.eager_rng:
        stream = p.next_stream()
        drawn = {"seed": seed, "dropout": dropout, "stream": stream}
        out, found, *_ = _forward(p, "attention_tiled", **how, **drawn, bias=bias, precision=precision)
        return out, found, seed, p.full((), stream, torch.int64, p.out.device)
    if dropout:
        if original is bias:
            return NotImplemented
        target = aten._scaled_dot_product_efficient_attention.default
        return p.call(target, (q, k, v, bias, sums, dropout, causal), {"scale": scale}, p.result)
    return _forward(p, "attention_efficient", **how, bias=_unbroadcast(p, bias))


BIAS_ROW_ALIGNMENT_BYTES = 16
"""Alignment in bytes that library kernels need for the rows of a bias."""


def _without_constant_zero(bias: Optional) -> Optional:
    """Returns the bias, or None if it is a constant 0. Models make such masks only when they are compiled."""
    return None if bias is not None and constant_of(bias) == 0 else bias


def _contiguous_rows(p: Lowering, bias: Optional) -> Optional:
    """Returns the bias with a stride of 1 in its last dimension, which the kernels need; a copy if it has another
    stride.

    In eager the bias is the result of an addition and so contiguous. If the addend is a constant 0 and has been
    removed, the bias may be a transposed view of a table of positions.
    """
    if bias is None:
        return None
    if bias.target is PRIMS["broadcast_in_dim"]:
        source, shape, dims = bias.args
        last = isinstance(dims, tuple) and dims[-1:] == (3,)
        rows = _contiguous_rows(p, source) if isinstance(source, Node) and last else source
        return bias if rows is source else p.broadcast_in_dim(rows, shape, dims)
    meta: TensorMeta = bias.meta["val"]
    if same(meta.stride[-1], 1) or same(meta.shape[-1], 1):
        return bias
    copy: Node = p.unique(PRIMS["clone"], (bias,))
    copy.meta["val"] = replace(meta, stride=contiguous_stride(meta.shape))
    return copy


def _unbroadcast(p: Lowering, bias: Optional) -> Optional:
    """Returns the bias with size 1 in the dimensions over which it is broadcast (batches, heads, rows), to read less
    memory.

    The bias is unchanged if elements of a row are broadcast, too, or if the rows would not be aligned.
    """
    if bias is None or bias.target is not PRIMS["broadcast_in_dim"]:
        return bias
    source, whole, dims = bias.args
    assert isinstance(source, Node) and isinstance(whole, tuple) and isinstance(dims, tuple)
    meta: TensorMeta = source.meta["val"]
    shape: list[Any] = [1, 1, 1, 1]
    for dim, size in zip(dims, meta.shape, strict=True):
        shape[dim] = size
    row = shape[3]
    if not (isinstance(row, int) and row == whole[3]) or row * meta.dtype.itemsize % BIAS_ROW_ALIGNMENT_BYTES:
        return bias
    return source if len(meta.shape) == 4 else p.reshape(source, tuple(shape))


MAX_TILED_HEAD_WIDTH = 128
"""Maximum width of a head, in elements, that smelt's kernel supports."""


def _library_bias(p: Lowering, bias: Optional) -> Optional:
    """Returns the bias in the smallest form that a library kernel accepts."""
    return _unbroadcast(p, _contiguous_rows(p, _without_constant_zero(bias)))


def _tiled_precision(p: Lowering, q: Node, k: Node, v: Node, bias: Optional, dropout: float) -> str | None:
    """Returns the precision of the products if smelt's kernel is used; None for the library's kernel.

    The rules of forward and backward get the same operands, and so choose the same kernel.
    """
    of_q, of_k, of_v = (x.meta["val"] for x in (q, k, v))
    widths, half = (of_q.shape[3], of_v.shape[3]), of_q.dtype in LOW_PRECISION
    if dropout >= 1 or not all(isinstance(n, int) and 0 < n <= MAX_TILED_HEAD_WIDTH for n in widths):
        return None
    if not (same_all(of_q.shape[:2], of_k.shape[:2]) and same_all(of_k.shape[:3], of_v.shape[:3])):
        return None
    if bias is not None and not same_all(bias.meta["val"].shape, (*of_q.shape[:3], of_k.shape[2])):
        return None
    if half:
        return "tf32" if dropout else None
    return "tf32" if of_q.dtype is torch.float32 and products_round_to_tf32() else None


def _stream(offset: Node) -> int:
    """Returns the random stream of the forward, which the forward returned as the constant `offset`."""
    assert offset.target is PRIMS["full"], offset
    return int(offset.args[1])  # type: ignore[arg-type]


def _tiled_backward(p: Lowering, **operands: Any) -> Any:
    """Returns the gradients of q, k and v with eager's strides; the gradient of the bias has the kernel's own
    strides.
    """
    values = _emit(p, "attention_tiled_backward", operands)
    for value, meta in zip(values[:3], p.result[:3], strict=True):
        if value is not None and meta is not None:
            set_eager_strides(value, meta)
    return values


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
    wanted = tuple(bool(one) and meta is not None for one, meta in zip(mask, p.result, strict=True))
    original = bias
    bias = _contiguous_rows(p, bias if wanted[3] else _without_constant_zero(bias))
    how = {
        "grad": g,
        "q": q,
        "k": k,
        "v": v,
        "out": out,
        "sums": sums,
        "mask": wanted,
        "causal": causal,
        "scale": scale,
    }
    if precision := _tiled_precision(p, q, k, v, bias, dropout):
        if not dropout:
            return _tiled_backward(p, **how, bias=bias, seed=None, dropout=0.0, stream=0, precision=precision)
        if seed in p.seeds.values():  # the forward also used smelt's kernel, and returned its stream as the offset
            drawn = {"seed": seed, "dropout": dropout, "stream": _stream(offset)}
            return _tiled_backward(p, **how, **drawn, bias=bias, precision=precision)
    if dropout:
        if original is bias:
            return NotImplemented
        rest = g, q, k, v, bias, out, sums, seed, offset, dropout, list(mask), causal
        return p.call(aten._scaled_dot_product_efficient_attention_backward.default, rest, {"scale": scale}, p.result)
    bias = bias if wanted[3] else _unbroadcast(p, bias)
    return _backward(p, "attention_efficient_backward", **how, bias=bias)


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
    return _forward(
        p, "attention_cudnn", q=q, k=k, v=v, bias=_library_bias(p, bias), sums=sums, causal=causal, scale=scale
    )


@decomposition(aten._scaled_dot_product_cudnn_attention_backward.default)
def cudnn_backward(p: Lowering, g: Node, *args: Any, scale: float | None = None) -> Any:
    q, k, v, out, sums, _, _, bias, first_q, first_k, _, _, dropout, causal = args
    if dropout or first_q is not None or first_k is not None:
        return NotImplemented
    how = {"q": q, "k": k, "v": v, "bias": _library_bias(p, bias), "causal": causal, "scale": scale}
    return _backward(p, "attention_cudnn_backward", **how, grad=g, out=out, sums=sums)
