"""Captured forms of NumPy's reductions: sums, means, extreme values and their places, running sums."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import torch
from torch.utils._pytree import PyTree

from smelt.base.class_tables import isinstance
from smelt.capture.arrays.array import Dtype, TensorArray, needs_values
from smelt.capture.arrays.operands import as_dtype, operand, record, refuse_keywords, shown, to_dtype, torch_dtype
from smelt.capture.arrays.ufuncs import write
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.graph.trace.trace import TraceTensor

_ORDER: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("sum", "prod"), ("axis", "dtype", "out", "keepdims")),
    "mean": ("axis", "dtype", "out", "keepdims"),
    **dict.fromkeys(("std", "var"), ("axis", "dtype", "out", "ddof", "keepdims")),
    **dict.fromkeys(("max", "min", "any", "all"), ("axis", "out", "keepdims")),
    **dict.fromkeys(("argmax", "argmin"), ("axis", "out", "keepdims")),
    "ptp": ("axis", "out", "keepdims"),
    **dict.fromkeys(("cumsum", "cumprod"), ("axis", "dtype", "out")),
}
"""Reduction -> its parameters after the array, in order. Others end the graph."""

NAMES = frozenset(_ORDER)
FUNCTIONS: dict[Callable[..., PyTree], str] = {
    **{getattr(numpy, name): name for name in _ORDER},
    numpy.amax: "max",
    numpy.amin: "min",
}


def reduce(vm: Interpreter, name: str, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `array.name(...)`; `args[0]` is the array.

    Raises:
        Break: the arguments have no captured form, or NumPy raises an error.
    """
    order = _ORDER[name]
    refuse_keywords(name, args[1:], kwargs, order, len(order))
    given = dict(zip(order, args[1:], strict=False)) | kwargs
    array = operand(vm, args[0])
    if not array.is_tensor or not isinstance(array.kind, numpy.dtype):
        raise needs_values(f"numpy.{name} of a number")
    x, out = array.value, given.pop("out", None)
    if out is not None and type(out) is not TensorArray:
        raise needs_values(f"numpy.{name} with out")
    axis, keeps = _axis(vm, name, given.get("axis"), x), _flag(given.get("keepdims", False))
    if name in ("cumsum", "cumprod"):
        result = _running(vm, name, x, axis, _accumulator(vm, array.kind, given.get("dtype")))
    else:
        result = _REDUCE[name](vm, name, x, axis, keeps, {**given, "kind": array.kind})
    done = shown(vm, result, scalar=not result.dim())
    return done if out is None else write(vm, out, done)


def _flag(value: object) -> bool:
    if type(value) is bool or type(value) is int:
        return bool(value)
    raise needs_values("numpy with keepdims that are not known")


def _axis(vm: Interpreter, name: str, axis: PyTree, x: TraceTensor) -> tuple[int, ...] | None:
    """The axes as a tuple; None for all."""
    axis = vm.effects.plain(axis)
    if axis is None:
        return None
    axes = axis if type(axis) is tuple else (axis,)
    if (
        not axes
        or not all(type(each) is int and -x.dim() <= each < x.dim() for each in axes)
        or len(axes) != len(set(axes))
    ):
        raise needs_values(f"numpy.{name} with axis={axis!r}")
    return axes


def _accumulator(vm: Interpreter, kind: Dtype, dtype: object) -> torch.dtype:
    """The dtype of sums and products: integers are added up in 64 bits."""
    if dtype is not None:
        return torch_dtype(as_dtype(vm, dtype))
    if kind.kind in "bi":
        return torch.int64
    return torch_dtype(numpy.dtype("uint64") if kind.kind == "u" else kind)


def _all(x: TraceTensor, axes: tuple[int, ...] | None) -> list[int]:
    return list(range(x.dim())) if axes is None else list(axes)


def _refuse_empty(name: str, x: TraceTensor) -> None:
    if any(size == 0 for size in x.shape):
        raise needs_values(f"numpy.{name} of an empty array")


