"""Operands of NumPy functions: their dtype for NumPy's promotion, and their values as tensors of the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy
import torch
from torch.utils._pytree import PyTree

from smelt.base.class_tables import isinstance
from smelt.capture.arrays.array import TORCH_OF, Dtype, TensorArray, needs_values
from smelt.capture.core.breaks import Break, UserError
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.prologue_value import PrologueValue
from smelt.graph.ir.symint import SYMBOLIC_CLASSES
from smelt.graph.trace.trace import TraceTensor

Kind: TypeAlias = "Dtype | type"
"""What NumPy's promotion sees of an operand: a dtype, or the class of a Python number, whose dtype is weak."""

_WEAK: dict[type, type] = {int: int, float: float, complex: complex, torch.SymInt: int, torch.SymFloat: float}


@dataclass(frozen=True)
class Operand:
    """An operand of a NumPy function.

    Attributes:
        value: a tensor, a Python number, a symbolic number, or a number of the prologue.
        kind: the dtype, or the class of a Python number.
    """

    value: PyTree
    kind: Kind

    @property
    def is_tensor(self) -> bool:
        return type(self.value) is TraceTensor

    @property
    def dims(self) -> int:
        return self.value.dim() if self.is_tensor else 0


def record(
    vm: Interpreter, fn: Callable[..., PyTree], *args: PyTree, method: str | None = None, **kwargs: PyTree
) -> PyTree:
    """The result of a torch function, which the graph computes.

    Raises:
        Break: the function refuses its arguments; NumPy then raises its own error, or computes the result.
    """
    try:
        return vm.tensors.run(fn, args, kwargs, method=method)
    except UserError as error:
        raise Break("numpy with arguments that torch refuses", str(error.error).split("\n")[0]) from None


def to_dtype(vm: Interpreter, tensor: TraceTensor, dtype: Dtype) -> TraceTensor:
    """The tensor, converted if it has another dtype."""
    wanted = torch_dtype(dtype)
    if tensor.dtype is wanted:
        return tensor
    out: TraceTensor = record(vm, torch.Tensor.to, tensor, wanted, method="to")
    return out


def torch_dtype(dtype: object) -> torch.dtype:
    """The tensor's dtype for an array's dtype.

    Raises:
        Break: torch computes with no such dtype.
    """
    found = TORCH_OF.get(dtype) if isinstance(dtype, numpy.dtype) else None
    if found is None:
        raise Break(f"numpy's dtype {dtype}", "torch computes with no such dtype")
    return found


def as_dtype(vm: Interpreter, value: object) -> Dtype:
    """The dtype that a NumPy function is given, as `numpy.dtype(value)` reads it.

    Raises:
        Break: it is no dtype.
    """
    try:
        return numpy.dtype(value)  # type: ignore[call-overload]
    except TypeError:
        raise needs_values(f"numpy with a {vm.type_of(value).__name__} as dtype") from None


def operand(vm: Interpreter, value: object) -> Operand:
    """An argument of a NumPy function as an operand.

    Raises:
        Break: it is neither a number nor an array, or a list of arrays.
    """
    kind = type(value)
    if type(value) is TensorArray:
        return Operand(value.tensor, value.np_dtype)
    if type(value) is PrologueValue:
        return _of_prologue(vm, value)
    if kind is bool:
        return Operand(value, numpy.dtype(bool))
    if kind in _WEAK:
        return Operand(value, _WEAK[kind])
    if isinstance(value, numpy.generic):
        torch_dtype(value.dtype)
        return Operand(value.item(), value.dtype)
    if kind is list or kind is tuple:
        return _of_list(vm, value)
    raise needs_values(f"numpy with an array and a {vm.type_of(value).__name__}")


def _of_prologue(vm: Interpreter, value: PrologueValue) -> Operand:
    example = value.example
    if type(example) is bool:
        return Operand(value, numpy.dtype(bool))
    if type(example) in _WEAK:
        return Operand(value, _WEAK[type(example)])
    if not isinstance(example, (numpy.ndarray, numpy.generic)):
        raise needs_values(f"numpy with an array and a {type(example).__name__}")
    torch_dtype(example.dtype)
    return Operand(vm.prologue.inputs.tensor(vm.prologue.run(torch.tensor, (value,), {})), example.dtype)


def _of_list(vm: Interpreter, value: PyTree) -> Operand:
    items = vm.effects.plain(value)
    if not _is_plain(items):
        raise needs_values("numpy with a list of arrays")
    array = numpy.array(items)
    made = record(vm, torch.tensor, array.tolist(), dtype=torch_dtype(array.dtype), device=torch.device("cpu"))
    return Operand(made, array.dtype)


def _is_plain(items: object) -> bool:
    if isinstance(items, (list, tuple)):
        return bool(items) and all(map(_is_plain, items))
    return type(items) in (int, float, bool)


def cast(vm: Interpreter, given: Operand, dtype: Dtype, as_tensor: bool) -> PyTree:
    """The operand in the dtype in which a NumPy function computes: a tensor, or a number if `as_tensor` is not set."""
    value: PyTree = given.value
    if type(value) is TraceTensor:
        return to_dtype(vm, value, dtype)
    if type(value) not in SYMBOLIC_CLASSES and type(value) is not PrologueValue:
        value = rounded(value, dtype)
    if not as_tensor:
        return value
    return record(vm, torch.full, (), value, dtype=torch_dtype(dtype), device=torch.device("cpu"))


def rounded(value: PyTree, dtype: Dtype) -> PyTree:
    """A Python number after conversion to the dtype.

    Raises:
        Break: the number is out of the dtype's range, where NumPy raises an error or compares in another dtype.
    """
    limits = torch.iinfo(torch_dtype(dtype)) if dtype.kind in "iu" else None
    if limits is not None and not limits.min <= value <= limits.max:
        raise needs_values("numpy with an array and an integer beyond its dtype")
    with numpy.errstate(all="ignore"):
        return dtype.type(value).item()


def shown(vm: Interpreter, tensor: TraceTensor, dtype: Dtype | None = None, scalar: bool = False) -> TensorArray:
    """A tensor of the graph as an array of the given dtype, or as a NumPy number."""
    out = TensorArray(tensor if dtype is None else to_dtype(vm, tensor, dtype), scalar)
    vm.python.arrays.append(out)
    return out


def refuse_keywords(name: str, args: Args, kwargs: Kwargs, known: Sequence[str], most: int) -> None:
    """End the graph at arguments of a NumPy function for which it has no captured form."""
    unknown = [key for key in kwargs if key not in known]
    if unknown or len(args) > most:
        raise needs_values(f"numpy.{name} with {', '.join(unknown) or 'more arguments'}")
