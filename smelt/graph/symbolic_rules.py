"""Metadata of operators on symbolic sizes, where static sizes are left to PyTorch's meta kernels.

A rule answers with layouts, or with None: then sizes are pinned and the meta kernel is asked, which also raises eager's
error for wrong arguments. Comparisons of sizes may add assumptions, as everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt.graph.elementwise import broadcast, result_stride
from smelt.graph.meta import TensorMeta, channels_last_stride, contiguous_stride, is_channels_last, is_dense
from smelt.graph.place import Layout, layout_for
from smelt.shapes.size import IntLike, Size, hint, known_equal, same, simplified

aten = torch.ops.aten
Rule = Callable[..., Any]


def _layout(of: Any) -> Layout:
    return of.place.layout


def val_of(of: Any) -> TensorMeta:
    """The metadata of a trace tensor, with what became known of its sizes since it was made."""
    val: TensorMeta = of.place.layout.val
    return replace(val, shape=simplified(val.shape), stride=simplified(val.stride)) if val.symbolic else val


def _moved(of: Any, shape: Sequence[IntLike], stride: Sequence[IntLike], offset: IntLike | None = None) -> Layout:
    """A view of the tensor."""
    own = _layout(of)
    val = own.val
    at = own.offset if offset is None else offset
    return layout_for(tuple(shape), val.dtype, tuple(stride), val.device, at)  # type: ignore[arg-type]


def _fresh(like: TensorMeta, shape: Sequence[IntLike], dtype: torch.dtype | None = None, stride: Any = None) -> Layout:
    shape = tuple(shape)
    return layout_for(shape, dtype or like.dtype, tuple(stride or contiguous_stride(shape)), like.device)  # type: ignore[arg-type]


def _as_before(val: TensorMeta, dtype: torch.dtype | None = None) -> Layout:
    """A fresh tensor that keeps a dense order of dimensions (`preserve_format`)."""
    if is_dense(val.shape, val.stride):
        return _fresh(val, val.shape, dtype, val.stride)
    return _fresh(val, val.shape, dtype, result_stride(val.shape, [val], False))


# -- views ---------------------------------------------------------------------------------------------------------


def _same(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    return _moved(args[0], val.shape, val.stride)


def _view(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    shape = _wanted(val, args[1])
    stride = None if shape is None else view_stride(val.shape, val.stride, shape)
    return None if stride is None or shape is None else _moved(args[0], shape, stride)


def _unsafe_view(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    shape = _wanted(val, args[1])
    stride = None if shape is None else view_stride(val.shape, val.stride, shape)
    return None if stride is None or shape is None else _fresh(val, shape, None, stride)


def _wanted(val: TensorMeta, sizes: Sequence[IntLike]) -> tuple[IntLike, ...] | None:
    """The shape that a reshape asks for, with -1 worked out; None where it does not fit."""
    total = math.prod(val.shape)
    free = [d for d, n in enumerate(sizes) if not isinstance(n, Size) and n == -1]
    if len(free) > 1:
        return None
    shape = list(sizes)
    if free:
        rest = math.prod(n for d, n in enumerate(sizes) if d not in free)
        if rest == 0 or total % rest != 0:
            return None
        shape[free[0]] = total // rest
    return tuple(shape) if math.prod(shape) == total else None


def view_stride(shape: Sequence[IntLike], stride: Sequence[IntLike], new: Sequence[IntLike]) -> Any:
    """Strides that show the same memory in the shape `new`, or None where there are none.

    Dimensions that lie one behind the other in memory form a run; each run is cut anew.
    (PyTorch: aten/src/ATen/TensorUtils.cpp, `computeStride`.)
    """
    if _in_rows(shape, stride):
        return contiguous_stride(new)  # type: ignore[arg-type]
    runs: list[tuple[IntLike, IntLike]] = []  # elements, innermost stride
    for n, s in zip(reversed(shape), reversed(stride), strict=True):
        if same(n, 1):
            continue
        if runs and known_equal(s, runs[-1][0] * runs[-1][1]):
            runs[-1] = (runs[-1][0] * n, runs[-1][1])
        else:
            runs.append((n, s))
    out: list[IntLike] = []
    left = list(reversed(new))
    for count, step in runs or [(1, 1)]:
        taken: IntLike = 1
        while hint(taken) < hint(count):
            if not left:
                return None
            out.append(step * taken)
            taken = taken * left.pop(0)
        if taken != count:
            return None
    step = out[-1] * new[len(new) - len(out)] if out else 1
    for n in left:  # what is left has size 1
        if n != 1:
            return None
        out.append(step)
    return tuple(reversed(out))


def _permute(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    order = [d % val.ndim for d in args[1]]
    return _moved(args[0], [val.shape[d] for d in order], [val.stride[d] for d in order])


def _transpose(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    order = list(range(val.ndim))
    a, b = (0, 1) if len(args) == 1 else (d % val.ndim for d in args[1:3])
    if val.ndim > 1:
        order[a], order[b] = order[b], order[a]
    return _moved(args[0], [val.shape[d] for d in order], [val.stride[d] for d in order])


def _select(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, layout, index = val_of(args[0]), _layout(args[0]), args[2]
    if not val.shape or not -val.ndim <= args[1] < val.ndim:
        return None
    dim = args[1] % val.ndim
    size = val.shape[dim]
    if index >= size or index < -size:
        return None
    index = index + size if index < 0 else index
    return _moved(args[0], _without(val.shape, dim), _without(val.stride, dim), layout.offset + index * val.stride[dim])


def _without(values: Sequence[Any], dim: int) -> tuple[Any, ...]:
    return (*values[:dim], *values[dim + 1 :])


def _slice(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    values = [*args[1:], *(None,) * (5 - len(args))]
    dim, start, end, step = (kwargs.get(k, v) for k, v in zip(("dim", "start", "end", "step"), values, strict=True))
    val, layout = val_of(args[0]), _layout(args[0])
    dim, step = (dim or 0) % val.ndim, 1 if step is None else step
    size = val.shape[dim]
    start, end = _bound(start, 0, size), _bound(end, size, size)
    if end < start:
        end = start
    shape = (*val.shape[:dim], (end - start + step - 1) // step, *val.shape[dim + 1 :])
    stride = (*val.stride[:dim], val.stride[dim] * step, *val.stride[dim + 1 :])
    return _moved(args[0], shape, stride, layout.offset + start * val.stride[dim])


_FAR = 2**62
"""`x[a:]` says an end beyond every size."""


def _bound(value: IntLike | None, default: IntLike, size: IntLike) -> IntLike:
    if value is None or (not isinstance(value, Size) and value >= _FAR):
        return size if value is not None else default
    if same(value, size):
        return size
    if value < 0:
        value = value + size
        return value if value >= 0 else 0
    return size if value > size else value


def _expand(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, sizes = val_of(args[0]), args[1]
    lead = len(sizes) - val.ndim
    if lead < 0:
        return None
    shape: list[IntLike] = []
    stride: list[IntLike] = []
    for d, wanted in enumerate(sizes):
        keep = not isinstance(wanted, Size) and wanted == -1
        if d < lead:
            if keep:
                return None
            shape.append(wanted)
            stride.append(0)
            continue
        own, step = val.shape[d - lead], val.stride[d - lead]
        if keep or same(own, wanted) or own == wanted:
            shape.append(own)
            stride.append(step)
        elif own == 1:
            shape.append(wanted)
            stride.append(0)
        else:
            return None
    return _moved(args[0], shape, stride)


def _unsqueeze(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    dim = args[1] % (val.ndim + 1)
    step = val.shape[dim] * val.stride[dim] if dim < val.ndim else 1
    return _moved(args[0], (*val.shape[:dim], 1, *val.shape[dim:]), (*val.stride[:dim], step, *val.stride[dim:]))


def _squeeze(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    asked = range(val.ndim) if len(args) == 1 else args[1] if isinstance(args[1], (list, tuple)) else [args[1]]
    gone = {d % max(val.ndim, 1) for d in asked}
    kept = [d for d in range(val.ndim) if d not in gone or val.shape[d] != 1]
    return _moved(args[0], [val.shape[d] for d in kept], [val.stride[d] for d in kept])


def _split(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """Parts of one length; how many there are has to be known."""
    val, length, dim = val_of(args[0]), args[1], args[2] if len(args) > 2 else kwargs.get("dim", 0)
    size = val.shape[dim % val.ndim]
    count = (size + length - 1) // length
    lengths = [length] * (int(count) - 1)
    return _parts(args[0], [*lengths, size - length * len(lengths)], dim)


def _split_with_sizes(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    dim = args[2] if len(args) > 2 else kwargs.get("dim", 0)
    if sum(args[1]) != val_of(args[0]).shape[dim]:
        return None
    return _parts(args[0], args[1], dim)


def _parts(of: Any, lengths: Sequence[IntLike], dim: int) -> list[Layout]:
    val = val_of(of)
    offset: IntLike = _layout(of).offset
    dim %= val.ndim
    out = []
    for length in lengths:
        out.append(_moved(of, (*val.shape[:dim], length, *val.shape[dim + 1 :]), val.stride, offset))
        offset = offset + length * val.stride[dim]
    return out


def _unbind(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, offset = val_of(args[0]), _layout(args[0]).offset
    dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % val.ndim
    shape, stride = _without(val.shape, dim), _without(val.stride, dim)
    return [_moved(args[0], shape, stride, offset + i * val.stride[dim]) for i in range(int(val.shape[dim]))]


def _as_strided(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    return _moved(args[0], args[1], args[2], args[3] if len(args) > 3 and args[3] is not None else None)


# -- fresh results -------------------------------------------------------------------------------------------------


def _clone(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    match kwargs.get("memory_format"):
        case None | torch.preserve_format:
            return _as_before(val, kwargs.get("dtype"))
        case torch.contiguous_format:
            return _fresh(val, val.shape, kwargs.get("dtype"))
        case torch.channels_last if val.ndim == 4:
            return _fresh(val, val.shape, kwargs.get("dtype"), channels_last_stride(val.shape))
    return None


def _to_copy(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    device = kwargs.get("device")
    if device is not None and torch.device(device) != val_of(args[0]).device:
        return None
    return _clone(func, args, kwargs)


def _like_first(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """A fresh result in the first argument's shape, dtype and order of dimensions."""
    return _as_before(val_of(args[0]))


