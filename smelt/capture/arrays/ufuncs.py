"""Captured forms of NumPy's universal functions: NumPy chooses the dtypes, torch computes in them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy
import torch
from torch.utils._pytree import PyTree

from smelt.base.class_tables import isinstance
from smelt.capture.arrays.array import Dtype, TensorArray, needs_values
from smelt.capture.arrays.operands import Operand, cast, operand, record, refuse_keywords, shown
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.graph.trace.trace import TraceTensor


@dataclass(frozen=True)
class Form:
    """How torch computes a universal function.

    Attributes:
        kinds: the kinds of input dtypes (`numpy.dtype.kind`) in which torch computes what NumPy does.
        fn: the function of torch.
        numbers: whether the function takes Python numbers as well as tensors.
        composed: whether `fn` takes the interpreter first and calls several functions of torch.
    """

    kinds: str
    fn: Callable[..., PyTree]
    numbers: bool = False
    composed: bool = False


def _sign(vm: Interpreter, x: TraceTensor) -> TraceTensor:
    """NumPy's sign of NaN is NaN, torch's is 0."""
    out = record(vm, torch.sign, x)
    return record(vm, torch.where, record(vm, torch.isnan, x), x, out) if x.is_floating_point() else out


def _remainder(vm: Interpreter, x: TraceTensor, y: TraceTensor) -> TraceTensor:
    """NumPy gives a zero remainder the sign of the divisor, torch that of the dividend."""
    out = record(vm, torch.remainder, x, y)
    return record(vm, torch.where, record(vm, operator.eq, out, 0), record(vm, torch.copysign, out, y), out)


def _heaviside(vm: Interpreter, x: TraceTensor, y: TraceTensor) -> TraceTensor:
    """NumPy's value at NaN is NaN, torch's is 0."""
    return record(vm, torch.where, record(vm, torch.isnan, x), x, record(vm, torch.heaviside, x, y))


def _copied(vm: Interpreter, x: TraceTensor) -> TraceTensor:
    out: TraceTensor = record(vm, torch.clone, x)
    return out


def _conjugate(vm: Interpreter, x: TraceTensor) -> TraceTensor:
    out: TraceTensor = record(vm, torch.conj_physical if x.is_complex() else torch.clone, x)
    return out


def _square(vm: Interpreter, x: TraceTensor) -> TraceTensor:
    out: TraceTensor = record(vm, operator.mul, x, x)
    return out


_FORMS: dict[numpy.ufunc, Form] = {
    numpy.add: Form("biufc", operator.add, numbers=True),
    numpy.subtract: Form("iuf", operator.sub, numbers=True),
    numpy.multiply: Form("biufc", operator.mul, numbers=True),
    numpy.true_divide: Form("fc", operator.truediv, numbers=True),
    numpy.floor_divide: Form("f", torch.floor_divide),
    numpy.remainder: Form("f", _remainder, composed=True),
    numpy.fmod: Form("f", torch.fmod),
    numpy.power: Form("f", torch.pow),
    numpy.float_power: Form("f", torch.pow),
    numpy.negative: Form("iufc", torch.neg),
    numpy.positive: Form("iufc", _copied, composed=True),
    numpy.absolute: Form("iufc", torch.abs),
    numpy.fabs: Form("f", torch.abs),
    numpy.sign: Form("if", _sign, composed=True),
    numpy.square: Form("iufc", _square, composed=True),
    numpy.reciprocal: Form("f", torch.reciprocal),
    numpy.conjugate: Form("iufc", _conjugate, composed=True),
    numpy.heaviside: Form("f", _heaviside, composed=True),
    numpy.equal: Form("biufc", operator.eq, numbers=True),
    numpy.not_equal: Form("biufc", operator.ne, numbers=True),
    numpy.less: Form("biuf", operator.lt, numbers=True),
    numpy.less_equal: Form("biuf", operator.le, numbers=True),
    numpy.greater: Form("biuf", operator.gt, numbers=True),
    numpy.greater_equal: Form("biuf", operator.ge, numbers=True),
    numpy.logical_not: Form("biuf", torch.logical_not),
    numpy.invert: Form("bi", torch.bitwise_not),
    numpy.floor: Form("f", torch.floor),
    numpy.ceil: Form("f", torch.ceil),
    numpy.trunc: Form("f", torch.trunc),
    numpy.rint: Form("f", torch.round),
    numpy.isnan: Form("f", torch.isnan),
    numpy.isinf: Form("f", torch.isinf),
    numpy.isfinite: Form("f", torch.isfinite),
    numpy.signbit: Form("f", torch.signbit),
    **{
        getattr(numpy, name): Form("biuf", getattr(torch, name))
        for name in ("maximum", "minimum", "fmax", "fmin", "logical_and", "logical_or", "logical_xor")
    },
    **{getattr(numpy, name): Form("bi", getattr(torch, name)) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    **{getattr(numpy, name): Form("i", getattr(torch, name)) for name in ("gcd", "lcm")},
    **{
        getattr(numpy, name): Form("f", getattr(torch, name))
        for name in (
            "sqrt exp exp2 expm1 log log2 log10 log1p sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arccosh "
            "arctanh deg2rad rad2deg arctan2 hypot logaddexp logaddexp2 copysign"
        ).split()
    },
    numpy.degrees: Form("f", torch.rad2deg),
    numpy.radians: Form("f", torch.deg2rad),
}

_WHOLE: dict[numpy.ufunc, Callable[..., PyTree]] = {
    numpy.floor_divide: torch.floor_divide,
    numpy.remainder: torch.remainder,
    numpy.fmod: torch.fmod,
    numpy.power: torch.pow,
}
"""Functions that divide or raise integers -> torch's, for a constant other operand with which neither fails."""


