"""Metadata of views of tensors with symbolic sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from smelt.graph.ir.meta import TensorMeta, contiguous_stride
from smelt.graph.ir.storage_view import Layout, layout_for
from smelt.graph.meta_rules.elementwise import layout_sizes
from smelt.graph.meta_rules.layouts import Rule, arguments_by_name, fresh, layout, moved, val_of, without
from smelt.shapes.size import FAR, IntLike, Size, hint, known_equal, same, same_all
from smelt.shapes.unbacked import is_unbacked

aten = torch.ops.aten


def _same(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    return moved(args[0], val.shape, val.stride)


def _view(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    shape = _target_shape(val, args[1])
    stride = None if shape is None else view_stride(val.shape, val.stride, shape)
    return None if stride is None or shape is None else moved(args[0], shape, stride)


def _unsafe_view(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    shape = _target_shape(val, args[1])
    stride = None if shape is None else view_stride(val.shape, val.stride, shape)
    return None if stride is None or shape is None else fresh(val, shape, None, stride)


def _target_shape(val: TensorMeta, sizes: Sequence[IntLike]) -> tuple[IntLike, ...] | None:
    """Returns the target shape of a reshape, with -1 resolved; None if it does not fit."""
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
    """Returns the strides of the same memory viewed in the shape `new`, or None if no strides describe it.

    Dimensions that are contiguous with each other form a run; each run is split anew. (PyTorch:
    aten/src/ATen/TensorUtils.cpp, `computeStride`.)
    """
    if any(same(n, 0) for n in shape):
        return tuple(stride) if _is_unchanged(shape, new) else contiguous_stride(new)  # type: ignore[arg-type]
    rows = contiguous_stride(shape)  # type: ignore[arg-type]
    open_sizes = is_unbacked(*shape, *new)  # such sizes must not be compared
    if all((open_sizes and same(n, 1)) or known_equal(a, b) for n, a, b in zip(shape, stride, rows, strict=True)):
        return contiguous_stride(new)  # type: ignore[arg-type]
    shape, new = layout_sizes(tuple(shape)), layout_sizes(tuple(new))  # type: ignore[arg-type]
    out: list[IntLike] = []
    left = list(reversed(new))
    for count, step in _runs(shape, stride):
        taken: IntLike = 1
        while left and (hint(taken) < hint(count) or same(left[0], 1)):
            out.append(step * taken)
            taken = taken * left.pop(0)
        if taken != count:
            return None
    return None if left else tuple(reversed(out))


def _is_unchanged(shape: Sequence[IntLike], new: Sequence[IntLike]) -> bool:
    """Whether the target shape is the present one; unbacked sizes are not compared."""
    if same_all(tuple(shape), tuple(new)):
        return True
    return len(shape) == len(new) and not is_unbacked(*shape, *new) and tuple(shape) == tuple(new)


def _runs(shape: Sequence[IntLike], stride: Sequence[IntLike]) -> list[tuple[IntLike, IntLike]]:
    """Returns (elements, innermost stride) of each run, from the innermost on. A dimension of size 1 belongs to the run
    of the next inner dimension, for any stride.
    """
    runs: list[tuple[IntLike, IntLike]] = []
    for n, s in zip(reversed(shape), reversed(stride), strict=True):
        if runs and (same(n, 1) or known_equal(s, runs[-1][0] * runs[-1][1])):
            runs[-1] = (runs[-1][0] * n, runs[-1][1])
        else:
            runs.append((n, s))
    return runs


def _permute(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    order = [d % val.ndim for d in args[1]]
    return moved(args[0], [val.shape[d] for d in order], [val.stride[d] for d in order])


def _transpose(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    order = list(range(val.ndim))
    a, b = (0, 1) if len(args) == 1 else (d % val.ndim for d in args[1:3])
    if val.ndim > 1:
        order[a], order[b] = order[b], order[a]
    return moved(args[0], [val.shape[d] for d in order], [val.stride[d] for d in order])


def _select(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, index = val_of(args[0]), args[2]
    if not val.shape or not -val.ndim <= args[1] < val.ndim:
        return None
    dim = args[1] % val.ndim
    size = val.shape[dim]
    if index >= size or index < -size:
        return None
    index = index + size if index < 0 else index
    return moved(
        args[0], without(val.shape, dim), without(val.stride, dim), layout(args[0]).offset + index * val.stride[dim]
    )


def _slice(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    values = [*args[1:], *(None,) * (5 - len(args))]
    dim, start, end, step = (kwargs.get(k, v) for k, v in zip(("dim", "start", "end", "step"), values, strict=True))
    val = val_of(args[0])
    dim, step = (dim or 0) % val.ndim, 1 if step is None else step
    size = val.shape[dim]
    start, end = _bound(start, 0, size), _bound(end, size, size)
    if end < start:
        end = start
    shape = (*val.shape[:dim], (end - start + step - 1) // step, *val.shape[dim + 1 :])
    stride = (*val.stride[:dim], val.stride[dim] * step, *val.stride[dim + 1 :])
    return moved(args[0], shape, stride, layout(args[0]).offset + start * val.stride[dim])


def _bound(value: IntLike | None, default: IntLike, size: IntLike) -> IntLike:
    if value is None or (not isinstance(value, Size) and value >= FAR):
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
    for d in range(len(sizes) - 1, -1, -1):
        within = shape[0] * stride[0] if shape else 1
        own, step = (val.shape[d - lead], val.stride[d - lead]) if d >= lead else (None, within)
        found = _expanded(own, sizes[d])
        if found is None:
            return None
        shape.insert(0, found[0])
        stride.insert(0, 0 if found[1] else step)
    return moved(args[0], shape, stride)


def _expanded(own: IntLike | None, wanted: IntLike) -> tuple[IntLike, bool] | None:
    """Returns the size of a dimension, and whether it repeats one element; None if it cannot have that size.

    Args:
        own: the size before; None for a new dimension.
        wanted: the requested size; -1 keeps the present one.
    """
    keep = not isinstance(wanted, Size) and wanted == -1
    if own is None:
        single = is_unbacked(wanted) or same(wanted, 1) or wanted == 1
        return None if keep else (wanted, not single)
    if keep or same(own, wanted) or (not same(own, 1) and own == wanted):
        return own, False
    return (wanted, True) if own == 1 else None


def _unsqueeze(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    dim = args[1] % (val.ndim + 1)
    step = val.shape[dim] * val.stride[dim] if dim < val.ndim else 1
    return moved(args[0], (*val.shape[:dim], 1, *val.shape[dim:]), (*val.stride[:dim], step, *val.stride[dim:]))


def _squeeze(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    dims = range(val.ndim) if len(args) == 1 else args[1] if isinstance(args[1], (list, tuple)) else [args[1]]
    gone = {d % max(val.ndim, 1) for d in dims}
    kept = [d for d in range(val.ndim) if d not in gone or val.shape[d] != 1]
    return moved(args[0], [val.shape[d] for d in kept], [val.stride[d] for d in kept])


def _split(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """The rule of `split`: views of equal length, the last possibly shorter; their number must not be symbolic."""
    val, length, dim = val_of(args[0]), args[1], args[2] if len(args) > 2 else kwargs.get("dim", 0)
    size = val.shape[dim % val.ndim]
    count = max((hint(size) + hint(length) - 1) // hint(length), 1) if hint(length) else 1
    if not (count - 1) * length < size or not size <= count * length:
        return None
    return _slices_of(args[0], [*[length] * (count - 1), size - length * (count - 1)], dim)


def _split_with_sizes(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    dim = args[2] if len(args) > 2 else kwargs.get("dim", 0)
    if sum(args[1]) != val_of(args[0]).shape[dim]:
        return None
    return _slices_of(args[0], args[1], dim)


def _slices_of(of: Any, lengths: Sequence[IntLike], dim: int) -> list[Layout]:
    val = val_of(of)
    offset: IntLike = layout(of).offset
    dim %= val.ndim
    out = []
    for length in lengths:
        out.append(moved(of, (*val.shape[:dim], length, *val.shape[dim + 1 :]), val.stride, offset))
        offset = offset + length * val.stride[dim]
    return out


def _unbind(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, offset = val_of(args[0]), layout(args[0]).offset
    dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % val.ndim
    shape, stride = without(val.shape, dim), without(val.stride, dim)
    return [moved(args[0], shape, stride, offset + i * val.stride[dim]) for i in range(int(val.shape[dim]))]


def _as_strided(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    return moved(args[0], args[1], args[2], args[3] if len(args) > 3 and args[3] is not None else None)


def _unsafe(split: Rule) -> Rule:
    """Returns the rule of an unsafe split, whose chunks autograd does not treat as views: they are fresh memory."""

    def rule(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
        chunks = split(func, args, kwargs)
        return chunks and [fresh(p.val, p.val.shape, None, p.val.stride) for p in chunks]

    return rule


def _diagonal(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, named = val_of(args[0]), arguments_by_name(func, args, kwargs)
    by, a, b = named["offset"], named["dim1"] % val.ndim, named["dim2"] % val.ndim
    rows, columns = val.shape[a], val.shape[b]
    rows, columns, skipped = (rows, columns - by, val.stride[b]) if by >= 0 else (rows + by, columns, val.stride[a])
    count = rows if same(rows, columns) or rows < columns else columns
    if count <= 0:
        return None
    kept = [d for d in range(val.ndim) if d not in (a, b)]
    shape = (*[val.shape[d] for d in kept], count)
    stride = (*[val.stride[d] for d in kept], val.stride[a] + val.stride[b])
    return moved(args[0], shape, stride, layout(args[0]).offset + abs(by) * skipped)


def _unfold(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, (dim, size, step) = val_of(args[0]), args[1:4]
    if not val.ndim or size > val.shape[dim]:
        return None
    dim %= val.ndim
    shape, stride = list(val.shape), list(val.stride)
    shape[dim], stride[dim] = (val.shape[dim] - size) // step + 1, val.stride[dim] * step
    return moved(args[0], (*shape, size), (*stride, val.stride[dim]))


_COMPONENTS = {torch.complex64: torch.float32, torch.complex128: torch.float64, torch.complex32: torch.float16}


def _view_as_real(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val = val_of(args[0])
    stride = (*[s * 2 for s in val.stride], 1)
    return layout_for((*val.shape, 2), _COMPONENTS[val.dtype], stride, val.device, layout(args[0]).offset * 2)


def _view_as_complex(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    val, complex_dtypes = val_of(args[0]), {real: z for z, real in _COMPONENTS.items()}
    if not val.ndim or val.shape[-1] != 2 or val.stride[-1] != 1 or val.dtype not in complex_dtypes:
        return None
    if not all(s % 2 == 0 for s in (*val.stride[:-1], layout(args[0]).offset)):
        return None
    stride = tuple(s // 2 for s in val.stride[:-1])
    return layout_for(val.shape[:-1], complex_dtypes[val.dtype], stride, val.device, layout(args[0]).offset // 2)


VIEW_RULES: dict[Any, Rule] = {
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
    aten.unsafe_split.Tensor: _unsafe(_split),
    aten.split_with_sizes.default: _split_with_sizes,
    aten.unsafe_split_with_sizes.default: _unsafe(_split_with_sizes),
    aten.unbind.int: _unbind,
    aten.as_strided.default: _as_strided,
    aten.diagonal.default: _diagonal,
    aten.unfold.default: _unfold,
    aten.view_as_real.default: _view_as_real,
    aten.view_as_complex.default: _view_as_complex,
    aten.alias.default: _same,
    aten.detach.default: _same,
}
