"""Captured forms of NumPy's products of vectors and matrices, norms, determinants and Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import torch
from torch.utils._pytree import PyTree

from smelt.base.class_tables import isinstance
from smelt.capture.arrays.array import TensorArray, needs_values
from smelt.capture.arrays.operands import Operand, operand, record, shown, to_dtype
from smelt.capture.core.interface import Interpreter
from smelt.graph.trace.trace import TraceTensor


def _both(vm: Interpreter, a: object, b: object) -> tuple[TraceTensor, TraceTensor]:
    """Two arrays in their common dtype, in which torch multiplies matrices."""
    operands = operand(vm, a), operand(vm, b)
    kinds = [each.kind for each in operands]
    if not all(each.is_tensor for each in operands):
        raise needs_values("a product of an array and a number")
    dtype = numpy.result_type(*kinds)
    if dtype.kind == "b":
        raise needs_values("a matrix product of truth values")
    first, second = (to_dtype(vm, each.value, dtype) for each in operands)
    return first, second


def matmul(vm: Interpreter, x1: object, x2: object) -> TensorArray:
    """`x1 @ x2`"""
    return _without_numbers(vm, torch.matmul, x1, x2, "a matrix product")


def _without_numbers(vm: Interpreter, function: Callable[..., object], a: object, b: object, name: str) -> TensorArray:
    """A product of two arrays, of which neither is a number."""
    x, y = _both(vm, a, b)
    if not x.dim() or not y.dim():
        raise needs_values(f"{name} with a number")
    out = record(vm, function, x, y)
    return shown(vm, out, scalar=not out.dim())


def dot(vm: Interpreter, a: object, b: object) -> TensorArray:
    """`numpy.dot(a, b)` of vectors and matrices."""
    x, y = _both(vm, a, b)
    if not x.dim() or not 0 < y.dim() <= 2:
        raise needs_values("numpy.dot with a number or with more than two axes")
    out = record(vm, torch.matmul, x, y)
    return shown(vm, out, scalar=not out.dim())


def inner(vm: Interpreter, a: object, b: object) -> TensorArray:
    """`numpy.inner(a, b)`"""
    return _without_numbers(vm, torch.inner, a, b, "numpy.inner")


def outer(vm: Interpreter, a: object, b: object) -> TensorArray:
    """`numpy.outer(a, b)`"""
    x, y = _both(vm, a, b)
    return shown(vm, record(vm, torch.outer, record(vm, torch.ravel, x), record(vm, torch.ravel, y)))


def einsum(vm: Interpreter, subscripts: object, *operands: object) -> TensorArray:
    """`numpy.einsum(subscripts, a, b)`"""
    if not isinstance(subscripts, str) or len(operands) != 2:
        raise needs_values("numpy.einsum of other than two arrays")
    out = record(vm, torch.einsum, subscripts, *_both(vm, *operands))
    return shown(vm, out, scalar=not out.dim())


def tensordot(vm: Interpreter, a: object, b: object, axes: object = 2) -> TensorArray:
    """`numpy.tensordot(a, b, axes)` with a number of axes."""
    if type(axes) is not int:
        raise needs_values("numpy.tensordot over named axes")
    out = record(vm, torch.tensordot, *_both(vm, a, b), axes)
    return shown(vm, out)


def trace(vm: Interpreter, a: object) -> TensorArray:
    """`a.trace()` of a matrix."""
    given = operand(vm, a)
    if given.dims != 2 or isinstance(given.kind, numpy.dtype) and given.kind.kind == "u":
        raise needs_values("numpy.trace of other than a matrix")
    total = record(vm, torch.sum, record(vm, torch.diagonal, given.value))
    return shown(vm, total, scalar=True)


def _floating(vm: Interpreter, given: Operand) -> TraceTensor:
    """The array in a dtype of linear algebra: integers become double precision."""
    if not given.is_tensor or not isinstance(given.kind, numpy.dtype):
        raise needs_values("numpy.linalg of a number")
    if given.kind.kind == "c" or given.kind == numpy.float16:
        raise needs_values(f"numpy.linalg of {given.kind}")
    return to_dtype(vm, given.value, given.kind if given.kind.kind == "f" else numpy.dtype("float64"))


def norm(vm: Interpreter, x: object, ord: object = None, axis: object = None, keepdims: object = False) -> TensorArray:
    """`numpy.linalg.norm(x, ord, axis, keepdims)` of vectors; by default of all elements."""
    a = _floating(vm, operand(vm, x))
    vector = type(axis) is int or a.dim() == 1
    if ord not in (None, 1, 2, numpy.inf) or ord is not None and not vector or type(axis) is tuple:
        raise needs_values(f"numpy.linalg.norm with ord={ord!r}")
    power = 2 if ord is None else ord
    out = record(vm, torch.linalg.vector_norm, a, power, axis, bool(keepdims))
    return shown(vm, out, scalar=not out.dim())


def det(vm: Interpreter, a: object) -> TensorArray:
    """`numpy.linalg.det(a)`"""
    out = record(vm, torch.linalg.det, _floating(vm, operand(vm, a)))
    return shown(vm, out, scalar=not out.dim())


def _transform(name: str) -> Callable[..., TensorArray]:
    """The captured form of a function of `numpy.fft`, whose results have the precision of its argument."""
    fn: Callable[..., PyTree] = getattr(torch.fft, name)

    def transformed(vm: Interpreter, a: object, *args: PyTree, **kwargs: PyTree) -> TensorArray:
        given = operand(vm, a)
        kind = given.kind
        if not given.is_tensor or not isinstance(kind, numpy.dtype) or kind == numpy.float16:
            raise needs_values(f"numpy.fft.{name} of {kind}")
        x = to_dtype(vm, given.value, kind if kind.kind in "fc" else numpy.dtype("float64"))
        if not x.is_contiguous():
            raise needs_values(f"numpy.fft.{name} of an array that is not in C order")
        names = {"axis": "dim", "axes": "dim", "n": "n", "s": "s", "norm": "norm"}
        if not kwargs.keys() <= names.keys():
            raise needs_values(f"numpy.fft.{name} with {', '.join(kwargs)}")
        out = record(vm, fn, x, *args, **{names[key]: value for key, value in kwargs.items()})
        return shown(vm, record(vm, torch.Tensor.contiguous, out, method="contiguous"))

    return transformed


FUNCTIONS: dict[Callable[..., PyTree], Callable[..., object]] = {
    numpy.matmul: matmul,
    numpy.dot: dot,
    numpy.inner: inner,
    numpy.outer: outer,
    numpy.einsum: einsum,
    numpy.tensordot: tensordot,
    numpy.trace: trace,
    numpy.linalg.norm: norm,
    numpy.linalg.det: det,
    **{getattr(numpy.fft, name): _transform(name) for name in "fft ifft rfft irfft fft2 ifft2 fftn ifftn".split()},
}
"""Function of NumPy -> its captured form."""