def _sum(vm: Interpreter, name: str, x: TraceTensor, axes: PyTree, keeps: bool, given: Kwargs) -> TraceTensor:
    dtype = _accumulator(vm, given["kind"], given.get("dtype"))
    if name == "sum":
        out: TraceTensor = record(vm, torch.sum, x, _all(x, axes), keeps, dtype=dtype)
        return out
    for dim in sorted((each % x.dim() for each in _all(x, axes)), reverse=True):
        x = record(vm, torch.prod, x, dim, keeps, dtype=dtype)
    return record(vm, torch.Tensor.to, x, dtype, method="to") if x.dtype is not dtype else x


def _mean(vm: Interpreter, name: str, x: TraceTensor, axes: PyTree, keeps: bool, given: Kwargs) -> TraceTensor:
    kind = given["kind"]
    if given.get("dtype") is not None or kind.kind == "c":
        raise needs_values(f"numpy.{name} with a dtype, or of complex numbers")
    if name != "mean" and kind == numpy.float16:  # NumPy rounds the mean and the squares to half precision
        raise needs_values(f"numpy.{name} of half precision")
    _refuse_empty(name, x)
    x = to_dtype(vm, x, kind if kind.kind == "f" else numpy.dtype("float64"))
    if name == "mean":
        out: TraceTensor = record(vm, torch.mean, x, _all(x, axes), keeps)
        return out
    ddof, count = given.get("ddof", 0), x.numel()
    if axes is not None:
        count = 1
        for each in axes:
            count *= x.shape[each]
    if type(ddof) is not int or ddof < 0 or count <= ddof:
        raise needs_values(f"numpy.{name} with ddof={ddof!r}")
    fn = torch.std if name == "std" else torch.var
    spread: TraceTensor = record(vm, fn, x, _all(x, axes), correction=ddof, keepdim=keeps)
    return spread


def _extreme(vm: Interpreter, name: str, x: TraceTensor, axes: PyTree, keeps: bool, given: Kwargs) -> TraceTensor:
    if given["kind"].kind == "c":
        raise needs_values(f"numpy.{name} of complex numbers")
    _refuse_empty(name, x)
    if name == "ptp":
        most = _extreme(vm, "max", x, axes, keeps, given)
        return record(vm, torch.sub, most, _extreme(vm, "min", x, axes, keeps, given))
    out: TraceTensor = record(vm, torch.amax if name == "max" else torch.amin, x, _all(x, axes), keeps)
    return out


def _truth(vm: Interpreter, name: str, x: TraceTensor, axes: PyTree, keeps: bool, given: Kwargs) -> TraceTensor:
    x = to_dtype(vm, x, numpy.dtype(bool))
    out: TraceTensor = record(vm, torch.any if name == "any" else torch.all, x, _all(x, axes), keeps)
    return out


def _place(vm: Interpreter, name: str, x: TraceTensor, axes: PyTree, keeps: bool, given: Kwargs) -> TraceTensor:
    if given["kind"].kind == "c" or axes is not None and len(axes) != 1:
        raise needs_values(f"numpy.{name} of complex numbers, or over several axes")
    _refuse_empty(name, x)
    x = to_dtype(vm, x, numpy.dtype("uint8")) if x.dtype is torch.bool else x
    fn = torch.argmax if name == "argmax" else torch.argmin
    out: TraceTensor = record(vm, fn, x, None if axes is None else axes[0], keepdim=keeps)
    return out


def _running(vm: Interpreter, name: str, x: TraceTensor, axes: PyTree, dtype: torch.dtype) -> TraceTensor:
    if axes is None:
        x, axes = record(vm, torch.ravel, x), (0,)
    if len(axes) != 1:
        raise needs_values(f"numpy.{name} over several axes")
    out: TraceTensor = record(vm, torch.cumsum if name == "cumsum" else torch.cumprod, x, axes[0], dtype=dtype)
    return out


_REDUCE: dict[str, Callable[..., TraceTensor]] = {
    **dict.fromkeys(("sum", "prod"), _sum),
    **dict.fromkeys(("mean", "std", "var"), _mean),
    **dict.fromkeys(("max", "min", "ptp"), _extreme),
    **dict.fromkeys(("any", "all"), _truth),
    **dict.fromkeys(("argmax", "argmin"), _place),
}
