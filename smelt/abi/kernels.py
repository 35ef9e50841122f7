"""Wrappers of operators whose kernels require more than their schema states; a graph calls them like operators.

The LSTM layers of oneDNN read their arguments as row-major, whatever their strides say. The forward hands the backward
a workspace, of a size that no metadata rule can know, and leaves it out where gradients are off. In a program the
workspace is a tensor without elements, as its metadata says, which is a view of the real one's memory; the backward
recovers the whole workspace from it.

Memory-efficient attention keeps the numbers of its dropout on the CPU where it runs by itself, on the GPU where it is
recorded in a CUDA graph, and its backward reads them there without looking. In a program they are tensors of the GPU.
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
    """`aten.mkldnn_rnn_layer`: output, hidden state, cell state, workspace."""
    *results, workspace = recording(True, aten.mkldnn_rnn_layer.default, *_contiguous(args))
    if workspace is None:
        workspace = torch.empty(0, dtype=torch.uint8)
    return (*results, workspace[:0])


def lstm_layer_backward(*args: Any) -> tuple[torch.Tensor, ...]:
    """`aten.mkldnn_rnn_layer_backward`, whose last argument is the workspace: gradients of input, weights, states.

    Raises:
        SmeltError: somebody copied the saved workspace, or the forward made none.
    """
    *given, workspace = args
    storage = workspace.untyped_storage()
    if not storage.nbytes():
        raise SmeltError(
            "the backward of an LSTM without the workspace of its forward",
            why="a hook on saved tensors copied it, or the forward ran in eval mode",
            hint="train the LSTM in train mode and without such hooks",
        )
    whole = torch.empty(0, dtype=torch.uint8).set_(storage)
    return aten.mkldnn_rnn_layer_backward.default(*_contiguous(tuple(given)), whole)


def group_norm(x: torch.Tensor, *args: Any) -> tuple[torch.Tensor, ...]:
    """`aten.native_group_norm` of any strides: the kernel wants a dense image batch, row-major or channels last.

    The weight and the bias it reads as row-major, whatever their strides say.
    """
    return aten.native_group_norm.default(_image_batch(x), *_contiguous(args))


def group_norm_backward(grad: torch.Tensor, x: torch.Tensor, *args: Any) -> tuple[torch.Tensor, ...]:
    """`aten.native_group_norm_backward`, likewise; both arguments in one format."""
    x = _image_batch(x)
    last = not x.is_contiguous()
    grad = grad.contiguous(memory_format=torch.channels_last) if last else grad.contiguous()
    return aten.native_group_norm_backward.default(grad, x, *_contiguous(args))


def layer_norm_backward(*args: Any) -> tuple[torch.Tensor, ...]:
    """`aten.native_layer_norm_backward`, which reads the statistics as row-major."""
    return aten.native_layer_norm_backward.default(*_contiguous(args))


def _reading_rows(op: Any) -> Callable[..., Any]:
    """`op`, a kernel that reads its arguments as row-major or refuses others: what calls it has made them so."""
    return lambda *args: op(*_contiguous(args))


def _image_batch(x: torch.Tensor) -> torch.Tensor:
    return x if x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last) else x.contiguous()


def as_complex(pairs: torch.Tensor) -> torch.Tensor:
    """`aten.view_as_complex_copy` of any strides, and of what begins anywhere."""
    return aten.view_as_complex_copy.default(_beginning_at(2 * pairs.itemsize, pairs.contiguous()))


def as_type(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`aten.view` of a tensor that begins anywhere: of a copy in the middle of one of the larger numbers.

    A copy that became the argument of which it was one begins where that does. Whether eager refuses the view is asked
    where a function is captured.
    """
    return aten.view.dtype(_beginning_at(dtype.itemsize, x), dtype)


def _beginning_at(size: int, x: torch.Tensor) -> torch.Tensor:
    """x, or a copy of its memory that begins at a multiple of `size` bytes, with x's strides."""
    if x.storage_offset() * x.itemsize % size == 0:
        return x
    elements = extent(x.shape, x.stride()) if x.numel() else 0
    return x.as_strided((elements,), (1,)).clone().as_strided(x.shape, x.stride(), 0)


def as_pairs(x: torch.Tensor) -> torch.Tensor:
    """`aten.view_as_real_copy`, also of values that wait to be conjugated or negated."""
    return aten.view_as_real_copy.default(x.resolve_conj().resolve_neg())


def efficient_attention(q: torch.Tensor, *args: Any, **options: Any) -> tuple[torch.Tensor, ...]:
    """`aten._scaled_dot_product_efficient_attention`, whose seed and offset lie where its other results do."""
    out, sums, *numbers = aten._scaled_dot_product_efficient_attention.default(q, *args, **options)
    return (out, sums, *(number.to(q.device) for number in numbers))


def efficient_attention_backward(grad: torch.Tensor, *args: Any, **options: Any) -> tuple[Any, ...]:
    """The backward of that one."""
    first, numbers, rest = args[:6], args[6:8], args[8:]
    op = aten._scaled_dot_product_efficient_attention_backward.default
    return op(grad, *first, *_where_it_draws(grad, rest[0], numbers), *rest, **options)


def efficient_attention_forward(q: torch.Tensor, *args: Any, **options: Any) -> tuple[Any, ...]:
    """`aten._efficient_attention_forward`, likewise; two numbers come last."""
    out, sums, seed, offset, *sizes = aten._efficient_attention_forward.default(q, *args, **options)
    return (out, sums, seed.to(q.device), offset.to(q.device), *sizes)


def efficient_attention_forward_backward(grad: torch.Tensor, *args: Any, **options: Any) -> tuple[Any, ...]:
    """The backward of that one."""
    first, numbers, rest = args[:11], args[11:13], args[13:]
    numbers = _where_it_draws(grad, first[-1], numbers)
    return aten._efficient_attention_backward.default(grad, *first, *numbers, *rest, **options)


def _where_it_draws(grad: torch.Tensor, dropout: float, numbers: tuple[Any, ...]) -> tuple[Any, ...]:
    """A seed and an offset where an attention's backward reads them: on the host, but while a CUDA graph records."""
    if dropout and not (grad.is_cuda and torch.cuda.is_current_stream_capturing()):
        return tuple(number.cpu() for number in numbers)
    return numbers


def repeat_interleave(repeats: torch.Tensor, **options: Any) -> torch.Tensor:
    """`aten.repeat_interleave`: the kernel on a CPU that is told how long its result is looks at nothing else, and
    writes beside that where some are negative.

    Raises:
        RuntimeError: some are negative.
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
"""Operator -> the function that runs instead of it."""


BINDINGS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.cat.default: torch.cat,
    torch.ops.aten.stack.default: torch.stack,
    torch.ops.aten.nonzero.default: torch.nonzero,
    torch.ops.aten.nonzero_static.default: torch.nonzero_static,
}
"""Operators whose binding in C takes half the time, of a long list or of a small tensor."""
