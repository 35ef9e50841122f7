"""View operators on values: reads a view's value from its parent's, and writes a view's new value into the parent's.

Functional graphs have no memory, so both directions are expressions: `select` and `select_scatter`, `permute` and its
inverse. A small set of operators is emitted (view, permute, expand, select, slice, diagonal, view.dtype), so that later
stages meet few forms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import fx

from smelt.base.errors import Unsupported
from smelt.base.torch_private import OpOverload, schema_of
from smelt.graph.ir.meta import TensorMeta, extent, inverse, memory_order, reach
from smelt.graph.ir.storage_view import Step, StorageView
from smelt.graph.trace.in_bounds import lies_within
from smelt.shapes.size import Size, hint, known_at_most, same

aten = torch.ops.aten


class Emit(Protocol):
    """Appends `op(*args, **kwargs)` to the graph; its metadata comes from the operator's own rule."""

    def __call__(self, op: OpOverload, *args: Any, **kwargs: Any) -> fx.Node: ...


Read = Callable[[Emit, fx.Node, StorageView], fx.Node]
Write = Callable[[Emit, fx.Node, fx.Node, StorageView], fx.Node]


WRITTEN_VIEWS = frozenset({aten.select_scatter.default, aten.slice_scatter.default, aten.diagonal_scatter.default})
"""Operators that express a write to a view of a tensor. Their results have no gaps, in any graph."""


def read_view(emit: Emit, parent: fx.Node, view: StorageView) -> fx.Node:
    """Returns the value at `view`, given the value of its parent view."""
    assert view.step is not None
    rule = _RULES.get(view.step.op)
    return rule[0](emit, parent, view) if rule else _read_strided(emit, parent, view)


def write_view(emit: Emit, parent: fx.Node, value: fx.Node, view: StorageView) -> fx.Node:
    """Returns the parent's new value after `value` was written to its view at `view`."""
    assert view.step is not None
    rule = _RULES.get(view.step.op)
    return rule[1](emit, parent, value, view) if rule else _write_strided(emit, parent, value, view)


def write_memory(emit: Emit, root: fx.Node, value: fx.Node, view: StorageView) -> fx.Node:
    """Returns the root's new value after `value` was written to `view`, by positions in memory.

    This is used for views at or below one whose elements overlap (`expand`, `unfold`), where single steps would leave
    stale duplicates.
    """
    base = view.storage.root
    assert base is not None
    if view.negative != base.negative:  # the memory does not contain the values, but their negatives
        value = emit(aten.neg.default, value)
    if view.conjugate != base.conjugate:
        value = emit(aten._conj_physical.default, value)
    return _write_positions(emit, root, value, view, base)


def _val(view: StorageView | None) -> TensorMeta:
    assert view is not None
    return view.layout.val


def _arguments(step: Step | None) -> list[Any]:
    """Returns all arguments of the step after the parent, by position, defaults included."""
    assert step is not None
    parameters = schema_of(step.op).arguments[1:]
    given = list(step.args)
    return given + [step.kwargs.get(p.name, p.default_value) for p in parameters[len(given) :]]


def _dim(view: StorageView, dim: int) -> int:
    return dim % max(_val(view.parent).ndim, 1)


# -- same elements -------------------------------------------------------------------------------------------------


def _read_same(emit: Emit, parent: fx.Node, view: StorageView) -> fx.Node:
    return parent


def _write_same(emit: Emit, parent: fx.Node, value: fx.Node, view: StorageView) -> fx.Node:
    return value


def _read_reshape(emit: Emit, parent: fx.Node, view: StorageView) -> fx.Node:
    return emit(aten.view.default, parent, list(_val(view).shape))


def _write_reshape(emit: Emit, parent: fx.Node, value: fx.Node, view: StorageView) -> fx.Node:
    return emit(aten.view.default, value, list(_val(view.parent).shape))


def _read_dtype(emit: Emit, parent: fx.Node, view: StorageView) -> fx.Node:
    return _of_rows(emit, aten.view.dtype, parent, _val(view).dtype)


def _write_dtype(emit: Emit, parent: fx.Node, value: fx.Node, view: StorageView) -> fx.Node:
    return _of_rows(emit, aten.view.dtype, value, _val(view.parent).dtype)


