"""Metadata rules of the operators that models are made of.

PyTorch's meta kernels support all of these, but most of them are Python programs that load torch's own compiler at the
first call (over a second of cold start), and some give strides that differ from the CPU kernels'. A rule returns None
for an unusual case; then the meta kernel is run, which also raises eager's error for wrong arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.base.torch_private import OpOverload, schema_of
from smelt.graph.ir.meta import (
    TensorMeta,
    channels_last_stride,
    contiguous_stride,
    is_channels_last,
    is_dense,
    same_steps,
)
from smelt.graph.ir.schema import OpInfo
from smelt.graph.ir.storage_view import Layout, layout_for
from smelt.graph.ir.sym_bool import SymbolicPredicate, compare
from smelt.graph.meta_rules.elementwise import (
    broadcast,
    dense_stride,
    elementwise_rule,
    is_row_major,
    result_stride,
    val_of,
)
from smelt.graph.meta_rules.fourier import transformed
from smelt.graph.meta_rules.fused_layers import FUSED_LAYERS
from smelt.graph.meta_rules.layouts import in_range
from smelt.graph.meta_rules.recurrent import recurrent_answer, recurrent_backward_answer
from smelt.graph.meta_rules.symbolic_rules import picked
from smelt.graph.meta_rules.symbolic_views import view_stride
from smelt.shapes.size import Size, is_symbolic, same, same_all
from smelt.shapes.unbacked import is_unbacked

aten = torch.ops.aten

Rule = Callable[..., Any]


def rule_for(func: OpOverload, info: OpInfo) -> Rule | None:
    """Returns the rule `rule(func, args, kwargs)` of an operator, which returns layouts, or None for "use the meta
    kernel".
    """
    if func in _RULES:
        return _RULES[func]
    return elementwise_rule(func, info)


def _fresh(like: TensorMeta, shape: Sequence[int], dtype: torch.dtype | None = None, stride: Any = None) -> Layout:
    shape = tuple(shape)
    return layout_for(shape, dtype or like.dtype, tuple(stride or contiguous_stride(shape)), like.device)


def _as_format(val: TensorMeta, dtype: torch.dtype | None = None) -> Layout:
    """Returns a dense result of the same shape: channels last if `val` is, else row-major."""
    last = is_channels_last(val.shape, val.stride)
    return _fresh(val, val.shape, dtype, channels_last_stride(val.shape) if last else None)


# -- products, concatenation, reductions -------------------------------------------------------------------------------


def _addmm(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    bias, a, b = (val_of(t) for t in args[:3])
    fits = a.ndim == b.ndim == 2 and a.shape[1] == b.shape[0] and a.dtype == b.dtype == bias.dtype
    shape = (a.shape[0], b.shape[1]) if fits else ()
    common = broadcast([bias, _fresh(a, shape).val]) if fits else None
    if common is None or len(common) != 2 or common != shape:
        return None
    return _fresh(a, shape)


def _mm(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    a, b = val_of(args[0]), val_of(args[1])
    fits = not kwargs and len(args) == 2 and a.ndim == b.ndim and a.dtype == b.dtype
    if not fits or a.ndim != (2 if func is aten.mm.default else 3) or a.shape[-1] != b.shape[-2]:
        return None
    return _fresh(a, (*a.shape[:-1], b.shape[-1])) if a.shape[:-2] == b.shape[:-2] else None


def _cat(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    tensors = _joined_tensors([val_of(t) for t in args[0]])
    if kwargs or tensors is None:
        return None
    first, dim = tensors[0], (args[1] if len(args) > 1 else 0) % tensors[0].ndim
    rest = [t.shape[:dim] + t.shape[dim + 1 :] for t in tensors]
    if any(r != rest[0] for r in rest) or (first.ndim == 1 and any(map(_is_empty_list, tensors))):
        return None
    shape = (*first.shape[:dim], sum(t.shape[dim] for t in tensors), *first.shape[dim + 1 :])
    last = all(is_channels_last(t.shape, t.stride) for t in tensors)
    return _fresh(first, shape, None, channels_last_stride(shape) if last else None)


def _joined_tensors(tensors: list[TensorMeta]) -> list[TensorMeta] | None:
    """Returns the tensors to concatenate, if they have one dtype and number of dimensions, else None."""
    if not tensors or len({t.dtype for t in tensors}) > 1:
        return None
    if len({t.ndim for t in tensors}) > 1:  # an empty list of numbers adds nothing
        tensors = [t for t in tensors if not _is_empty_list(t)] or tensors
    return tensors if tensors[0].shape and len({t.ndim for t in tensors}) == 1 else None


def _is_empty_list(meta: TensorMeta) -> bool:
    return same_all(meta.shape, (0,))


def _stack(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    tensors, dim = [val_of(t) for t in args[0]], args[1] if len(args) > 1 else 0
    if not tensors:
        return None
    first = tensors[0]
    agree = all(t.dtype is first.dtype and t.shape == first.shape for t in tensors)
    if kwargs or not agree or not -first.ndim - 1 <= dim <= first.ndim:
        return None
    dim %= first.ndim + 1
    shape = (*first.shape[:dim], len(tensors), *first.shape[dim:])
    if dim == first.ndim:
        last = all(is_channels_last((*t.shape, 1), (*t.stride, 1)) for t in tensors)
        return _fresh(first, shape, None, channels_last_stride(shape) if last else None)
    last = all(is_channels_last(t.shape, t.stride) for t in tensors)
    return _fresh(first, shape, None, _split_stride(first.shape, dim, len(tensors)) if last else None)


def _split_stride(shape: Sequence[int], dim: int, count: int) -> tuple[int, ...]:
    """Returns the strides of channels-last images concatenated along `dim`, if that dimension is then split into
    `count`.
    """
    joined = (*shape[:dim], shape[dim] * count, *shape[dim + 1 :])
    stride = channels_last_stride(joined)
    if is_symbolic(joined):
        new = (*shape[:dim], count, *shape[dim:])
        return view_stride(joined, stride, new) or (*stride[:dim], stride[dim] * shape[dim], *stride[dim:])
    tensor = torch.empty_strided(joined, stride, device="meta")
    return tensor.view((*shape[:dim], count, *shape[dim:])).stride()


def _same_row_major(position: int = 0) -> Rule:
    """Returns the rule of a row-major result with the shape and dtype of the argument at `position`."""

    def rule(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
        return None if kwargs else _fresh(val_of(args[position]), val_of(args[position]).shape)

    return rule


def _is_empty(val: TensorMeta) -> bool:
    """Whether it certainly has no elements; nothing is assumed about symbolic sizes."""
    return any(same(n, 0) for n in val.shape)


def _empty_gradient(rule: Rule) -> Rule:
    """Returns `rule`, for calls in which an argument has no elements: meta kernels then divide by zero, or raise
    errors.
    """

    def of_nothing(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
        return rule(func, args, kwargs) if _is_empty(val_of(args[1])) else None

    return of_nothing


def _pair_gradient(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    """Returns the gradient of a loss of pairs, in the shape and dtype to which both promote."""
    x, target = val_of(args[1]), val_of(args[2])
    shape = torch.broadcast_shapes(x.shape, target.shape)
    return _fresh(x, shape, torch.promote_types(x.dtype, target.dtype))


def _drawn_in_rows(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    """Returns random numbers for each element of a tensor, row-major for any strides of the tensor."""
    val = val_of(args[0])
    known = val.dtype.is_floating_point and all(name == "generator" and v is None for name, v in kwargs.items())
    return _fresh(val, val.shape) if known else None


def _softmax(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    x, dim, to_float = args[0], args[1], args[2] if len(args) > 2 else False
    val = val_of(x)
    if kwargs or not val.dtype.is_floating_point or not isinstance(to_float, bool) or not in_range(dim, val.ndim):
        return None
    return _fresh(val, val.shape, torch.float32 if to_float else None)


def _softmax_backward(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    grad, _, _, dtype = args
    return _fresh(val_of(grad), val_of(grad).shape, dtype)


def _dropout_backward(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    """Returns a gradient, on a GPU in the incoming gradient's format; on a CPU in that of the product of gradient, mask
    and a float.
    """
    val, mask = val_of(args[0]), val_of(args[1])
    floating = val.dtype.is_floating_point or val.dtype.is_complex
    if val.device.type == "cuda":
        return _as_format(val)
    if not same_all(val.shape, mask.shape):
        return None
    made = _fresh(mask, mask.shape, None, dense_stride(mask)).val
    dtype = None if floating else torch.get_default_dtype()
    return _fresh(val, val.shape, dtype, result_stride(val.shape, [val, made], False))


def _safe_softmax(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    if kwargs or len(args) > 2 or not val.dtype.is_floating_point or not in_range(args[1], val.ndim):
        return None
    return _fresh(val, val.shape)


def _log_sigmoid(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    """Returns a result that is row-major on a CPU; on a GPU in the order of its argument, without the second result."""
    val = val_of(args[0])
    if val.device.type == "cpu":
        return _fresh(val, val.shape), _fresh(val, val.shape)
    return _fresh(val, val.shape, None, dense_stride(val)), _fresh(val, (0,))


def _power_of_number(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    """Returns a row-major result, unlike other elementwise operators; the dtype is found by running the operator."""
    val = val_of(args[1])
    return _fresh(val, val.shape, func(args[0], torch.ones((0,) * len(val.shape), dtype=val.dtype)).dtype)


def _ldexp(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    """Returns a product with a power of a scalar, which is row-major."""
    a, b = val_of(args[0]), val_of(args[1])
    shape = broadcast([a, b])
    if shape is None:
        return None
    dtype = func(*(torch.ones((0,) * v.ndim, dtype=v.dtype) for v in (a, b))).dtype
    return _fresh(a if a.shape else b, shape, dtype, result_stride(shape, [a, _fresh(b, b.shape).val], False))


def _nll_loss(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    x, target, _, reduction, _ = args
    val = val_of(x)
    if val.ndim not in (1, 2) or val_of(target).shape != val.shape[:-1]:
        return None
    each = reduction == 0 and val.ndim == 2
    return _fresh(val, val.shape[:1] if each else ()), _fresh(val, ())


def _reduced(val: TensorMeta, dims: Sequence[int] | None, keep: bool) -> tuple[int, ...] | None:
    """Returns the shape without `dims` (without all dimensions if there are none), or None if they do not fit."""
    ndim = max(val.ndim, 1)
    gone = {d % ndim for d in dims} if dims else set(range(ndim))
    if dims and (len(gone) < len(dims) or not all(in_range(d, val.ndim) for d in dims)):
        return None
    return tuple(1 if d in gone else n for d, n in enumerate(val.shape) if keep or d not in gone)


def _mean(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    shape = _reduced(val, args[1], args[2] if len(args) > 2 else False)
    if kwargs or shape is None or not val.dtype.is_floating_point:
        return None
    return _fresh(val, shape)


def _sum(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    shape = _reduced(val, args[1] if len(args) > 1 else None, args[2] if len(args) > 2 else False)
    if shape is None or kwargs.keys() - {"dtype"}:
        return None
    integral = not (val.dtype.is_floating_point or val.dtype.is_complex)
    return _fresh(val, shape, kwargs.get("dtype") or (torch.int64 if integral else None))


def _cumsum(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    if kwargs or not in_range(args[1], val.ndim):
        return None
    integral = not (val.dtype.is_floating_point or val.dtype.is_complex)
    return _fresh(val, val.shape, torch.int64 if integral else None)


# -- indexing and creation -----------------------------------------------------------------------------------------


def _embedding(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    weight, indices = val_of(args[0]), val_of(args[1])
    if weight.ndim != 2 or indices.dtype not in (torch.int64, torch.int32):
        return None
    return _fresh(weight, (*indices.shape, weight.shape[1]))


def _embedding_bag(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    """Run the real operator on one row of zeros: which of the extra results are empty depends on its kernel's code
    path."""
    values = (*args, *(p.default_value for p in schema_of(func).arguments[len(args) :]))
    weight, indices, offsets, by_frequency, mode, sparse, factors, last, padding = values
    val, index, offset = val_of(weight), val_of(indices), val_of(offsets)
    if kwargs or val.device.type != "cpu" or val.ndim != 2 or index.ndim != 1 or offset.ndim != 1:
        return None
    if val.symbolic or index.symbolic or offset.symbolic:
        return None
    table = torch.empty_strided((1, val.shape[1]), val.stride, dtype=val.dtype).zero_()
    starts = torch.zeros(offset.shape, dtype=offset.dtype)
    if last:
        starts[-1:] = index.shape[0]
    scale = None
    if factors is not None:
        given = val_of(factors)
        scale = torch.empty_strided(given.shape, given.stride, dtype=given.dtype).zero_()
    zero_indices = torch.zeros(index.shape, dtype=index.dtype)
    out = func(table, zero_indices, starts, by_frequency, mode, sparse, scale, last, min(padding, 0))
    return tuple(layout_for(tuple(o.shape), o.dtype, tuple(o.stride()), val.device) for o in out)


def _gather(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    val, dim, index = val_of(args[0]), args[1], val_of(args[2])
    if kwargs or val.ndim != index.ndim or not in_range(dim, val.ndim) or index.dtype is not torch.int64:
        return None
    within = all(d == dim % val.ndim or n <= m for d, (n, m) in enumerate(zip(index.shape, val.shape, strict=True)))
    return _fresh(val, index.shape) if within and val.ndim else None


def _is_determined_by_rows(val: TensorMeta, shape: Sequence[int]) -> bool:
    """Whether the result of indexing by rows is certainly row-major. With sizes 0 or 1 it depends on the order of
    strides.

    Unbacked sizes are assumed to be more than 0.
    """
    empty = any(size == 0 for size in (*val.shape, *shape) if not is_unbacked(size))
    return not empty and is_row_major(val) and (is_unbacked(*val.shape) or val.stride == contiguous_stride(val.shape))


def _index(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    """Indexing by integer indices of neighbouring dimensions of a row-major tensor (or of all dimensions of any
    tensor).
    """
    val = val_of(args[0])
    indexed_dims = [d for d, i in enumerate(args[1]) if i is not None]
    if not indexed_dims or len(args[1]) > val.ndim:
        return None
    if indexed_dims != list(range(indexed_dims[0], indexed_dims[-1] + 1)):
        return picked(func, args, kwargs)
    indices = [val_of(args[1][d]) for d in indexed_dims]
    shape = broadcast(indices)
    plain = all(i.dtype in (torch.int64, torch.int32) and is_row_major(i) for i in indices)
    if shape is None or not plain or not (_is_determined_by_rows(val, shape) or len(indices) == val.ndim):
        return picked(func, args, kwargs)
    return _fresh(val, (*val.shape[: indexed_dims[0]], *shape, *val.shape[indexed_dims[-1] + 1 :]))


def _index_add(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    val, dim, index, source = val_of(args[0]), args[1], val_of(args[2]), val_of(args[3])
    fits = val.ndim == source.ndim and in_range(dim, val.ndim) and val.dtype is source.dtype and index.ndim == 1
    if kwargs or not fits or not val.ndim or not is_row_major(val) or index.dtype not in (torch.int64, torch.int32):
        return None
    position = dim % val.ndim
    wanted = (*val.shape[:position], *index.shape, *val.shape[position + 1 :])
    return _fresh(val, val.shape) if source.shape == wanted else None


def _masked_fill(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    """Returns a row-major result for any operands."""
    val = val_of(args[0])
    shape = broadcast([val, val_of(args[1])])
    return None if shape is None or val_of(args[1]).dtype is not torch.bool else _fresh(val, shape)


def _searchsorted(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    if len(args) > 2 or kwargs.keys() - {"right"}:
        return None
    val = val_of(args[1])
    return _fresh(val, val.shape, torch.int64)


def _region_backward(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    """Returns the gradient of a view's base: zeros around the gradient of the view."""
    return _fresh(val_of(args[0]), args[1])


