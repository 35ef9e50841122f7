"""Metadata rules of layers that eager runs as one operator, for which PyTorch has no meta kernel, or a wrong one.

These are fused steps of recurrent networks on CUDA, the fast path of transformer encoders in evaluation, and norms over
one element, whose meta kernel keeps a dimension that is counted from the end.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import torch

from smelt.base.torch_private import OpOverload
from smelt.graph.ir.meta import TensorMeta, contiguous_stride
from smelt.graph.ir.storage_view import Layout, layout_for
from smelt.graph.meta_rules.elementwise import val_of
from smelt.graph.meta_rules.layouts import arguments_by_name, in_range

aten = torch.ops.aten


def _row_major(like: TensorMeta, shape: Sequence[int], dtype: torch.dtype | None = None) -> Layout:
    return layout_for(tuple(shape), dtype or like.dtype, contiguous_stride(tuple(shape)), like.device)


def _lstm_cell(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    """Returns (hidden, cell, the four gates)."""
    of = arguments_by_name(func, args, kwargs)
    gates, cell = val_of(of["input_gates"]), val_of(of["cx"])
    return _row_major(cell, cell.shape), _row_major(cell, cell.shape), _row_major(gates, gates.shape)


def _lstm_cell_backward(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    of = arguments_by_name(func, args, kwargs)
    cell, gates = val_of(of["cx"]), val_of(of["workspace"])
    bias = _row_major(gates, gates.shape[1:]) if of["has_bias"] else None
    return _row_major(gates, gates.shape), _row_major(cell, cell.shape), bias


def _gru_cell(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    """Returns (hidden, values for the backward: five times as wide)."""
    hidden = val_of(arguments_by_name(func, args, kwargs)["hx"])
    rows, width = hidden.shape
    return _row_major(hidden, hidden.shape), _row_major(hidden, (rows, width * 5))


def _gru_cell_backward(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    of = arguments_by_name(func, args, kwargs)
    grad, kept = val_of(of["grad_hy"]), val_of(of["workspace"])
    rows, width = grad.shape
    gates, bias = _row_major(kept, (rows, width * 3)), _row_major(kept, (width * 3,)) if of["has_bias"] else None
    return gates, gates, _row_major(grad, grad.shape), bias, bias


def _encoder_layer(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    src = val_of(args[0])
    return _row_major(src, src.shape)


def _vector_norm(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    of = arguments_by_name(func, args, kwargs)
    val, order, dims = val_of(of["self"]), of["ord"], of["dim"]
    dims = (dims,) if isinstance(dims, int) else tuple(dims or range(val.ndim))
    gone = {d % max(val.ndim, 1) for d in dims}
    dtype = of["dtype"] or val.dtype
    if not all(in_range(d, val.ndim) for d in dims) or len(gone) < len(dims):
        return None
    if not _widens(val.dtype, dtype) or not isinstance(order, (int, float)):
        return None
    if not all(isinstance(n, int) and n for n in val.shape):  # for symbolic or empty sizes some orders are refused
        return None
    return _row_major(val, _without(val.shape, gone, of["keepdim"]), dtype)


def _without(shape: Sequence[Any], gone: Container[int], keep: bool) -> list[Any]:
    """Returns the sizes without these dimensions, or with size 1 for them."""
    return [1 if d in gone else n for d, n in enumerate(shape) if keep or d not in gone]


def _widens(source: torch.dtype, result: torch.dtype) -> bool:
    return source.is_floating_point and result.is_floating_point and source.itemsize <= result.itemsize


FUSED_LAYERS: dict[OpOverload, Callable[..., Any]] = {
    aten._thnn_fused_lstm_cell.default: _lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_backward,
    aten._thnn_fused_gru_cell.default: _gru_cell,
    aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
    aten._transformer_encoder_layer_fwd.default: _encoder_layer,
    aten.linalg_vector_norm.default: _vector_norm,
}
