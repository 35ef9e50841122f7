"""Wrappers of operators whose kernels require more than their schema states; a graph calls them like operators.

The LSTM layers of oneDNN read their arguments as row-major and ignore strides. The forward returns a workspace for the
backward, whose size no metadata rule knows, and no workspace if gradients are disabled. In a program the workspace is a
view without elements of the real one's memory, which agrees with the metadata; the backward recovers the whole
workspace from the view's storage.

Memory-efficient attention returns seed and offset of its dropout on the CPU, but on the GPU while a CUDA graph is
recorded; its backward expects them on that device without a check. In a program they are always tensors on the GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from smelt.abi.arena import extent
from smelt.abi.cudnn_attention import cudnn_attention_backward
from smelt.base.errors import SmeltError
from smelt.base.torch_c import recording

aten = torch.ops.aten


def _contiguous(args: tuple[Any, ...]) -> list[Any]:
    return [a.contiguous() if isinstance(a, torch.Tensor) else a for a in args]


def lstm_layer(*args: Any) -> tuple[torch.Tensor, ...]:
    """Runs `aten.mkldnn_rnn_layer`; returns output, hidden state, cell state, workspace."""
    *results, workspace = recording(True, aten.mkldnn_rnn_layer.default, *_contiguous(args))
    if workspace is None:
        workspace = torch.empty(0, dtype=torch.uint8)
    return (*results, workspace[:0])


def lstm_layer_backward(*args: Any) -> tuple[torch.Tensor, ...]:
    """Runs `aten.mkldnn_rnn_layer_backward`, whose last argument is the workspace; returns the gradients of input,
    weights, states.

    Raises:
        SmeltError: the saved workspace was copied, so that the real one cannot be recovered, or the forward made no
            workspace.
    """
    *operands, workspace = args
    storage = workspace.untyped_storage()
    if not storage.nbytes():
        raise SmeltError(
            "the backward of an LSTM without the workspace of its forward",
            why="a hook on saved tensors copied it, or the forward ran in eval mode",
            hint="train the LSTM in train mode and without such hooks",
        )
    workspace_bytes = torch.empty(0, dtype=torch.uint8).set_(storage)
    return aten.mkldnn_rnn_layer_backward.default(*_contiguous(tuple(operands)), workspace_bytes)


def group_norm(x: torch.Tensor, *args: Any) -> tuple[torch.Tensor, ...]:
    """Runs `aten.native_group_norm` for any strides: the input is first made a dense image batch, row-major or channels
    last, as the kernel requires.

    The kernel reads weight and bias as row-major and ignores their strides.
    """
    return aten.native_group_norm.default(_image_batch(x), *_contiguous(args))


def group_norm_backward(grad: torch.Tensor, x: torch.Tensor, *args: Any) -> tuple[torch.Tensor, ...]:
    """Runs `aten.native_group_norm_backward` for any strides; gradient and input are brought into one format."""
    x = _image_batch(x)
    last = not x.is_contiguous()
    grad = grad.contiguous(memory_format=torch.channels_last) if last else grad.contiguous()
    return aten.native_group_norm_backward.default(grad, x, *_contiguous(args))


def layer_norm_backward(*args: Any) -> tuple[torch.Tensor, ...]:
    """Runs `aten.native_layer_norm_backward`, which reads the statistics as row-major."""
    return aten.native_layer_norm_backward.default(*_contiguous(args))


def _reading_rows(op: Any) -> Callable[..., Any]:
    """Returns `op` with its arguments made row-major: the kernel ignores strides, or does not support others."""
    return lambda *args: op(*_contiguous(args))


def _image_batch(x: torch.Tensor) -> torch.Tensor:
    return x if x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last) else x.contiguous()


def as_complex(pairs: torch.Tensor) -> torch.Tensor:
    """Runs `aten.view_as_complex_copy` for any strides and any storage offset."""
    return aten.view_as_complex_copy.default(_at_multiple_of(2 * pairs.itemsize, pairs.contiguous()))


def as_type(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Runs `aten.view(dtype)` for any storage offset: a tensor that is not aligned to the new dtype is copied first.

    The offset may differ from eager's if a copy was replaced by its source. Whether eager refuses the view is decided
    when the function is captured.
    """
    return aten.view.dtype(_at_multiple_of(dtype.itemsize, x), dtype)


def _at_multiple_of(size: int, x: torch.Tensor) -> torch.Tensor:
    """Returns x if its offset is a multiple of `size` bytes, else a copy of its memory with offset 0 and x's
    strides.
    """
    if x.storage_offset() * x.itemsize % size == 0:
        return x
    elements = extent(x.shape, x.stride()) if x.numel() else 0
    return x.as_strided((elements,), (1,)).clone().as_strided(x.shape, x.stride(), 0)


