"""Recurrent layers on CUDA as calls of cuDNN's operator: eager's own path reads the memory of weights.

Between layers with dropout an ordinary dropout is used; the operator's own needs a state made on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from smelt.base.torch_c import disable_autocast
from smelt.graph.ir.meta import contiguous_stride
from smelt.graph.ir.storage_view import Layout, ViewedTensor, layout_for, layout_of

aten = torch.ops.aten

_MODES: dict[Any, int] = {torch.rnn_relu: 0, torch.rnn_tanh: 1, torch.lstm: 2, torch.gru: 3}
_LSTM = 2


def recurrent_layers(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
    """Returns a function to call instead of one of these torch functions on trace tensors; None if none is needed."""
    mode = _MODES.get(target) if target.__hash__ is not None else None
    # other calls have packed sequences
    if mode is None or kwargs or len(args) != 9 or not isinstance(args[2], (tuple, list)):
        return None
    x = args[0]
    if not isinstance(x, ViewedTensor) or not x.is_cuda or not torch.backends.cudnn.is_acceptable(x):
        return None
    return lambda *given: _layers(mode, *given)


def _layers(
    mode: int,
    x: Tensor,
    states: Any,
    weights: Sequence[Tensor],
    has_biases: bool,
    count: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    hidden, cell = states if mode == _LSTM else (states, None)
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        x, hidden, cell = x.to(dtype), hidden.to(dtype), None if cell is None else cell.to(dtype)
        weights = [w.to(dtype) for w in weights]
    with disable_autocast():
        if not dropout or not train or count == 1:
            found = _call(mode, x, hidden, cell, weights, has_biases, count, train, bidirectional, batch_first)
            return found if mode == _LSTM else found[:2]
        directions, each, last = 1 + bidirectional, len(weights) // count, []
        for i in range(count):
            rows = slice(i * directions, (i + 1) * directions)
            own = weights[i * each : (i + 1) * each]
            state = hidden[rows], None if cell is None else cell[rows]
            x, *after = _call(mode, x, *state, own, has_biases, 1, train, bidirectional, batch_first)
            last.append(after)
            if i + 1 < count:
                x = torch.nn.functional.dropout(x, dropout)
        kept = list(zip(*last, strict=True))[: 2 if mode == _LSTM else 1]
        return x, *(torch.cat(tensors) for tensors in kept)


def _call(
    mode: int,
    x: Tensor,
    hidden: Tensor,
    cell: Tensor | None,
    weights: Sequence[Tensor],
    has_biases: bool,
    count: int,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Returns (output, last hidden, last cell)."""
    width, projected = hidden.shape[2], 0
    if cell is not None and cell.shape[2] != width:
        width, projected = cell.shape[2], width
    rows = (4 if has_biases else 2) + (projected > 0)
    options: tuple[Any, ...] = (mode, width, projected, count, batch_first, 0.0, train, bidirectional, [], None)
    found = aten._cudnn_rnn.default(x.contiguous(), [*weights], rows, None, hidden.contiguous(), cell, *options)
    return tuple(found[:3])


def recurrent_answer(func: Any, args: Sequence[Any], kwargs: Any) -> tuple[Layout, ...]:
    """Returns the operator's results; the size of the reserve for the backward is known only to cuDNN, which is run
    once for it.
    """

    def real(value: Any) -> Any:
        if isinstance(value, ViewedTensor):
            return torch.zeros(value.shape, dtype=value.dtype, device=value.device)
        return [real(each) for each in value] if isinstance(value, (list, tuple)) else value

    try:
        with torch.no_grad():
            return tuple(map(layout_of, func(*map(real, args))))
    except RuntimeError:  # without a device the size of the reserve remains unknown
        pass
    x, hidden = (args[i].storage_view.layout.val for i in (0, 4))
    cell = None if args[5] is None else args[5].storage_view.layout.val
    out = (*x.shape[:2], (args[8] or args[7]) * (1 + args[13]))
    last = (0,) if cell is None else cell.shape
    shapes = (out, x.dtype), (hidden.shape, x.dtype), (last, x.dtype), ((0,), torch.uint8), ((0,), x.dtype)
    return tuple(layout_for(shape, dtype, contiguous_stride(shape), x.device) for shape, dtype in shapes)


def recurrent_backward_answer(func: Any, args: Sequence[Any], kwargs: Any) -> tuple[Any, ...]:
    """Returns the gradients of input, states and each weight."""

    def like(given: Any) -> Layout:
        val = given.storage_view.layout.val
        return layout_for(val.shape, val.dtype, contiguous_stride(val.shape), val.device)

    x, weights, _, _, hidden, cell = args[:6]
    return (
        like(x),
        like(hidden),
        None if cell is None else like(cell),
        [like(w) for w in weights] if args[21][3] else [],
    )
