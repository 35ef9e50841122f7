"""Pointwise primitives: one result element from the operands' elements at the same place.

Tensor operands have equal shape and dtype (broadcasting and promotion are explicit prims); a Python
number stands for a tensor filled with it. NaN propagates through maximum and minimum. Integer overflow
wraps. A shift by a negative amount or by the width or more leaves 0, to the right of a negative number -1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from smelt.base.faults import fault_error
from smelt.graph.meta import TensorMeta
from smelt.prims.table import Kind, Number, pointwise_like, prim, require
from smelt.shapes.size import same_all


def _unary(name: str, reference: Callable[..., Any], dtype: torch.dtype | None = None) -> None:
    def meta(x: TensorMeta) -> TensorMeta:
        return pointwise_like((x,), dtype or x.dtype)

    meta.__doc__ = f"{name} of each element" + (" (bool)." if dtype is torch.bool else ".")
    prim(name, kind=Kind.POINTWISE, reference=reference)(meta)


_UNARY: dict[str, Callable[..., Any]] = {
    "abs": torch.abs,
    "neg": torch.neg,
    "sign": torch.sign,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "exp2": torch.exp2,
    "log": torch.log,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "log10": torch.log10,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "asin": torch.asin,
    "acos": torch.acos,
    "atan": torch.atan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "tanh": torch.tanh,
    "asinh": torch.asinh,
    "acosh": torch.acosh,
    "atanh": torch.atanh,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "erfinv": torch.erfinv,
    "lgamma": torch.lgamma,
    "digamma": torch.digamma,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,  # half to even
    "trunc": torch.trunc,
    "sigmoid": torch.sigmoid,
    "bitwise_not": torch.bitwise_not,
}
_UNARY_TESTS: dict[str, Callable[..., Any]] = {
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "isfinite": torch.isfinite,
    "signbit": torch.signbit,
    "logical_not": torch.logical_not,
}
for _name, _reference in _UNARY.items():
    _unary(_name, _reference)
for _name, _reference in _UNARY_TESTS.items():
    _unary(_name, _reference, torch.bool)


def _tensors(x: Tensor | Number, y: Tensor | Number) -> tuple[Tensor, Tensor]:
    """Both operands as tensors: a number becomes a 0-d tensor of the other's dtype."""
    if not isinstance(x, Tensor):
        assert isinstance(y, Tensor)
        return torch.tensor(x, dtype=y.dtype, device=y.device).expand(y.shape), y
    if not isinstance(y, Tensor):
        return x, torch.tensor(y, dtype=x.dtype, device=x.device).expand(x.shape)
    return x, y


def _operands(name: str, *operands: TensorMeta | Number) -> list[TensorMeta]:
    """The tensor operands, checked to agree in shape and dtype."""
    tensors = [x for x in operands if isinstance(x, TensorMeta)]
    require(bool(tensors), f"prim {name}: no operand is a tensor")
    first = tensors[0]
    for x in tensors[1:]:
        if x.dtype != first.dtype or not (same_all(x.shape, first.shape) or x.shape == first.shape):
            require(False, f"prim {name}: operands {first.dtype} {first.shape} and {x.dtype} {x.shape}")
    return tensors


def _binary(name: str, reference: Callable[..., Any], dtype: torch.dtype | None = None) -> None:
    def meta(x: TensorMeta | Number, y: TensorMeta | Number) -> TensorMeta:
        tensors = _operands(name, x, y)
        return pointwise_like(tensors, dtype or tensors[0].dtype)

    meta.__doc__ = f"{name} of x and y, elementwise" + (" (bool)." if dtype is torch.bool else ".")
    prim(name, kind=Kind.POINTWISE, reference=lambda x, y: reference(*_tensors(x, y)))(meta)


def _floor_divide(x: Tensor, y: Tensor) -> Tensor:
    return torch.div(x, y, rounding_mode="floor")


def _trunc_divide(x: Tensor, y: Tensor) -> Tensor:
    return torch.div(x, y, rounding_mode="trunc")


_BINARY: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,  # true division, floats only
    "floor_div": _floor_divide,
    "trunc_div": _trunc_divide,
    "fmod": torch.fmod,  # the sign of x
    "remainder": torch.remainder,  # the sign of y
    "pow": torch.pow,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "copysign": torch.copysign,
    "nextafter": torch.nextafter,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,  # arithmetic
}
_BINARY_TESTS: dict[str, Callable[..., Any]] = {
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
}
for _name, _reference in _BINARY.items():
    _binary(_name, _reference)
for _name, _reference in _BINARY_TESTS.items():
    _binary(_name, _reference, torch.bool)


def _fma(x: Tensor | Number, y: Tensor | Number, z: Tensor | Number) -> Tensor:
    given = next(v for v in (x, y, z) if isinstance(v, Tensor))
    x, y, z = (v.double() if isinstance(v, Tensor) else v for v in (x, y, z))
    return torch.as_tensor(x * y + z).to(given.dtype)


@prim("fma", kind=Kind.POINTWISE, reference=_fma)
def fma(x: TensorMeta | Number, y: TensorMeta | Number, z: TensorMeta | Number) -> TensorMeta:
    """x * y + z of floats, rounded once: what compilers of CUDA make of a product and a sum in one operator."""
    tensors = _operands("fma", x, y, z)
    return pointwise_like(tensors, tensors[0].dtype)


def _where(cond: Tensor, a: Tensor | Number, b: Tensor | Number) -> Tensor:
    return torch.where(cond, *_tensors(a, b))


@prim("where", kind=Kind.POINTWISE, reference=_where)
def where(cond: TensorMeta, a: TensorMeta | Number, b: TensorMeta | Number) -> TensorMeta:
    """a where the bool tensor cond holds, else b; at least one of a and b is a tensor."""
    tensors = _operands("where", a, b)
    require(cond.dtype is torch.bool, f"prim where: the condition is {cond.dtype}")
    fits = same_all(cond.shape, tensors[0].shape) or cond.shape == tensors[0].shape
    require(fits, f"prim where: condition {cond.shape}, value {tensors[0].shape}")
    return pointwise_like((*tensors, cond), tensors[0].dtype)


@prim("convert", kind=Kind.POINTWISE, reference=lambda x, dtype: x.to(dtype))
def convert(x: TensorMeta, dtype: torch.dtype) -> TensorMeta:
    """x in another dtype: round to nearest even between floats, truncate to integers, != 0 to bool."""
    return pointwise_like((x,), dtype)


def _refuse(x: Tensor, wrong: Tensor, fault: int) -> Tensor:
    if wrong.any():
        raise fault_error(fault)
    return x.clone()


@prim("refuse", kind=Kind.POINTWISE, reference=_refuse)
def refuse(x: TensorMeta, wrong: TensorMeta, fault: int) -> TensorMeta:
    """x, for whose values an operator raises an error where the bool tensor `wrong` holds; `fault` names the error."""
    require(wrong.dtype is torch.bool and same_all(wrong.shape, x.shape), f"prim refuse: {wrong.dtype} {wrong.shape}")
    return pointwise_like((x, wrong), x.dtype)


@prim("clone", kind=Kind.POINTWISE, reference=lambda x: x.clone())
def clone(x: TensorMeta) -> TensorMeta:
    """The same values in memory of their own."""
    return pointwise_like((x,), x.dtype)
