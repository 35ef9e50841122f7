"""Metadata of elementwise operators: the layouts that PyTorch's TensorIterator would allocate, without running it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise, repeat
from typing import Any

import torch

from smelt.base.torch_private import OpOverload, schema_of
from smelt.graph.ir.meta import TensorMeta, channels_last_stride, contiguous_stride, is_dense, may_overlap, same_steps
from smelt.graph.ir.schema import Kind, OpInfo, op_info
from smelt.graph.ir.storage_view import Layout, ViewedTensor, layout_for
from smelt.shapes.real import Real
from smelt.shapes.size import (
    IntLike,
    Size,
    hint,
    is_symbolic,
    known_at_most,
    known_equal,
    known_less,
    of_factor,
    same,
    same_all,
    substitute,
    symbols,
)
from smelt.shapes.unbacked import is_unbacked, usually

aten = torch.ops.aten


def on_lists(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    """Returns the results of `_foreach_*` on lists of floating point tensors whose i-th items are alike: each result is
    like those items.
    """
    columns = [a for a in args if isinstance(a, (list, tuple)) and a and isinstance(a[0], ViewedTensor)]
    if not columns or any(len(column) != len(columns[0]) for column in columns):
        return None
    answers = []
    for row in zip(*columns, strict=True):
        answer = _of_row(row)
        if answer is None:
            return None
        answers.append(answer)
    return () if op_info(func).kind is Kind.WRITE else answers


def _of_row(row: Sequence[Any]) -> Layout | None:
    if not all(isinstance(each, ViewedTensor) for each in row):
        return None
    first, *others = map(val_of, row)
    if not first.dtype.is_floating_point or not all(_is_alike(first, other) for other in others):
        return None
    if may_overlap(first.shape, first.stride):
        return None
    stride = result_stride(first.shape, [first, *others], False)
    return layout_for(first.shape, first.dtype, stride, first.device)


def _is_alike(a: TensorMeta, b: TensorMeta) -> bool:
    return a.dtype == b.dtype and a.device == b.device and same_all(a.shape, b.shape)


_REDUCING = frozenset({"aten::_foreach_norm", "aten::_foreach_max", "aten::_foreach_mm"})


def elementwise_rule(func: OpOverload, info: OpInfo) -> Callable[..., Any] | None:
    """Returns the rule of an operator that works element by element, or None."""
    if schema_of(func).name.startswith("aten::_foreach_") and schema_of(func).name not in _REDUCING:
        return on_lists
    if torch.Tag.pointwise not in func.tags and func not in _ALSO_POINTWISE:
        return None
    if info.random or func in _NOT_POINTWISE or any(name != "self" for name in info.written):
        return None
    return elementwise_in_place if info.kind is Kind.WRITE else elementwise


_ALSO_POINTWISE = frozenset(
    {
        aten.floor_divide.default,
        aten.floor_divide_.Tensor,
        aten._prelu_kernel.default,
        aten.complex.default,
        aten.hardswish.default,
        aten.hardswish_backward.default,
        aten.hardsigmoid_backward.default,
        aten.hardtanh_backward.default,
        aten.leaky_relu_backward.default,
        aten.polar.default,
        aten.elu_backward.default,
        aten.softplus_backward.default,
    }
)
"""Elementwise operators without PyTorch's tag."""

_NOT_POINTWISE = frozenset({aten.clone.default, aten.mvlgamma.default, aten.masked_fill.Scalar})
"""Operators with the tag whose strides depend on further arguments."""

_LIKE_THE_FIRST = frozenset(
    {
        aten._conj_physical.default,
        aten._prelu_kernel.default,
        aten.deg2rad.default,
        aten.frexp.Tensor,
        aten.hardtanh.default,
        aten.nan_to_num.default,
        aten.rad2deg.default,
    }
)
"""Operators whose result `empty_like` allocates before TensorIterator sees it."""

_OPERANDS_SWAPPED = frozenset({aten.threshold_backward.default, aten.rsub.Tensor})
"""Operators that pass their operands to TensorIterator in the opposite order."""

