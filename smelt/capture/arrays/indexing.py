"""Items and slices of arrays of the graph, with the keys that both libraries read alike."""

from __future__ import annotations

import math
import operator

import numpy
import torch

from smelt.base.class_tables import classes, isinstance
from smelt.capture.arrays.array import TensorArray, needs_values
from smelt.capture.arrays.operands import operand, record, rounded, shown
from smelt.capture.core.interface import Interpreter
from smelt.capture.core.prologue_value import PrologueValue
from smelt.graph.ir.symint import SYMBOLIC_CLASSES
from smelt.graph.trace.trace import TraceTensor

_COUNTS = classes(int, torch.SymInt)


def item(vm: Interpreter, array: TensorArray, key: object) -> TensorArray:
    """`array[key]`: a view, a copy for keys with arrays, or a NumPy number."""
    if array.scalar:
        raise needs_values("an item of a numpy number")
    key, picks = _key(vm, array, key)
    out = record(vm, operator.getitem, array.tensor, key)
    if picks:  # a number keeps its value when the array changes
        return shown(vm, record(vm, torch.clone, out), scalar=True)
    return shown(vm, out)


def _key(vm: Interpreter, array: TensorArray, key: object) -> tuple[object, bool]:
    """(the key for the tensor, whether it picks one element, which NumPy returns as a number)."""
    key = vm.effects.plain(key)
    parts = key if type(key) is tuple else (key,)
    out = tuple(_part(vm, part) for part in parts)
    numbers = sum(type(part) in _COUNTS for part in out)
    masks = any(type(part) is TraceTensor for part in out)
    if masks and (array.tensor.dim() == 0 or numbers):
        raise needs_values("an array indexed by arrays and numbers")
    return out, numbers == array.tensor.dim() == len(out) and numbers > 0


def _part(vm: Interpreter, part: object) -> object:
    if part is None or part is Ellipsis or type(part) in _COUNTS:
        return part
    if type(part) is slice:
        return _slice(part)
    if isinstance(part, numpy.integer):
        return int(part)
    if isinstance(part, list) or type(part) is TensorArray or type(part) is PrologueValue:
        index = operand(vm, part)
        whole = isinstance(index.kind, numpy.dtype) and index.kind.kind in "biu"
        if index.is_tensor and whole and index.dims:
            is_mask = index.value.dtype in (torch.bool, torch.int64)
            return index.value if is_mask else record(vm, torch.Tensor.to, index.value, torch.int64, method="to")
    raise needs_values(f"an array indexed by a {vm.type_of(part).__name__}")


def _slice(part: slice) -> slice:
    """The slice, if torch has it.

    Raises:
        Break: it runs backwards.
    """
    for bound in (part.start, part.stop, part.step):
        if bound is not None and type(bound) not in _COUNTS:
            raise needs_values(f"an array sliced with a {type(bound).__name__}")
    if part.step is not None and part.step <= 0:
        raise needs_values("an array sliced backwards")
    return part


def store(vm: Interpreter, array: TensorArray, key: object, value: object) -> None:
    """`array[key] = value`"""
    if array.scalar:
        raise needs_values("an item of a numpy number is set")
    key, _ = _key(vm, array, key)
    record(vm, operator.setitem, array.tensor, key, stored(vm, array, value))


def stored(vm: Interpreter, array: TensorArray, value: object) -> object:
    """A value as it is written into an array: NumPy converts it to the array's dtype.

    Raises:
        Break: the dtype does not hold the value, for which NumPy raises or warns.
    """
    given = operand(vm, value)
    dtype = array.np_dtype
    is_complex = given.kind is complex or isinstance(given.kind, numpy.dtype) and given.kind.kind == "c"
    if is_complex and dtype.kind != "c":
        raise needs_values("complex numbers written into an array of real ones")
    if given.is_tensor or type(given.value) in SYMBOLIC_CLASSES or type(given.value) is PrologueValue:
        return given.value
    if dtype.kind in "iu" and type(given.value) is float and not math.isfinite(given.value):
        raise needs_values("a number beyond integers written into an array of integers")
    return rounded(given.value if dtype.kind not in "iu" else int(given.value), dtype)