def as_pairs(x: torch.Tensor) -> torch.Tensor:
    """Runs `aten.view_as_real_copy`, also for tensors with the conjugate or negative bit set."""
    return aten.view_as_real_copy.default(x.resolve_conj().resolve_neg())


def efficient_attention(q: torch.Tensor, *args: Any, **options: Any) -> tuple[torch.Tensor, ...]:
    """Runs `aten._scaled_dot_product_efficient_attention`, with seed and offset moved to the device of the other
    results.
    """
    out, sums, *numbers = aten._scaled_dot_product_efficient_attention.default(q, *args, **options)
    return (out, sums, *(number.to(q.device) for number in numbers))


def efficient_attention_backward(grad: torch.Tensor, *args: Any, **options: Any) -> tuple[Any, ...]:
    """The backward of `efficient_attention`."""
    first, numbers, rest = args[:6], args[6:8], args[8:]
    op = aten._scaled_dot_product_efficient_attention_backward.default
    return op(grad, *first, *_where_it_draws(grad, rest[0], numbers), *rest, **options)


def efficient_attention_forward(q: torch.Tensor, *args: Any, **options: Any) -> tuple[Any, ...]:
    """Runs `aten._efficient_attention_forward`, with seed and offset moved to q's device; its last two results are
    numbers.
    """
    out, sums, seed, offset, *sizes = aten._efficient_attention_forward.default(q, *args, **options)
    return (out, sums, seed.to(q.device), offset.to(q.device), *sizes)


def efficient_attention_forward_backward(grad: torch.Tensor, *args: Any, **options: Any) -> tuple[Any, ...]:
    """The backward of `efficient_attention_forward`."""
    first, numbers, rest = args[:11], args[11:13], args[13:]
    numbers = _where_it_draws(grad, first[-1], numbers)
    return aten._efficient_attention_backward.default(grad, *first, *numbers, *rest, **options)


def _where_it_draws(grad: torch.Tensor, dropout: float, numbers: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns seed and offset on the device where the attention's backward expects them: the CPU, or the GPU while a
    CUDA graph is recorded.
    """
    if dropout and not (grad.is_cuda and torch.cuda.is_current_stream_capturing()):
        return tuple(number.cpu() for number in numbers)
    return numbers


def repeat_interleave(repeats: torch.Tensor, **options: Any) -> torch.Tensor:
    """Runs `aten.repeat_interleave` with a check of the repeats: given the length of its result, the CPU kernel does
    not validate them, and negative ones would make it write out of bounds.

    Raises:
        RuntimeError: some repeats are negative.
    """
    if repeats.device.type == "cpu" and repeats.numel() and repeats.min() < 0:
        raise RuntimeError("repeats can not be negative")
    return aten.repeat_interleave.Tensor(repeats, **options)


KERNELS: dict[Any, Callable[..., Any]] = {
    aten.mkldnn_rnn_layer.default: lstm_layer,
    aten.mkldnn_rnn_layer_backward.default: lstm_layer_backward,
    aten.native_group_norm.default: group_norm,
    aten.native_group_norm_backward.default: group_norm_backward,
    aten.native_layer_norm_backward.default: layer_norm_backward,
    aten._pdist_forward.default: _reading_rows(aten._pdist_forward.default),
    aten._pdist_backward.default: _reading_rows(aten._pdist_backward.default),
    aten.adaptive_max_pool3d_backward.default: _reading_rows(aten.adaptive_max_pool3d_backward.default),
    aten.fractional_max_pool2d_backward.default: _reading_rows(aten.fractional_max_pool2d_backward.default),
    aten.fractional_max_pool3d_backward.default: _reading_rows(aten.fractional_max_pool3d_backward.default),
    aten.repeat_interleave.Tensor: repeat_interleave,
    aten.view_as_complex_copy.default: as_complex,
    aten.view.dtype: as_type,
    aten.view_as_real_copy.default: as_pairs,
    aten._scaled_dot_product_efficient_attention.default: efficient_attention,
    aten._scaled_dot_product_efficient_attention_backward.default: efficient_attention_backward,
    aten._efficient_attention_forward.default: efficient_attention_forward,
    aten._efficient_attention_backward.default: efficient_attention_forward_backward,
    aten._scaled_dot_product_cudnn_attention_backward.default: cudnn_attention_backward,
}
"""For each operator of this table, the function that runs instead of it."""


BINDINGS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.cat.default: torch.cat,
    torch.ops.aten.stack.default: torch.stack,
    torch.ops.aten.nonzero.default: torch.nonzero,
    torch.ops.aten.nonzero_static.default: torch.nonzero_static,
}
"""Operators that are called through their C binding, which takes half the time for long lists and small tensors."""