_WITHOUT_OPERAND = frozenset(
    {aten.pow.Scalar, aten.pow.Tensor_Scalar, aten.float_power.Tensor_Scalar, aten.lerp.Scalar}
)
"""Overloads whose number is a parameter of the computation; in other `Scalar` overloads the number is an operand of
TensorIterator without dimensions.
"""


def val_of(tensor: Any) -> TensorMeta:
    """Returns the metadata of a trace tensor."""
    return tensor.storage_view.layout.val


def elementwise(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    """Returns the result: shape by broadcasting, strides by the operands' order of dimensions, dtype by a run of the
    real operator.
    """
    if "memory_format" in kwargs or any(isinstance(v, ViewedTensor) for v in kwargs.values()):
        return None
    operands = [val_of(a) for a in args if isinstance(a, ViewedTensor)]
    if func in _OPERANDS_SWAPPED:
        operands.reverse()
    shape = broadcast(operands)
    if shape is None or any(isinstance(a, (list, tuple)) for a in args):
        return None
    results = func(*map(_tiny, args), **{name: _tiny(value) for name, value in kwargs.items()})
    stride = _stride_of(func, args, shape, operands, getattr(results, "dtype", None))
    device = next((o.device for o in operands if o.shape), operands[0].device)
    if isinstance(results, torch.Tensor):
        return layout_for(shape, results.dtype, stride, device)
    return tuple(layout_for(shape, r.dtype, stride, device) for r in results)


def elementwise_in_place(func: OpOverload, args: Sequence[Any], kwargs: Any) -> Any:
    """Returns the written tensor's own layout; a run of the real operator shows whether the result's dtype can be cast
    to it.
    """
    operands = [val_of(a) for a in args if isinstance(a, ViewedTensor)]
    val = val_of(args[0])
    shape = broadcast(operands)
    if kwargs or shape is None or not same_all(shape, val.shape) or may_overlap(val.shape, val.stride):
        return None
    if any(isinstance(a, (list, tuple)) for a in args):
        return None
    func(_make_tiny(val.dtype, len(val.shape)), *map(_tiny, args[1:]))
    return args[0].storage_view.layout


def _tiny(value: Any) -> Any:
    """Returns a real tensor that promotes as `value` does: without elements, or with one if `value` has no
    dimensions.
    """
    if not isinstance(value, ViewedTensor):
        return hint(value) if type(value) is Size else value.hint if type(value) is Real else value
    val = val_of(value)
    return _shared_tiny(val.dtype, len(val.shape))


def _make_tiny(dtype: torch.dtype, ndim: int) -> torch.Tensor:
    return torch.ones((0,) * ndim, dtype=dtype)


_shared_tiny = functools.lru_cache(maxsize=None)(_make_tiny)


def broadcast(operands: Sequence[TensorMeta]) -> tuple[int, ...] | None:
    """Returns the common shape, or None if there is none."""
    if not operands:
        return None
    first = operands[0].shape
    if all(map(same_all, [o.shape for o in operands], repeat(first))):
        return first
    ndim = max(o.ndim for o in operands)
    shape = [1] * ndim
    for operand in operands:
        for i, size in enumerate(operand.shape, ndim - operand.ndim):
            if same(shape[i], 1):
                shape[i] = size
            elif not same(size, 1) and size != shape[i] and size != 1:
                if shape[i] != 1:
                    return None
                shape[i] = size
    return tuple(shape)


def _stride_of(func: OpOverload, args: Sequence[Any], shape: Any, operands: Sequence[TensorMeta], dtype: Any) -> Any:
    """Returns the strides of the results; `dtype`: that of a single result."""
    if func in _LIKE_THE_FIRST or (func is aten.isinf.default and _is_whole(operands[0].dtype)):
        return dense_stride(operands[0])
    if func is aten.angle.default and operands[0].dtype.is_complex:  # the real component of a complex result, row-major
        return contiguous_stride(shape)
    read = operands if func is aten.where.self else [_as_read(o, dtype) for o in operands]
    sorted_at_once = func is aten.abs.default and operands[0].dtype.is_complex  # not converted to its dtype
    return result_stride(shape, read, sorted_at_once or _number_operands(func, args))


def _is_whole(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex)


def dense_stride(val: TensorMeta) -> tuple[int, ...]:
    """Returns the strides that `empty_like` gives."""
    if is_dense(val.shape, val.stride):
        return val.stride
    shape = layout_sizes(val.shape)
    return val.stride if is_dense(shape, val.stride) else result_stride(shape, [replace(val, shape=shape)], False)


def layout_sizes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the sizes, after guards have decided which of them are 1: the layout depends on it.

    A size that was computed from others (`n - 1`, `n // 2`) may be 1 at some call; the stride of such a dimension does
    not determine the layout. Unbacked sizes stay undecided. The guard is an inequality (size < 2): an equality would
    replace the size by a number, while other values still contain the old expression. For a size below 2 it is also
    decided whether it is 0: a tensor without elements keeps any strides.
    """
    return tuple(int(n >= 1) if isinstance(n, Size) and not is_unbacked(n) and n < 2 else n for n in shape)


def _as_read(val: TensorMeta, dtype: torch.dtype | None) -> TensorMeta:
    """Returns an operand as TensorIterator reads it: on a CPU it is converted first, into memory without gaps."""
    if dtype is None or not dtype.is_floating_point or val.dtype is dtype or val.device.type != "cpu":
        return val
    return val if is_dense(val.shape, val.stride) else replace(val, stride=dense_stride(val))


def _number_operands(func: OpOverload, args: Sequence[Any]) -> bool:
    """Whether a number is an operand: it is passed for a tensor parameter, or the overload takes it as a scalar."""
    if "calar" in func._overloadname and func not in _WITHOUT_OPERAND:
        return True
    parameters = schema_of(func).arguments
    return any(
        isinstance(a, (int, float, complex, Size, Real)) and "Tensor" in str(p.type)
        for a, p in zip(args, parameters, strict=False)
    )


def result_stride(shape: tuple[int, ...], operands: Sequence[TensorMeta], numbers: bool) -> tuple[int, ...]:
    """Returns the strides that PyTorch's TensorIterator gives a fresh result.

    If all operands have one dense layout, the result has it too. Otherwise the dimensions are sorted, innermost first,
    by the first operand that distinguishes two of them. (PyTorch: aten/src/ATen/TensorIterator.cpp,
    `reorder_dimensions`.)
    """
    alike = None if numbers and shape else _stride_of_alike(shape, operands)
    if alike is not None:
        return alike
    if is_symbolic(shape) and _all_in_rows(shape, operands):
        return contiguous_stride(shape)
    shape, operands = layout_sizes(shape), _operands_for_layout(operands)
    rows = [_broadcast_stride(o, shape) for o in operands]
    order = list(range(len(shape) - 1, -1, -1))
    for i in range(1, len(order)):
        at = i
        for j in range(i - 1, -1, -1):
            verdict = _compare(order[j], order[at], rows, shape)
            if verdict > 0:
                order[j], order[at] = order[at], order[j]
                at = j
            elif verdict < 0:
                break
    stride = [0] * len(shape)
    step = 1
    for d in order:
        stride[d] = step
        step *= shape[d]
    return contiguous_stride(shape) if order == sorted(order, reverse=True) else tuple(stride)


def _stride_of_alike(shape: tuple[int, ...], operands: Sequence[TensorMeta]) -> tuple[int, ...] | None:
    """Returns the strides of a result of operands with one shape and layout; None if they differ."""
    rows = all(map(is_row_major, operands))
    if not rows:
        shape, operands = layout_sizes(shape), _operands_for_layout(operands)
        rows = all(map(is_row_major, operands))
    if not all(_has_shape(o, shape) for o in operands):
        return None
    if rows:
        return contiguous_stride(shape)
    if len(shape) == 4 and all(same_steps(shape, o.stride, channels_last_stride(shape)) for o in operands):
        return channels_last_stride(shape)
    one = len({o.stride for o in operands}) == 1 and is_dense(shape, operands[0].stride)
    return operands[0].stride if one else None


def _operands_for_layout(operands: Sequence[TensorMeta]) -> list[TensorMeta]:
    """Returns the operands, after guards have decided which of their sizes are 1; symbols in their strides whose values
    are known are replaced by numbers.
    """
    whole = [replace(o, shape=layout_sizes(o.shape)) if o.symbolic else o for o in operands]
    return [replace(o, stride=_in_known_numbers(o.stride)) if o.symbolic else o for o in whole]


def _in_known_numbers(stride: tuple[int, ...]) -> tuple[int, ...]:
    """Returns strides in which symbols that can only have one value are replaced by it."""
    known = {
        s: s.low for s in {*symbols(*stride)} if not is_unbacked(of_factor(s)) and known_at_most(of_factor(s), s.low)
    }
    return tuple(substitute(step, known) for step in stride) if known else stride  # type: ignore[arg-type,misc]


def _has_shape(val: TensorMeta, shape: Sequence[IntLike]) -> bool:
    """Whether the operand is known to have this shape, perhaps because it was broadcast to it."""
    return same_all(val.shape, shape) or (val.ndim == len(shape) and all(map(known_equal, val.shape, shape)))


def is_row_major(val: TensorMeta) -> bool:
    wanted = contiguous_stride(val.shape)
    if all(same(n, 1) or known_equal(a, b) for n, a, b in zip(val.shape, val.stride, wanted, strict=True)):
        return True
    return any(same(n, 0) for n in val.shape)


def _in_rows(val: TensorMeta) -> bool:
    """Whether dimensions are known to be ordered from the outermost to the innermost, with or without gaps.

    A computed size that is 1 at some call changes only the stride of its own dimension.
    """
    kept = [(n, s) for n, s in zip(val.shape, val.stride, strict=True) if not same(n, 1) and not same(s, 0)]
    return all(known_less(s, above) or known_equal(above, s * n) for (_, above), (n, s) in pairwise(kept))


def _all_in_rows(shape: Sequence[int], operands: Sequence[TensorMeta]) -> bool:
    """Whether the order of dimensions is row-major; shapes with sizes 0 and 1 are left to the general case."""
    return not any(same(n, 0) or same(n, 1) for n in shape) and all(map(_in_rows, operands))


def _broadcast_stride(val: TensorMeta, shape: Sequence[int]) -> list[int]:
    before = len(shape) - val.ndim
    own = [
        0 if same(n, 1) and not same(shape[before + i], 1) else s
        for i, (n, s) in enumerate(zip(val.shape, val.stride, strict=True))
    ]
    return [0] * before + own


def _at_most(a: IntLike, b: IntLike) -> bool:
    """Whether a <= b is known or may be assumed: in a tensor without elements the order does not matter."""
    return known_at_most(a, b) or usually(b - a, 0)


def _sign(outer: IntLike, inner: IntLike) -> int:
    """Returns 1 if the first stride is larger, -1 if the second is, 0 if they are equal at this call.

    Of two computed strides (`n - 1` and 1) either may be larger; which one it is becomes a guard, an inequality. For
    unbacked sizes the usual case is assumed.
    """
    if same(outer, inner):
        return 0
    if known_less(inner, outer):
        return 1
    if is_unbacked(outer, inner):
        return 1 if _at_most(inner, outer) or (not _at_most(outer, inner) and outer > inner) else -1
    return int(outer > inner) or -int(inner > outer)


def _compare(a: int, b: int, rows: Sequence[Sequence[int]], shape: Sequence[int]) -> int:
    """Returns a positive number if dimension `b` should be outside of `a`, a negative one if the order is right, 0 if
    no operand decides.
    """
    for row in rows:
        outer, inner = row[a], row[b]
        if same(outer, 0) or same(inner, 0):
            continue
        verdict = _sign(outer, inner)
        if verdict:
            return verdict
        if not _at_most(shape[a], shape[b]) and shape[a] > shape[b]:
            return 1
    return 0