def _row_major_like_first(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    return _fresh(val_of(args[0]), val_of(args[0]).shape)


def _written(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """The written first argument's own layout."""
    return _layout(args[0])


def _reduction(dtype: torch.dtype | None = None, results: int = 1, whole: torch.dtype | None = None) -> Rule:
    """Reductions `op(x, dims, keepdim)`.

    Args:
        dtype: of the (last) result; None: the input's.
        results: 2 for values and positions.
        whole: of the result for integers.
    """

    def rule(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
        val = val_of(args[0])
        parameters = [a.name for a in func._schema.arguments]
        given = dict(zip(parameters, args, strict=False)) | dict(kwargs)
        dims, keep = given.get("dim"), bool(given.get("keepdim", False))
        axes = [dims] if isinstance(dims, int) else list(dims or range(val.ndim))
        gone = {d % max(val.ndim, 1) for d in axes}
        shape = [1 if d in gone else n for d, n in enumerate(val.shape) if keep or d not in gone]
        integral = not (val.dtype.is_floating_point or val.dtype.is_complex)
        made = given.get("dtype") or (whole if integral and whole else None)
        if results == 2:
            return _fresh(val, shape, made), _fresh(val, shape, dtype)
        return _fresh(val, shape, made or dtype)

    return rule


def _var_mean(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    out = _reduction()(func, args, kwargs)
    return out, out


def _pad(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, pads = val_of(args[0]), args[1]
    shape = list(val.shape)
    for k in range(len(pads) // 2):
        shape[val.ndim - 1 - k] = shape[val.ndim - 1 - k] + pads[2 * k] + pads[2 * k + 1]
    last = is_channels_last(val.shape, val.stride)
    return _fresh(val, shape, None, channels_last_stride(shape) if last else None)


def _index_select(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, dim, index = val_of(args[0]), args[1], val_of(args[2])
    if not val.ndim or index.ndim > 1:
        return None
    dim %= val.ndim
    return _fresh(val, (*val.shape[:dim], index.shape[0] if index.ndim else 1, *val.shape[dim + 1 :]))


def _index(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """Whole-number indices; where they are not neighbours their shape comes first."""
    val, indices = val_of(args[0]), args[1]
    places = [d for d, i in enumerate(indices) if i is not None]
    found = [val_of(indices[d]) for d in places]
    if not places or any(i.dtype in (torch.bool, torch.uint8) for i in found):
        return None
    shape = broadcast(found)
    if shape is None or not _rows(val):
        return None
    if places == list(range(places[0], places[-1] + 1)):
        return _fresh(val, (*val.shape[: places[0]], *shape, *val.shape[places[-1] + 1 :]))
    return None


def _rows(val: TensorMeta) -> bool:
    return _in_rows(val.shape, val.stride)


def _in_rows(shape: Sequence[IntLike], stride: Sequence[IntLike]) -> bool:
    """True when the elements lie row by row without gaps, whatever the sizes."""
    wanted = contiguous_stride(shape)  # type: ignore[arg-type]
    return all(same(n, 1) or known_equal(a, b) for n, a, b in zip(shape, stride, wanted, strict=True))


def _repeat(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, times = val_of(args[0]), args[1]
    lead = len(times) - val.ndim
    if lead < 0:
        return None
    own = (*(1,) * lead, *val.shape)
    return _fresh(val, [n * t for n, t in zip(own, times, strict=True)])


def _sort(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    made = _as_before(val_of(args[0]))
    return made, _as_before(val_of(args[0]), torch.int64)


def _topk(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, k = val_of(args[0]), args[1]
    dim = args[2] if len(args) > 2 else -1
    if not val.ndim or k > val.shape[dim]:
        return None
    shape = list(val.shape)
    shape[dim] = k
    return _fresh(val, shape), _fresh(val, shape, torch.int64)


def _baddbmm(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    a, b = val_of(args[1]), val_of(args[2])
    fits = a.ndim == b.ndim == 3 and a.shape[0] == b.shape[0] and a.shape[2] == b.shape[1] and a.dtype == b.dtype
    return _fresh(a, (a.shape[0], a.shape[1], b.shape[2])) if fits else None


def _mv(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    a, b = val_of(args[0]), val_of(args[1])
    fits = a.ndim == 2 and b.ndim == 1 and a.shape[1] == b.shape[0] and a.dtype == b.dtype
    return _fresh(a, a.shape[:1]) if fits else None


def _upsample(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, size = val_of(args[0]), args[1]
    if size is None or len(size) != val.ndim - 2:
        return None
    shape = (*val.shape[:2], *size)
    last = is_channels_last(val.shape, val.stride)
    return _fresh(val, shape, None, channels_last_stride(shape) if last else None)


def _adaptive_pool(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    shape = (*val.shape[:-2], *args[1])
    last = is_channels_last(val.shape, val.stride)
    return _fresh(val, shape, None, channels_last_stride(shape) if last else None)


def _as_second(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """A gradient in the layout of the second argument."""
    return _as_before(val_of(args[1]))


def _dropout(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    return _as_before(val), _as_before(val, torch.bool)


def _embedding_backward(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    grad = val_of(args[0])
    return _fresh(grad, (args[2], grad.shape[-1]))


def _group_norm_backward(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    x, mean, weight, mask = val_of(args[1]), val_of(args[2]), args[4], args[9]
    dtype = val_of(weight).dtype if weight is not None else mean.dtype
    channels = _fresh(x, (args[6],), dtype)
    return tuple(
        made if wanted else None for made, wanted in zip((_as_before(x), channels, channels), mask, strict=True)
    )


def _attention_backward(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """Gradients in the order of dimensions (batch, length, heads, width) in memory."""
    made = []
    for x in args[1:4]:
        batch, heads, length, width = val_of(x).shape
        stride = (length * heads * width, width, heads * width, 1)
        made.append(_fresh(val_of(x), val_of(x).shape, None, stride))
    return tuple(made)


def _eye(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    shape = (args[0], args[1] if len(args) > 1 else args[0])
    device = torch.device(kwargs.get("device") or torch.get_default_device())
    return layout_for(shape, kwargs.get("dtype") or torch.get_default_dtype(), contiguous_stride(shape), device)


_flag, _number = torch.bool, torch.int64

SYMBOLIC_RULES: dict[Any, Rule] = {
    aten.view.default: _view,
    aten._unsafe_view.default: _unsafe_view,
    aten.reshape.default: _view,
    aten._reshape_alias.default: _view,
    aten.permute.default: _permute,
    aten.transpose.int: _transpose,
    aten.t.default: _transpose,
    aten.select.int: _select,
    aten.slice.Tensor: _slice,
    aten.expand.default: _expand,
    aten.unsqueeze.default: _unsqueeze,
    aten.squeeze.default: _squeeze,
    aten.squeeze.dim: _squeeze,
    aten.squeeze.dims: _squeeze,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split_with_sizes,
    aten.unbind.int: _unbind,
    aten.as_strided.default: _as_strided,
    aten.alias.default: _same,
    aten.detach.default: _same,
    aten.eye.default: _eye,
    aten.eye.m: _eye,
    aten.clone.default: _clone,
    aten._to_copy.default: _to_copy,
    aten.copy_.default: _written,
    aten.fill_.Scalar: _written,
    aten.zero_.default: _written,
    aten.index_put_.default: _written,
    aten.masked_fill_.Scalar: _written,
    aten.triu.default: _like_first,
    aten.tril.default: _like_first,
    aten.flip.default: _like_first,
    aten.roll.default: _row_major_like_first,
    aten.bernoulli.p: _like_first,
    aten.index_put.default: _like_first,
    aten.scatter.src: _like_first,
    aten.scatter.value: _like_first,
    aten.scatter_add.default: _like_first,
    aten.slice_scatter.default: _row_major_like_first,
    aten.select_scatter.default: _row_major_like_first,
    aten._softmax.default: _row_major_like_first,
    aten._log_softmax.default: _row_major_like_first,
    aten.native_dropout.default: _dropout,
    aten.constant_pad_nd.default: _pad,
    aten.index_select.default: _index_select,
    aten.index.Tensor: _index,
    aten.repeat.default: _repeat,
    aten.sort.default: _sort,
    aten.topk.default: _topk,
    aten.baddbmm.default: _baddbmm,
    aten.mv.default: _mv,
    aten.upsample_nearest2d.default: _upsample,
    aten.upsample_bilinear2d.default: lambda f, a, k: _upsample(f, a, k),
    aten._adaptive_avg_pool2d.default: _adaptive_pool,
    aten._adaptive_avg_pool2d_backward.default: _as_second,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.native_group_norm_backward.default: _group_norm_backward,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
    **{
        op: _reduction()
        for op in (aten.amax.default, aten.amin.default, aten.var.correction, aten.std.correction)
        + (aten.logsumexp.default, aten.linalg_vector_norm.default, aten.max.default, aten.min.default)
    },
    **{op: _reduction(whole=_number) for op in (aten.sum.default, aten.prod.default, aten.prod.dim_int)},
    aten.mean.default: _reduction(),
    **{op: _reduction(_number) for op in (aten.argmax.default, aten.argmin.default)},
    **{
        op: _reduction(_flag)
        for op in (aten.any.default, aten.any.dim, aten.all.default, aten.all.dim, aten.any.dims, aten.all.dims)
    },
    **{op: _reduction(_number, 2) for op in (aten.max.dim, aten.min.dim)},
    aten.var_mean.correction: _var_mean,
}