def call_ufunc(vm: Interpreter, fn: numpy.ufunc, args: Args, kwargs: Kwargs) -> TensorArray:
    """Captured form of `fn(*args, out=...)`.

    Raises:
        Break: torch would compute something else, or the call raises an error.
    """
    refuse_keywords(fn.__name__, args[: fn.nin], kwargs, ("out",), fn.nin)
    out = _given_out(fn, args, kwargs)
    operands = [operand(vm, value) for value in args[: fn.nin]]
    loop = _loop(fn, operands)
    _refuse_settings(vm)
    result = shown(vm, _compute(vm, fn, operands, loop), loop[-1], not any(each.dims for each in operands))
    return result if out is None else write(vm, out, result)


def _given_out(fn: numpy.ufunc, args: Args, kwargs: Kwargs) -> TensorArray | None:
    out = args[fn.nin] if len(args) > fn.nin else kwargs.get("out")
    if type(out) is tuple and len(out) == 1:
        (out,) = out
    if out is not None and (type(out) is not TensorArray or out.scalar):
        raise needs_values(f"numpy.{fn.__name__} with an out that is no array of the graph")
    return out


def _loop(fn: numpy.ufunc, operands: Sequence[Operand]) -> tuple[Dtype, ...]:
    """The dtypes in which NumPy computes: of the inputs and of the result."""
    if fn.nout != 1 or fn.nin != len(operands):
        raise needs_values(f"numpy.{fn.__name__}")
    try:
        return fn.resolve_dtypes((*(each.kind for each in operands), None))
    except TypeError as error:
        raise needs_values(f"numpy.{fn.__name__}: {error}") from None


def _compute(vm: Interpreter, fn: numpy.ufunc, operands: Sequence[Operand], loop: tuple[Dtype, ...]) -> TraceTensor:
    form = _FORMS.get(fn)
    inner = loop[:-1]
    if form is not None and all(dtype.kind in form.kinds for dtype in inner):
        if len(set(inner)) > 1:
            raise needs_values(f"numpy.{fn.__name__} of two dtypes")
        numbers = form.numbers and any(each.is_tensor for each in operands)
        values = [cast(vm, each, dtype, not numbers) for each, dtype in zip(operands, inner, strict=True)]
        out: TraceTensor = form.fn(vm, *values) if form.composed else record(vm, form.fn, *values)
        return out
    if fn in _WHOLE and all(dtype.kind == "i" for dtype in inner) and _never_fails(fn, operands[1].value):
        x = cast(vm, operands[0], inner[0], True)
        whole: TraceTensor = record(vm, _WHOLE[fn], x, cast(vm, operands[1], inner[1], False))
        return whole
    if fn in (numpy.floor, numpy.ceil, numpy.trunc) and inner[0].kind in "biu":
        return _copied(vm, cast(vm, operands[0], inner[0], True))
    raise needs_values(f"numpy.{fn.__name__} of {', '.join(map(str, inner))}")


def _never_fails(fn: numpy.ufunc, second: object) -> bool:
    """Whether integers can be divided by, or raised to, this constant in both libraries."""
    if type(second) is not int:
        return False
    return second >= 0 if fn is numpy.power else second > 0


def _is_lenient() -> bool:
    """Whether NumPy raises no errors and calls no functions where numbers overflow."""
    return {"warn", "ignore"}.issuperset(numpy.geterr().values())


def _refuse_settings(vm: Interpreter) -> None:
    """End the graph unless NumPy is lenient, and guard this."""
    vm.guards.flag(_is_lenient, (), _is_lenient())
    if not _is_lenient():
        raise needs_values("numpy with errors for floating-point exceptions")


def write(vm: Interpreter, out: TensorArray, result: TensorArray) -> TensorArray:
    """Write a result into an array that the program gives as `out`; returns that array."""
    if not numpy.can_cast(result.np_dtype, out.np_dtype, "same_kind"):
        raise needs_values(f"numpy with an out of {out.np_dtype} for a result of {result.np_dtype}")
    if result.tensor.dim() != out.tensor.dim() or tuple(result.tensor.shape) != tuple(out.tensor.shape):
        raise needs_values("numpy with an out of another shape than the result")
    record(vm, torch.Tensor.copy_, out.tensor, result.tensor, method="copy_")
    return out


def is_ufunc(fn: object) -> bool:
    """Whether this is a universal function that has a captured form."""
    return isinstance(fn, numpy.ufunc) and (fn in _FORMS or fn in _WHOLE)