def _of_rows(emit: Emit, op: OpOverload, value: fx.Node, *args: Any) -> fx.Node:
    """Apply a view operator that requires contiguous elements, to a contiguous copy if the value is not contiguous.

    In eager the elements are contiguous. The value's strides may differ from eager's, since `contiguous` and `clone`
    are not recorded and a written value keeps its own strides.
    """
    try:
        return emit(op, value, *args)
    except RuntimeError:
        return emit(op, emit(aten.clone.default, value, memory_format=torch.contiguous_format), *args)


def _paired(read: OpOverload, write: OpOverload) -> tuple[Read, Write]:
    """Returns the functions for a view operator without arguments whose inverse is another operator."""
    return (
        lambda emit, parent, view: _of_rows(emit, read, parent),
        lambda emit, parent, value, view: _of_rows(emit, write, value),
    )


# -- orders of dimensions ------------------------------------------------------------------------------------------


def _order(view: StorageView) -> list[int]:
    """Returns the permutation of a transposing step."""
    assert view.step is not None
    ndim = _val(view.parent).ndim
    if view.step.op is aten.permute.default:
        return [d % ndim for d in view.step.args[0]] if ndim else []
    order = list(range(ndim))
    if ndim > 1:
        a, b = (0, 1) if view.step.op is aten.t.default else (d % ndim for d in view.step.args[:2])
        order[a], order[b] = order[b], order[a]
    return order


def _read_permute(emit: Emit, parent: fx.Node, view: StorageView) -> fx.Node:
    return emit(aten.permute.default, parent, _order(view))


def _write_permute(emit: Emit, parent: fx.Node, value: fx.Node, view: StorageView) -> fx.Node:
    return emit(aten.permute.default, value, inverse(_order(view)))


# -- regions -------------------------------------------------------------------------------------------------------


def _read_expand(emit: Emit, parent: fx.Node, view: StorageView) -> fx.Node:
    return emit(aten.expand.default, parent, list(_val(view).shape))


def _write_expand(emit: Emit, parent: fx.Node, value: fx.Node, view: StorageView) -> fx.Node:
    return emit(aten.view.default, value, list(_val(view.parent).shape))


def _select(view: StorageView) -> tuple[int, int]:
    """Returns (dim, index) of a `select` step, or of the step to one result of `unbind`."""
    step = view.step
    assert step is not None
    arguments = _arguments(step)
    dim = _dim(view, arguments[0])
    index = step.index if step.index is not None else arguments[1]
    return dim, index % _val(view.parent).shape[dim]


def _read_select(emit: Emit, parent: fx.Node, view: StorageView) -> fx.Node:
    return emit(aten.select.int, parent, *_select(view))


def _write_select(emit: Emit, parent: fx.Node, value: fx.Node, view: StorageView) -> fx.Node:
    return emit(aten.select_scatter.default, parent, value, *_select(view))


def _slice(view: StorageView) -> tuple[int, int, int, int]:
    """Returns (dim, start, end, step) of a `slice` step, or of the step to one result of `split`."""
    step = view.step
    assert step is not None
    arguments = _arguments(step)
    if step.op is aten.slice.Tensor:
        dim, start, end, by = arguments
        dim = _dim(view, dim)
        size = _val(view.parent).shape[dim]
        start = _within(start, size)
        length = _val(view).shape[dim]
        end = start + length * by
        return dim, start, end if same(by, 1) or known_at_most(end, size) else min(end, size), by
    sizes, dim = arguments
    dim = _dim(view, dim)
    assert step.index is not None
    start = step.index * sizes if isinstance(sizes, (int, Size)) else sum(sizes[: step.index])
    return dim, start, start + _val(view).shape[dim], 1  # type: ignore[return-value]


def _within(start: int | None, size: int) -> int:
    """Returns the start of a slice in a dimension, normalized by Python's rules."""
    if start is None or same(start, 0):
        return 0
    if start < 0:
        start = start + size
        return start if start > 0 else 0
    return start if start <= size else size


def _read_slice(emit: Emit, parent: fx.Node, view: StorageView) -> fx.Node:
    return emit(aten.slice.Tensor, parent, *_slice(view))


def _write_slice(emit: Emit, parent: fx.Node, value: fx.Node, view: StorageView) -> fx.Node:
    return emit(aten.slice_scatter.default, parent, value, *_slice(view))


def _read_diagonal(emit: Emit, parent: fx.Node, view: StorageView) -> fx.Node:
    return emit(aten.diagonal.default, parent, *_arguments(view.step))