def _new_like(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    """Returns a fresh tensor in the layout of another: `empty_like`, `full_like`, `rand_like`."""
    val = val_of(args[0])
    if kwargs.get("memory_format") not in (None, torch.preserve_format) or kwargs.get("device") not in (
        None,
        val.device,
    ):
        return None
    if not is_dense(val.shape, val.stride) and not any(
        same(n, 0) for n in val.shape
    ):  # a tensor without elements keeps its strides
        return None
    return _fresh(val, val.shape, kwargs.get("dtype"), val.stride)


def _new(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    """Returns a fresh row-major tensor with the dtype of another: `x.new_zeros(shape)`."""
    if kwargs.get("device") not in (None, val_of(args[0]).device):
        return None
    return _fresh(val_of(args[0]), args[1], kwargs.get("dtype"))


def _made(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    """Returns a fresh row-major tensor of a factory operator: `zeros`, `rand`, `full`."""
    if kwargs.get("memory_format") not in (None, torch.contiguous_format):
        return None
    dtype = kwargs.get("dtype") or _dtype_of_number(args[1] if func is aten.full.default else 0.0)
    device = torch.device(kwargs.get("device") or torch.get_default_device())
    shape = tuple(args[0])
    return None if dtype is None else layout_for(shape, dtype, contiguous_stride(shape), device)


def _dtype_of_number(value: Any) -> torch.dtype | None:
    """Returns the dtype of a tensor made from a number, or None."""
    kinds: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, Size: torch.int64}
    return torch.get_default_dtype() if type(value) is float else kinds.get(type(value))


def _scalar(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    return layout_for((), dtype, (), torch.device(kwargs.get("device") or torch.get_default_device()))


def _arange(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    start, end, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
    device = torch.device(kwargs.get("device") or torch.get_default_device())
    if float in map(type, (start, end, step)) and all(type(n) in (int, float) for n in (start, end, step)):
        return _range_of_floats(start, end, step, kwargs.get("dtype") or torch.get_default_dtype(), device)
    if not all(type(n) in (int, Size) for n in (start, end, step)) or step == 0:
        return None
    forward = compare("<", (end - start) * step, 0, True)
    text = f"{func}: the bounds are the wrong way round"
    expected = isinstance(forward, SymbolicPredicate) and forward.expect(text, "RuntimeError")
    if not expected and (end - start) * step < 0:
        return None
    size = -((start - end) // step)
    return layout_for((size,), kwargs.get("dtype") or torch.int64, (1,), device)


def _range_of_floats(start: float, end: float, step: float, dtype: torch.dtype, device: torch.device) -> Any:
    count = (end - start) / step if step else -1.0
    if not 0 <= count < float("inf") or not dtype.is_floating_point:
        return None
    return layout_for((math.ceil(count),), dtype, (1,), device)


def _linspace(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    start, end, steps = args[:3]
    if type(steps) is not int or steps < 0 or not all(type(n) in (int, float) for n in (start, end)):
        return None
    device = torch.device(kwargs.get("device") or torch.get_default_device())
    return layout_for((steps,), kwargs.get("dtype") or torch.get_default_dtype(), (1,), device)


# -- windows and attention -----------------------------------------------------------------------------------------


def _pool_shape(val: TensorMeta, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> Any:
    """Returns the shape of a 2-d pooling's result, or None for unusual arguments."""
    if val.ndim != 4:
        return None
    shape = list(val.shape[:2])
    for d in range(2):
        k, p, dil = (v[d % len(v)] for v in (kernel, padding, dilation))
        s = stride[d % len(stride)] if stride else k
        size = val.shape[d + 2]
        count = (size + 2 * p - dil * (k - 1) - 1 + (s - 1 if ceil else 0)) // s + 1
        if ceil and (count - 1) * s >= size + p:  # the last window must begin inside the padded input
            count -= 1
        shape.append(count)
    return tuple(shape) if all(size > 0 for size in shape) else None


def _pool_format(val: TensorMeta, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Layout:
    last = is_channels_last(val.shape, val.stride)
    return _fresh(val, shape, dtype, channels_last_stride(shape) if last else None)


def _max_pool(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    defaults: tuple[Any, ...] = ([], [0, 0], [1, 1], False)
    kernel, stride, padding, dilation, ceil = (*args[1:], *defaults[len(args) - 2 :])
    shape = _pool_shape(val, kernel, stride, padding, dilation, ceil)
    return None if shape is None else (_pool_format(val, shape), _pool_format(val, shape, torch.int64))


def _avg_pool(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    defaults: tuple[Any, ...] = ([], [0, 0], False)
    kernel, stride, padding, ceil = (*args[1:5], *defaults[len(args) - 2 :])
    shape = _pool_shape(val, kernel, stride, padding, [1, 1], ceil)
    return None if shape is None else _pool_format(val, shape)


def _pool_backward(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[1])
    return _as_format(val) if val.ndim == 4 else None


def _attention_cpu(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    """Returns a result with the query's order of dimensions in memory, and with its strides if it has no gaps."""
    q = val_of(args[0])
    batch, heads, length, width = q.shape
    low = q.dtype in (torch.bfloat16, torch.float16)
    if val_of(args[2]).shape[3] != width:
        return None
    out = _fresh(q, q.shape, None, dense_stride(q))
    sums = _fresh(q, (batch, heads, length), torch.float32 if low else None, (length * heads, 1, heads))
    return out, sums


# -- convolutions --------------------------------------------------------------------------------------------------


def _convolution(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    x, weight = val_of(args[0]), val_of(args[1])
    shape = _convolution_shape(x.shape, weight.shape, args[3:9])
    if shape is None or x.dtype != weight.dtype or x.device.type not in ("cpu", "cuda"):
        return None
    return _fresh(x, shape, None, channels_last_stride(shape) if _image_format(x, weight, args[3:9]) else None)


def _image_format(x: TensorMeta, weight: TensorMeta, options: Sequence[Any]) -> bool:
    """Whether a convolution of these operands runs in channels last, and so returns it.

    A 1-d convolution is a 2-d one over a single row; its input is made row-major before. For float64 the libraries
    support only row-major order, except for images on a CPU. (PyTorch: aten/src/ATen/native/ConvUtils.h.)
    """
    if torch.float64 in (x.dtype, weight.dtype) and (x.device.type == "cuda" or weight.ndim == 5):
        return False
    if weight.ndim == 5 and x.device.type == "cpu" and not _volumes_last(x, weight, options):
        return False
    if weight.ndim == 3:
        return is_channels_last(*_as_image(weight))
    return any(is_channels_last(v.shape, v.stride) for v in (x, weight))


def _volumes_last(x: TensorMeta, weight: TensorMeta, options: Sequence[Any]) -> bool:
    """Whether the CPU kernels of 3-d convolutions support channels last, as oneDNN's do, except for integers."""
    return x.dtype.is_floating_point and (x.dtype is not torch.float32 or _worth_onednn(x, weight, options))


def _worth_onednn(x: TensorMeta, weight: TensorMeta, options: Sequence[Any]) -> bool:
    """Whether PyTorch uses oneDNN's kernels for float32 on a CPU. Its own 3-d kernels have one order only."""
    stride, _, dilation, _, _, groups = options
    one = same_all(weight.shape[-2:], (1, 1)) and not any(n != 1 for n in (*stride, *dilation))
    if one and x.shape[0] < 16 and torch.get_num_threads() == 1:
        return False
    wide = weight.shape[-1] > 3 and weight.shape[-2] > 3
    return bool(groups > 1 or wide or x.shape[0] > 1 or math.prod(x.shape[:4]) > 20480)


def _as_image(line: TensorMeta) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns shape and strides of `line.unsqueeze(2)`."""
    (n, c, length), (by_n, by_c, step) = line.shape, line.stride
    return (n, c, 1, length), (by_n, by_c, length * step, step)


def _convolution_shape(x: Sequence[int], weight: Sequence[int], options: Sequence[Any]) -> tuple[int, ...] | None:
    """Returns the shape of the result, or None if the arguments do not fit."""
    stride, padding, dilation, transposed, extra, groups = options
    ndim = len(x) - 2
    stride, padding, dilation, extra = (
        [*each] * ndim if len(each) == 1 else each for each in (stride, padding, dilation, extra)
    )
    if ndim < 1 or len(weight) != len(x) or {len(stride), len(padding), len(dilation)} != {ndim}:
        return None
    if not transposed:
        extra = [None] * ndim
    elif len(extra) != ndim:
        return None
    taken, made = weight[1] * groups, weight[0]
    if transposed:
        taken, made = made, taken
    if x[1] != taken:
        return None
    shape = [x[0], made]
    along = zip(x[2:], weight[2:], stride, padding, dilation, extra, strict=True)
    shape += [_convolved(*each) for each in along]
    if same(weight[0], 0) or not all(size > 0 for size in shape):
        return None
    if same(x[1], 0):  # without input channels eager gives no output channels, for any weight
        shape[1] = 0
    return tuple(shape)


def _convolved(size: int, window: int, stride: int, padding: int, dilation: int, extra: int | None) -> int:
    """Returns the size of a result along one dimension; `extra`: the output padding of a transposed convolution, else
    None.
    """
    reach = dilation * (window - 1)
    if extra is not None:
        return (size - 1) * stride - 2 * padding + reach + extra + 1
    return (size + 2 * padding - reach - 1) // stride + 1


def _convolution_backward(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    x, weight, bias_shape, mask = val_of(args[1]), val_of(args[2]), args[3], args[10]
    if x.device.type not in ("cpu", "cuda") or (mask[2] and bias_shape is None) or same(x.shape[1], 0):
        return None
    last = _image_format(x, weight, args[4:10])
    dx, dw = (_fresh(v, v.shape, None, channels_last_stride(v.shape) if last else None) for v in (x, weight))
    db = _fresh(x, bias_shape) if mask[2] else None
    return dx if mask[0] else None, dw if mask[1] else None, db


# -- normalisations ------------------------------------------------------------------------------------------------


def _statistics(x: TensorMeta, *parameters: Any) -> torch.dtype:
    """Returns the dtype of statistics: float32 or wider on CUDA; else that of the parameters, or of the input without
    parameters.
    """
    if x.device.type == "cuda":
        return torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype
    return _of_parameters(x, *parameters)


def _of_parameters(x: TensorMeta, *parameters: Any) -> torch.dtype:
    return next((val_of(p).dtype for p in parameters if p is not None), x.dtype)


def _repeat_interleave(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    return _fresh(val_of(args[0]), (kwargs["output_size"],))


def _layer_norm(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    x, shape, weight, bias, _ = args
    val = val_of(x)
    count = len(shape)
    fits = all(p is None or val_of(p).shape == tuple(shape) for p in (weight, bias))
    if not count or val.shape[val.ndim - count :] != tuple(shape) or not fits:
        return None
    outer = (*val.shape[: val.ndim - count], *(1,) * count)
    dtype = _statistics(val, weight, bias)
    return _fresh(val, val.shape), _fresh(val, outer, dtype), _fresh(val, outer, dtype)


def _layer_norm_backward(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    _, x, shape, _, _, weight, bias, mask = args
    return _gradients(_fresh(val_of(x), val_of(x).shape), weight, bias, val_of(x), shape, mask)


def _gradients(dx: Layout, weight: Any, bias: Any, x: TensorMeta, shape: Sequence[int], mask: Sequence[bool]) -> Any:
    dtype = _of_parameters(x, weight, bias)
    gradients = [dx, _fresh(x, shape, dtype), _fresh(x, shape, dtype)]
    return tuple(gradient if wanted else None for gradient, wanted in zip(gradients, mask, strict=True))


def _normalized(x: TensorMeta) -> Layout:
    """Returns a layout: on a GPU in the order of `x`; on a CPU row-major, or channels last if that is exactly the
    layout of `x`.
    """
    if x.device.type == "cuda":
        return _fresh(x, x.shape, None, dense_stride(x))
    if is_row_major(x):
        return _fresh(x, x.shape)
    last = channels_last_stride(x.shape) if x.ndim in (4, 5) else None
    return _fresh(x, x.shape, None, last) if last and same_steps(x.shape, x.stride, last) else _as_format(x)


def _batch_norm(outputs: str) -> Rule:
    """Returns the rule of a batch norm. `outputs`: a letter for each result: "o" the output, "s" a statistic, "e" an
    empty one, "r" a running one.
    """

    def rule(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
        x = val_of(args[0])
        running_too = schema_of(func).arguments[3].name == "running_mean"
        parameters, training = (args[1:5], args[5]) if running_too else (args[1:3], args[3])
        if x.ndim < 2 or any(p is not None and val_of(p).shape != (x.shape[1],) for p in parameters):
            return None
        dtype = _statistics(x, *parameters)
        made = {"o": _normalized(x), "s": _fresh(x, (x.shape[1],), dtype), "e": _fresh(x, (0,), dtype, (1,))}
        if x.device.type == "cuda":  # its kernels return the statistics that they used, including given ones
            made["e"] = made["s"]
        elif training is False:
            made["s"] = made["e"]
        running = iter(args[3:5])
        return tuple(_fresh(val_of(r := next(running)), val_of(r).shape) if k == "r" else made[k] for k in outputs)

    return rule


def _batch_norm_with_reserve(outputs: str) -> Rule:
    """Returns the rule of `_batch_norm` with a fourth result: memory reserved for the backward of a GPU library, empty
    on a CPU.
    """
    others = _batch_norm(outputs)

    def rule(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
        x = val_of(args[0])
        made = others(func, args, kwargs) if x.device.type == "cpu" else None
        return made and (*made[:3], _fresh(x, (0,), torch.uint8, (1,)), *made[3:])

    return rule


def _batch_norm_backward(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    grad, x, weight, *_, mask = args
    val = val_of(x)
    if any(not wanted for wanted in mask) and val.device.type != "cpu" and not _is_empty(val):
        return None
    return _gradients(_as_format(val), weight, None, val, (val.shape[1],), mask)


def _batch_norm_with_reserve_backward(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    return _batch_norm_backward(func, args[:-1], kwargs)


def _group_norm(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    x, weight, bias, n, _, _, groups, _ = args
    val = val_of(x)
    dtype = _of_parameters(val, weight, bias)
    statistic = _fresh(val, (n, groups), dtype)
    return _as_format(val), statistic, statistic


def _group_norm_backward(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    _, x, mean, _, weight, _, channels, _, _, mask = args
    return _gradients(_as_format(val_of(x)), weight, mean, val_of(x), (channels,), mask)


_RULES: dict[OpOverload, Rule] = {
    **FUSED_LAYERS,
    aten.repeat_interleave.Tensor: _repeat_interleave,
    aten._cudnn_rnn.default: recurrent_answer,
    aten._cudnn_rnn_backward.default: recurrent_backward_answer,
    aten.mm.default: _mm,
    aten.bmm.default: _mm,
    aten.addmm.default: _addmm,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.cat.default: _cat,
    aten.stack.default: _stack,
    aten.mean.dim: _mean,
    aten.sum.dim_IntList: _sum,
    aten.embedding.default: _embedding,
    aten._embedding_bag.default: _embedding_bag,
    aten._embedding_bag_forward_only.default: _embedding_bag,
    aten._fft_r2c.default: transformed,
    aten._fft_c2c.default: transformed,
    aten._fft_c2r.default: transformed,
    aten.gather.default: _gather,
    aten.index.Tensor: _index,
    aten.ldexp.Tensor: _ldexp,
    aten.float_power.Scalar: _power_of_number,
    aten.index_add.default: _index_add,
    aten.masked_fill.Scalar: _masked_fill,
    aten.searchsorted.Tensor: _searchsorted,
    aten.select_backward.default: _region_backward,
    aten.slice_backward.default: _region_backward,
    **{
        getattr(aten, f"{name}_like").default: _new_like for name in ("empty", "zeros", "ones", "full", "rand", "randn")
    },
    **{getattr(aten, f"new_{name}").default: _new for name in ("empty", "zeros", "ones", "full")},
    **{getattr(aten, name).default: _made for name in ("zeros", "ones", "full", "rand", "randn")},
    aten.empty.memory_format: _made,
    aten.scalar_tensor.default: _scalar,
    aten.arange.default: _arange,
    aten.arange.start: _arange,
    aten.arange.start_step: _arange,
    aten.linspace.default: _linspace,
    aten.max_pool2d_with_indices.default: _max_pool,
    aten.max_pool2d_with_indices_backward.default: _pool_backward,
    aten.avg_pool2d.default: _avg_pool,
    aten.avg_pool2d_backward.default: _pool_backward,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention_cpu,
    aten.cumsum.default: _cumsum,
    aten._softmax.default: _softmax,
    aten._log_softmax.default: _softmax,
    aten._safe_softmax.default: _safe_softmax,
    aten._softmax_backward_data.default: _softmax_backward,
    aten._log_softmax_backward_data.default: _softmax_backward,
    aten.log_sigmoid_forward.default: _log_sigmoid,
    aten.pow.Scalar: _power_of_number,
    aten.native_dropout_backward.default: _dropout_backward,
    aten.nll_loss_forward.default: _nll_loss,
    aten.nll_loss_backward.default: _same_row_major(1),
    **dict.fromkeys((aten.poisson.default, aten._standard_gamma.default), _drawn_in_rows),
    aten.rrelu_with_noise.default: _drawn_in_rows,
    # these have no meta kernel
    aten.multi_margin_loss_backward.default: _same_row_major(1),
    aten.multilabel_margin_loss_backward.default: _same_row_major(1),
    aten._ctc_loss_backward.default: _same_row_major(1),
    aten._ctc_loss_backward.Tensor: _same_row_major(1),
    aten.fractional_max_pool3d_backward.default: _same_row_major(1),
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.native_batch_norm.default: _batch_norm("oss"),
    aten._native_batch_norm_legit.default: _batch_norm("oss"),
    aten._native_batch_norm_legit.no_stats: _batch_norm("oss"),
    aten._native_batch_norm_legit_functional.default: _batch_norm("ossrr"),
    aten._native_batch_norm_legit_no_training.default: _batch_norm("oee"),
    aten._batch_norm_with_update.default: _batch_norm_with_reserve("oss"),
    aten._batch_norm_with_update_functional.default: _batch_norm_with_reserve("ossrr"),
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.batch_norm_backward.default: _empty_gradient(_batch_norm_with_reserve_backward),
    **{
        getattr(aten, f"{name}_backward").default: _empty_gradient(_pair_gradient)
        for name in ("mse_loss", "smooth_l1_loss")
    },
    **{getattr(aten, f"_adaptive_avg_pool{n}d_backward").default: _empty_gradient(_same_row_major(1)) for n in (2, 3)},
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
}
"""Rules of operators that are not elementwise."""
