"""Captured forms of NumPy's functions and methods that change shapes, join, select and copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy
import torch
from torch.utils._pytree import PyTree

from smelt.base.class_tables import isinstance
from smelt.capture.arrays.array import Dtype, TensorArray, needs_values
from smelt.capture.arrays.indexing import stored
from smelt.capture.arrays.operands import Operand, as_dtype, cast, operand, record, shown, to_dtype, torch_dtype
from smelt.capture.core.interface import Interpreter
from smelt.graph.trace.trace import TraceTensor

_CPU = torch.device("cpu")


def _tensor(vm: Interpreter, value: object) -> TraceTensor:
    given = operand(vm, value)
    if not given.is_tensor:
        raise needs_values("numpy with a number in place of an array")
    tensor: TraceTensor = given.value
    return tensor


def _sizes(vm: Interpreter, shape: Sequence[PyTree]) -> tuple[PyTree, ...]:
    """A shape given as one sequence or as several numbers."""
    plain = vm.effects.plain(shape[0]) if len(shape) == 1 else shape
    sizes = tuple(plain) if isinstance(plain, (tuple, list)) else (plain,)
    if not all(type(size) is int or type(size) is torch.SymInt for size in sizes):
        raise needs_values("numpy with a shape that is not known")
    return sizes


def reshape(vm: Interpreter, a: object, *shape: PyTree) -> TensorArray:
    """`a.reshape(*shape)`, in C order."""
    return shown(vm, record(vm, torch.reshape, _tensor(vm, a), _sizes(vm, shape)))


def ravel(vm: Interpreter, a: object) -> TensorArray:
    """`a.ravel()`, in C order."""
    return shown(vm, record(vm, torch.ravel, _tensor(vm, a)))


def flatten(vm: Interpreter, a: object) -> TensorArray:
    """`a.flatten()`: a copy."""
    return shown(vm, record(vm, torch.clone, record(vm, torch.reshape, _tensor(vm, a), (-1,))))


def transpose(vm: Interpreter, a: object, *axes: PyTree) -> TensorArray:
    """`a.transpose(*axes)`; without axes, all in reversed order."""
    x = _tensor(vm, a)
    order = tuple(reversed(range(x.dim()))) if not axes or axes == (None,) else _sizes(vm, axes)
    return shown(vm, record(vm, torch.permute, x, order))


def swapaxes(vm: Interpreter, a: object, axis1: int, axis2: int) -> TensorArray:
    """`a.swapaxes(axis1, axis2)`"""
    return shown(vm, record(vm, torch.swapaxes, _tensor(vm, a), axis1, axis2))


def moveaxis(vm: Interpreter, a: object, source: PyTree, destination: PyTree) -> TensorArray:
    """`numpy.moveaxis(a, source, destination)`"""
    return shown(vm, record(vm, torch.movedim, _tensor(vm, a), _sizes(vm, (source,)), _sizes(vm, (destination,))))


def squeeze(vm: Interpreter, a: object, axis: object = None) -> TensorArray:
    """`a.squeeze(axis)`; NumPy raises an error for an axis whose size is not 1."""
    x = _tensor(vm, a)
    if axis is None:
        return shown(vm, record(vm, torch.squeeze, x))
    axes = _sizes(vm, (axis,))
    if any(not -x.dim() <= each < x.dim() or x.shape[each] != 1 for each in axes):
        raise needs_values(f"numpy.squeeze with axis={axis!r}")
    return shown(vm, record(vm, torch.squeeze, x, axes))


def expand_dims(vm: Interpreter, a: object, axis: object) -> TensorArray:
    """`numpy.expand_dims(a, axis)`"""
    if type(axis) is not int:
        raise needs_values("numpy.expand_dims with several axes")
    return shown(vm, record(vm, torch.unsqueeze, _tensor(vm, a), axis))


def repeat(vm: Interpreter, a: object, repeats: object, axis: object = None) -> TensorArray:
    """`a.repeat(repeats, axis)` with one count."""
    if type(repeats) is not int:
        raise needs_values("numpy.repeat with several counts")
    return shown(vm, record(vm, torch.repeat_interleave, _tensor(vm, a), repeats, axis))


def tile(vm: Interpreter, A: object, reps: object) -> TensorArray:  # noqa: N803 (NumPy's name)
    """`numpy.tile(A, reps)`"""
    return shown(vm, record(vm, torch.tile, _tensor(vm, A), _sizes(vm, (reps,))))


def roll(vm: Interpreter, a: object, shift: object, axis: object = None) -> TensorArray:
    """`numpy.roll(a, shift, axis)`"""
    if type(shift) is not int or axis is not None and type(axis) is not int:
        raise needs_values("numpy.roll over several axes")
    return shown(vm, record(vm, torch.roll, _tensor(vm, a), shift, axis))


def astype(vm: Interpreter, a: TensorArray, dtype: object, copy: object = True) -> TensorArray:
    """`a.astype(dtype, copy=copy)`"""
    wanted = as_dtype(vm, dtype)
    if a.np_dtype.kind == "c" and wanted.kind != "c":
        raise needs_values("complex numbers converted to real ones")
    if not copy and wanted == a.np_dtype:
        return a
    made = record(vm, torch.Tensor.to, a.tensor, torch_dtype(wanted), method="to", copy=True)
    return shown(vm, made, scalar=a.scalar)


def copied(vm: Interpreter, a: object) -> TensorArray:
    """`a.copy()`, of a number as well."""
    return shown(vm, record(vm, torch.clone, _tensor(vm, a)), scalar=type(a) is TensorArray and a.scalar)


def array(vm: Interpreter, object: object, dtype: object = None, copy: object = True) -> TensorArray:
    """`numpy.array(object, dtype, copy=copy)` of an array, a tensor or a NumPy number."""
    if type(object) is not TensorArray:
        raise needs_values("numpy.array of a list with arrays")
    same = dtype is None or as_dtype(vm, dtype) == object.np_dtype
    if same and copy is None and not object.scalar:
        return object
    if copy is False:
        raise needs_values("numpy.array with copy=False")
    whole = TensorArray(object.tensor)
    return copied(vm, whole) if same else astype(vm, whole, dtype)


def asarray(vm: Interpreter, a: object, dtype: object = None) -> TensorArray:
    """`numpy.asarray(a, dtype)`"""
    return array(vm, a, dtype, None)


def fill(vm: Interpreter, a: TensorArray, value: object) -> None:
    """`a.fill(value)`"""
    record(vm, torch.Tensor.fill_, a.tensor, stored(vm, a, value), method="fill_")


def _joined(vm: Interpreter, arrays: object) -> list[PyTree]:
    """The tensors of a sequence of arrays in their common dtype."""
    items = vm.effects.plain(arrays)
    if type(items) is not list and type(items) is not tuple or not items:
        raise needs_values("numpy with an array in place of a sequence of arrays")
    operands = [operand(vm, each) for each in items]
    dtype = numpy.result_type(*(_strong(each) for each in operands))
    return [cast(vm, each, dtype, True) for each in operands]


def _strong(given: Operand) -> Dtype:
    """The dtype of an operand as an array: a Python number in a sequence becomes an array of the default dtype."""
    if isinstance(given.kind, numpy.dtype):
        return given.kind
    return numpy.dtype(given.kind)


def concatenate(vm: Interpreter, arrays: object, axis: object = 0) -> TensorArray:
    """`numpy.concatenate(arrays, axis)`"""
    tensors = _joined(vm, arrays)
    if any(each.dim() != tensors[0].dim() or not each.dim() for each in tensors):
        raise needs_values("numpy.concatenate of arrays with different numbers of axes")
    if axis is None:
        tensors, axis = [record(vm, torch.ravel, each) for each in tensors], 0
    return shown(vm, record(vm, torch.cat, tensors, axis))


def _stacking(fn: Callable[..., PyTree]) -> Callable[..., TensorArray]:
    def stacked(vm: Interpreter, arrays: object) -> TensorArray:
        return shown(vm, record(vm, fn, _joined(vm, arrays)))

    return stacked


def stack(vm: Interpreter, arrays: object, axis: int = 0) -> TensorArray:
    """`numpy.stack(arrays, axis)`"""
    return shown(vm, record(vm, torch.stack, _joined(vm, arrays), axis))


def where(vm: Interpreter, condition: object, x: object, y: object) -> TensorArray:
    """`numpy.where(condition, x, y)`"""
    chosen = operand(vm, condition)
    given = operand(vm, x), operand(vm, y)
    dtype = _common(given)
    mask = cast(vm, chosen, numpy.dtype(bool), True)
    values = [cast(vm, each, dtype, True) for each in given]
    return shown(vm, record(vm, torch.where, mask, *values), dtype)


def _common(given: Sequence[Operand]) -> Dtype:
    """The dtype of `numpy.result_type`, for which Python numbers are weak."""
    dtypes = [each.kind(0) if isinstance(each.kind, type) else each.kind for each in given]
    return numpy.result_type(*dtypes)


def clip(vm: Interpreter, a: object, a_min: object = None, a_max: object = None) -> TensorArray:
    """`a.clip(a_min, a_max)`, which is NaN where an operand is."""
    bounds = [
        (fn, operand(vm, each)) for fn, each in ((torch.maximum, a_min), (torch.minimum, a_max)) if each is not None
    ]
    x = operand(vm, a)
    dtype = _common([x, *(bound for _, bound in bounds)])
    if not bounds or dtype.kind not in "biuf" or not x.is_tensor:
        raise needs_values("numpy.clip without bounds, or of complex numbers")
    out = to_dtype(vm, x.value, dtype)
    for fn, bound in bounds:
        out = record(vm, fn, out, cast(vm, bound, dtype, True))
    return shown(vm, out, scalar=not out.dim())


def round_(vm: Interpreter, a: object, decimals: object = 0) -> TensorArray:
    """`a.round()`, to whole numbers."""
    x = _tensor(vm, a)
    if decimals != 0 or not x.is_floating_point():
        raise needs_values("numpy.round to decimals, or of integers")
    return shown(vm, record(vm, torch.round, x), scalar=not x.dim())


def _like(fill_value: object) -> Callable[..., TensorArray]:
    def made(vm: Interpreter, a: object, dtype: object = None) -> TensorArray:
        return full_like(vm, a, fill_value, dtype)

    return made


def full_like(vm: Interpreter, a: object, fill_value: object, dtype: object = None) -> TensorArray:
    """`numpy.full_like(a, fill_value, dtype)`"""
    x = _tensor(vm, a)
    wanted = x.dtype if dtype is None else torch_dtype(as_dtype(vm, dtype))
    out = shown(vm, record(vm, torch.zeros_like, x, dtype=wanted))
    if type(fill_value) is not int or fill_value:
        fill(vm, out, fill_value)
    return out


def tri(fn: Callable[..., PyTree]) -> Callable[..., TensorArray]:
    """The captured form of `numpy.tril(m, k)` or `numpy.triu(m, k)`."""

    def kept(vm: Interpreter, m: object, k: int = 0) -> TensorArray:
        return shown(vm, record(vm, fn, _tensor(vm, m), k))

    return kept


def nonzero(vm: Interpreter, a: object) -> tuple[TensorArray, ...]:
    """`a.nonzero()`"""
    x = _tensor(vm, a)
    if not x.dim():
        raise needs_values("numpy.nonzero of a number")
    found = record(
        vm, torch.stack, record(vm, torch.nonzero, x, as_tuple=True), 1
    )  # NumPy's results are columns of rows
    return tuple(shown(vm, each) for each in record(vm, torch.unbind, found, 1))


FUNCTIONS: dict[Callable[..., PyTree], Callable[..., object]] = {
    numpy.reshape: reshape,
    numpy.ravel: ravel,
    numpy.transpose: transpose,
    numpy.swapaxes: swapaxes,
    numpy.moveaxis: moveaxis,
    numpy.squeeze: squeeze,
    numpy.expand_dims: expand_dims,
    numpy.repeat: repeat,
    numpy.tile: tile,
    numpy.roll: roll,
    numpy.copy: copied,
    numpy.array: array,
    numpy.asarray: asarray,
    numpy.concatenate: concatenate,
    numpy.stack: stack,
    numpy.vstack: _stacking(torch.vstack),
    numpy.hstack: _stacking(torch.hstack),
    numpy.dstack: _stacking(torch.dstack),
    numpy.column_stack: _stacking(torch.column_stack),
    numpy.where: where,
    numpy.clip: clip,
    numpy.round: round_,
    numpy.zeros_like: _like(0),
    numpy.ones_like: _like(1),
    numpy.empty_like: _like(0),
    numpy.full_like: full_like,
    numpy.tril: tri(torch.tril),
    numpy.triu: tri(torch.triu),
    numpy.nonzero: nonzero,
}
"""Function of NumPy -> its captured form, with the parameters that it has a form for."""

METHODS: dict[str, Callable[..., object]] = {
    "reshape": reshape,
    "ravel": ravel,
    "flatten": flatten,
    "transpose": transpose,
    "swapaxes": swapaxes,
    "squeeze": squeeze,
    "repeat": repeat,
    "astype": astype,
    "copy": copied,
    "fill": fill,
    "clip": clip,
    "round": round_,
    "nonzero": nonzero,
}
"""Method of an array -> its captured form."""