def _write_diagonal(emit: Emit, parent: fx.Node, value: fx.Node, view: StorageView) -> fx.Node:
    return emit(aten.diagonal_scatter.default, parent, value, *_arguments(view.step))


def _read_plain(emit: Emit, parent: fx.Node, view: StorageView) -> fx.Node:
    assert view.step is not None
    return emit(view.step.op, parent, *view.step.args, **view.step.kwargs)


def _write_unfold(emit: Emit, parent: fx.Node, value: fx.Node, view: StorageView) -> fx.Node:
    return _write_strided(emit, parent, value, view)


# -- anything that strides describe --------------------------------------------------------------------------------


def _target(view: StorageView, base: StorageView) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Returns shape, strides and offset of `view`, the offset relative to the first element of `base`."""
    val, own = _val(view), _val(base)
    if val.dtype.itemsize == own.dtype.itemsize:
        return val.shape, val.stride, view.layout.offset - base.layout.offset
    bytes = view.layout.offset * val.dtype.itemsize - base.layout.offset * own.dtype.itemsize
    return val.shape, val.stride, bytes // val.dtype.itemsize


def _to_memory(emit: Emit, node: fx.Node, view: StorageView, base: StorageView) -> fx.Node:
    """Returns the elements of `base` (with value `node`) in memory order, as one dimension; zeros in its gaps.

    The result has the dtype of `view`: an operator of a user's library may reinterpret the memory as another dtype.
    """
    val = _val(base)
    shape, stride, offset = _target(view, base)
    order = memory_order(val)
    other, size = _val(view).dtype, _val(view).dtype.itemsize
    if order is not None and offset >= 0 and reach(shape, stride, offset) * size <= val.numel * val.dtype.itemsize:
        flat = emit(aten.view.default, emit(aten.permute.default, node, order), [val.numel])
        return flat if other is val.dtype else emit(aten.view.dtype, flat, other)
    if order is not None or other is not val.dtype or not lies_within(shape, stride, offset, val):
        raise Unsupported(
            f"{view.step.op if view.step else 'as_strided'} that reaches outside the tensor it is called on",
            why=f"shape {list(shape)}, stride {list(stride)} of a tensor {val}",
            hint="call it on the base tensor, or use slicing",
        )
    flat = emit(aten.full.default, [extent(val.shape, val.stride)], 0, dtype=val.dtype, device=val.device)
    return emit(aten.index_put.default, flat, [_positions(emit, flat, val.shape, val.stride, 0)], node)


def _from_memory(emit: Emit, flat: fx.Node, val: TensorMeta) -> fx.Node:
    order = memory_order(val)
    if flat.meta["val"].dtype is not val.dtype:
        flat = emit(aten.view.dtype, flat, val.dtype)
    if order is None:
        return emit(aten.index.Tensor, flat, [_positions(emit, flat, val.shape, val.stride, 0)])
    return emit(aten.permute.default, emit(aten.view.default, flat, [val.shape[d] for d in order]), inverse(order))


def _read_strided(emit: Emit, parent: fx.Node, view: StorageView) -> fx.Node:
    assert view.parent is not None
    flat = _to_memory(emit, parent, view, view.parent)
    return read_strided(emit, flat, flat.meta["val"].numel, *_target(view, view.parent))


def read_strided(
    emit: Emit, flat: fx.Node, count: int, shape: Sequence[int], stride: Sequence[int], offset: int
) -> fx.Node:
    """Returns `as_strided` of one-dimensional `flat` (`count` elements), by slices if possible, else by indices."""
    blocks = _blocks(count, shape, stride, offset)
    if blocks is None:
        return emit(aten.index.Tensor, flat, [_positions(emit, flat, shape, stride, offset)])
    sizes, windows, order = blocks
    out = emit(aten.view.default, flat, sizes)
    for dim, (start, length) in enumerate(windows):
        out = emit(aten.slice.Tensor, out, dim, start, start + length, 1)
    # dimensions that no stride describes (sizes 1, stride 0 and the block's rest) are restored by view and expand
    moving = [d for d in range(len(shape)) if not same(shape[d], 1) and not same(stride[d], 0)]
    out = emit(aten.view.default, out, [length for _, length in windows[: len(order)]])
    out = emit(aten.permute.default, out, [order.index(d) for d in moving])
    out = emit(aten.view.default, out, [n if d in moving else 1 for d, n in enumerate(shape)])
    return emit(aten.expand.default, out, list(shape))


def _blocks(
    count: int, shape: Sequence[int], stride: Sequence[int], offset: int
) -> tuple[list[int], list[tuple[int, int]], list[int]] | None:
    """Returns block sizes, a (start, length) window in each, and the tensor dimension that each block is (outermost
    first).

    This works if each stride divides the next larger one, no dimension crosses into its neighbour's block, and the
    largest block divides `count`.
    """
    moving = [d for d in range(len(shape)) if not same(shape[d], 1) and not same(stride[d], 0)]
    order = sorted(moving, key=lambda d: -hint(stride[d]))
    if any(same(n, 0) for n in shape) or any(s < 0 for s in stride):
        return None
    sizes, windows = [], []
    above = count
    for d in order:
        if above % stride[d]:
            return None
        sizes.append(above // stride[d])
        start, offset = divmod(offset, stride[d])
        if start + shape[d] > sizes[-1]:
            return None
        windows.append((start, shape[d]))
        above = stride[d]
    return [*sizes, above], [*windows, (offset, 1)], order


def _positions(emit: Emit, flat: fx.Node, shape: Sequence[int], stride: Sequence[int], offset: int) -> fx.Node:
    """Returns the int64 positions in memory of every element of a strided view, in shape `shape`."""
    device = flat.meta["val"].device
    total = emit(aten.full.default, [], offset, dtype=torch.int64, device=device)
    for d, (size, step) in enumerate(zip(shape, stride, strict=True)):
        steps = emit(aten.mul.Tensor, emit(aten.arange.default, size, dtype=torch.int64, device=device), step)
        steps = emit(aten.view.default, steps, [size if i == d else 1 for i in range(len(shape))])
        total = emit(aten.add.Tensor, total, steps)
    return total


def _write_strided(emit: Emit, parent: fx.Node, value: fx.Node, view: StorageView) -> fx.Node:
    assert view.parent is not None
    return _write_positions(emit, parent, value, view, view.parent)


def _write_positions(emit: Emit, node: fx.Node, value: fx.Node, view: StorageView, base: StorageView) -> fx.Node:
    """Returns the new value of `base` (now `node`) after `value` was written to `view`."""
    flat = _to_memory(emit, node, view, base)
    positions = _positions(emit, flat, *_target(view, base))
    return _from_memory(emit, emit(aten.index_put.default, flat, [positions], value), _val(base))


_SAME = (_read_same, _write_same)
_RESHAPE = (_read_reshape, _write_reshape)
_PERMUTE = (_read_permute, _write_permute)
_SELECT = (_read_select, _write_select)
_SLICE = (_read_slice, _write_slice)

_RULES: dict[OpOverload, tuple[Read, Write]] = {
    aten.detach.default: _SAME,
    aten.alias.default: _SAME,
    aten.view.default: _RESHAPE,
    aten._unsafe_view.default: _RESHAPE,
    aten._reshape_alias.default: _RESHAPE,
    aten.squeeze.default: _RESHAPE,
    aten.squeeze.dim: _RESHAPE,
    aten.squeeze.dims: _RESHAPE,
    aten.unsqueeze.default: _RESHAPE,
    aten.view.dtype: (_read_dtype, _write_dtype),
    aten.view_as_real.default: _paired(aten.view_as_real.default, aten.view_as_complex.default),
    aten._conj.default: _paired(aten._conj_physical.default, aten._conj_physical.default),
    aten._neg_view.default: _paired(aten.neg.default, aten.neg.default),
    aten.view_as_complex.default: _paired(aten.view_as_complex.default, aten.view_as_real.default),
    aten.t.default: _PERMUTE,
    aten.transpose.int: _PERMUTE,
    aten.permute.default: _PERMUTE,
    aten.expand.default: (_read_expand, _write_expand),
    aten.select.int: _SELECT,
    aten.unbind.int: _SELECT,
    aten.slice.Tensor: _SLICE,
    aten.split.Tensor: _SLICE,
    aten.split_with_sizes.default: _SLICE,
    aten.diagonal.default: (_read_diagonal, _write_diagonal),
    aten.unfold.default: (_read_plain, _write_unfold),
}
"""For each view operator, the functions that read and write through it. Other views are read and written by their
strides.
"""
