"""Pointwise primitives: one result element from the operands' elements at the same position.

Tensor operands have equal shape and dtype (broadcasting and promotion are explicit prims); a Python number represents a
tensor filled with it. NaN propagates through maximum and minimum. Integer overflow wraps. A shift by a negative amount,
or by at least the width in bits, gives 0, or -1 for a right shift of a negative number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from smelt.abi.faults import fault_error
from smelt.graph.ir.meta import TensorMeta
from smelt.prims.table import NO_FACTS, Facts, Keeps, Kind, Number, Takes, pointwise_like, prim, require
from smelt.shapes.size import same_all


def _unary(name: str, reference: Callable[..., Any], facts: Facts = NO_FACTS) -> None:
    def meta(x: TensorMeta) -> TensorMeta:
        return pointwise_like((x,), torch.bool if facts.boolean else x.dtype)

    meta.__doc__ = f"{name} of each element" + (" (bool)." if facts.boolean else ".")
    prim(name, kind=Kind.POINTWISE, reference=reference, facts=facts)(meta)


_unary("abs", torch.abs, Facts(exact=True))
_unary("neg", torch.neg, Facts(exact=True, annihilated_by=(0,)))
_unary("sign", torch.sign, Facts(exact=True, keeps=Keeps.BOOLS))
_unary("exp", torch.exp, Facts(cost=12, takes=Takes.FLOATS))
_unary("expm1", torch.expm1, Facts(cost=12, takes=Takes.FLOATS))
_unary("exp2", torch.exp2, Facts(cost=12, takes=Takes.FLOATS))
_unary("log", torch.log, Facts(cost=12, takes=Takes.FLOATS))
_unary("log1p", torch.log1p, Facts(cost=12, takes=Takes.FLOATS))
_unary("log2", torch.log2, Facts(cost=12, takes=Takes.FLOATS))
_unary("log10", torch.log10, Facts(cost=12, takes=Takes.FLOATS))
_unary("sqrt", torch.sqrt, Facts(cost=4, takes=Takes.FLOATS))
_unary("rsqrt", torch.rsqrt, Facts(cost=4, takes=Takes.FLOATS))
_unary("reciprocal", torch.reciprocal, Facts(cost=4, takes=Takes.FLOATS))
_unary("sin", torch.sin, Facts(cost=12, periodic=True, takes=Takes.FLOATS))
_unary("cos", torch.cos, Facts(cost=12, periodic=True, takes=Takes.FLOATS))
_unary("tan", torch.tan, Facts(cost=25, takes=Takes.FLOATS))
_unary("asin", torch.asin, Facts(cost=25, takes=Takes.FLOATS))
_unary("acos", torch.acos, Facts(cost=25, takes=Takes.FLOATS))
_unary("atan", torch.atan, Facts(cost=25, takes=Takes.FLOATS))
_unary("sinh", torch.sinh, Facts(cost=25, takes=Takes.FLOATS))
_unary("cosh", torch.cosh, Facts(cost=25, takes=Takes.FLOATS))
_unary("tanh", torch.tanh, Facts(cost=12, takes=Takes.FLOATS))
_unary("asinh", torch.asinh, Facts(cost=25, takes=Takes.FLOATS))
_unary("acosh", torch.acosh, Facts(cost=25, takes=Takes.FLOATS))
_unary("atanh", torch.atanh, Facts(cost=25, takes=Takes.FLOATS))
_unary("erf", torch.erf, Facts(cost=12, takes=Takes.FLOATS))
_unary("erfc", torch.erfc, Facts(cost=25, takes=Takes.FLOATS))
_unary("erfinv", torch.erfinv, Facts(cost=25, takes=Takes.FLOATS))
_unary("lgamma", torch.lgamma, Facts(cost=60, takes=Takes.FLOATS))
_unary("digamma", torch.digamma, Facts(cost=60, takes=Takes.FLOATS))
_unary("floor", torch.floor, Facts(exact=True, keeps=Keeps.WHOLE))
_unary("ceil", torch.ceil, Facts(exact=True, keeps=Keeps.WHOLE))
_unary("round", torch.round, Facts(exact=True, keeps=Keeps.WHOLE))  # half to even
_unary("trunc", torch.trunc, Facts(exact=True, keeps=Keeps.WHOLE))
_unary("sigmoid", torch.sigmoid, Facts(cost=12, takes=Takes.FLOATS))
_unary("bitwise_not", torch.bitwise_not, Facts(takes=Takes.WHOLE, for_bool="logical_not"))
_unary("isnan", torch.isnan, Facts(boolean=True, of_whole=False))
_unary("isinf", torch.isinf, Facts(boolean=True, of_whole=False))
_unary("isfinite", torch.isfinite, Facts(boolean=True, of_whole=True))
_unary("signbit", torch.signbit, Facts(boolean=True))
_unary("logical_not", torch.logical_not, Facts(boolean=True))


def _tensors(x: Tensor | Number, y: Tensor | Number) -> tuple[Tensor, Tensor]:
    """Returns both operands as tensors: a number becomes a 0-d tensor of the other operand's dtype."""
    if not isinstance(x, Tensor):
        assert isinstance(y, Tensor)
        return torch.tensor(x, dtype=y.dtype, device=y.device).expand(y.shape), y
    if not isinstance(y, Tensor):
        return x, torch.tensor(y, dtype=x.dtype, device=x.device).expand(x.shape)
    return x, y


def _operands(name: str, *operands: TensorMeta | Number) -> list[TensorMeta]:
    """Returns the tensors among the operands of prim `name`, after a check that they agree in shape and dtype."""
    tensors = [x for x in operands if isinstance(x, TensorMeta)]
    require(bool(tensors), f"prim {name}: no operand is a tensor")
    first = tensors[0]
    for x in tensors[1:]:
        if x.dtype != first.dtype or not (same_all(x.shape, first.shape) or x.shape == first.shape):
            require(False, f"prim {name}: operands {first.dtype} {first.shape} and {x.dtype} {x.shape}")
    return tensors


def _binary(name: str, reference: Callable[..., Any], facts: Facts = NO_FACTS) -> None:
    def meta(x: TensorMeta | Number, y: TensorMeta | Number) -> TensorMeta:
        tensors = _operands(name, x, y)
        return pointwise_like(tensors, torch.bool if facts.boolean else tensors[0].dtype)

    meta.__doc__ = f"{name} of x and y, elementwise" + (" (bool)." if facts.boolean else ".")
    prim(name, kind=Kind.POINTWISE, reference=lambda x, y: reference(*_tensors(x, y)), facts=facts)(meta)


def _floor_divide(x: Tensor, y: Tensor) -> Tensor:
    return torch.div(x, y, rounding_mode="floor")


def _trunc_divide(x: Tensor, y: Tensor) -> Tensor:
    return torch.div(x, y, rounding_mode="trunc")


_binary("add", torch.add, Facts(commutative=True))
_binary("sub", torch.sub)
_binary("mul", torch.mul, Facts(commutative=True, for_bool="logical_and", annihilated_by=(0, 1)))
_binary("div", torch.div, Facts(cost=4, takes=Takes.FLOATS, annihilated_by=(0,)))  # true division, floats only
_binary("floor_div", _floor_divide, Facts(cost=4, divides=True))
_binary("trunc_div", _trunc_divide, Facts(cost=4, divides=True))
_binary("fmod", torch.fmod, Facts(cost=12, divides=True))  # the sign of x
_binary("remainder", torch.remainder, Facts(cost=12, divides=True))  # the sign of y
_binary("pow", torch.pow, Facts(cost=25))
_binary("atan2", torch.atan2, Facts(cost=25, takes=Takes.FLOATS))
_binary("hypot", torch.hypot, Facts(cost=25, takes=Takes.FLOATS))
_binary("copysign", torch.copysign, Facts(exact=True, takes=Takes.FLOATS))
_binary("nextafter", torch.nextafter, Facts(cost=60, takes=Takes.FLOATS))
_binary("maximum", torch.maximum, Facts(exact=True, for_bool="logical_or"))
_binary("minimum", torch.minimum, Facts(exact=True, for_bool="logical_and"))
_binary("bitwise_and", torch.bitwise_and, Facts(commutative=True, takes=Takes.WHOLE))
_binary("bitwise_or", torch.bitwise_or, Facts(commutative=True, takes=Takes.WHOLE))
_binary("bitwise_xor", torch.bitwise_xor, Facts(commutative=True, takes=Takes.WHOLE))
_binary("shift_left", torch.bitwise_left_shift, Facts(takes=Takes.WHOLE))
_binary("shift_right", torch.bitwise_right_shift, Facts(takes=Takes.WHOLE))  # arithmetic
_binary("eq", torch.eq, Facts(commutative=True, boolean=True))
_binary("ne", torch.ne, Facts(commutative=True, boolean=True))
_binary("lt", torch.lt, Facts(boolean=True))
_binary("le", torch.le, Facts(boolean=True))
_binary("gt", torch.gt, Facts(boolean=True))
_binary("ge", torch.ge, Facts(boolean=True))
_binary("logical_and", torch.logical_and, Facts(commutative=True, boolean=True))
_binary("logical_or", torch.logical_or, Facts(commutative=True, boolean=True))
_binary("logical_xor", torch.logical_xor, Facts(commutative=True, boolean=True))


def _fma(x: Tensor | Number, y: Tensor | Number, z: Tensor | Number) -> Tensor:
    given = next(v for v in (x, y, z) if isinstance(v, Tensor))
    x, y, z = (torch.as_tensor(v, dtype=given.dtype).double() for v in (x, y, z))  # numbers have that dtype, too
    return (x * y + z).to(given.dtype)


@prim("fma", kind=Kind.POINTWISE, reference=_fma, facts=Facts(takes=Takes.FLOATS))
def fma(x: TensorMeta | Number, y: TensorMeta | Number, z: TensorMeta | Number) -> TensorMeta:
    """x * y + z of floats, rounded once: CUDA's compiler contracts a product and a sum within one operator to this."""
    tensors = _operands("fma", x, y, z)
    return pointwise_like(tensors, tensors[0].dtype)


def _where(cond: Tensor, a: Tensor | Number, b: Tensor | Number) -> Tensor:
    return torch.where(cond, *_tensors(a, b))


@prim("where", kind=Kind.POINTWISE, reference=_where, facts=Facts(exact=True, linear_in=(1, 2)))
def where(cond: TensorMeta, a: TensorMeta | Number, b: TensorMeta | Number) -> TensorMeta:
    """a where the bool tensor cond is true, else b; at least one of a and b is a tensor."""
    tensors = _operands("where", a, b)
    require(cond.dtype is torch.bool, f"prim where: the condition is {cond.dtype}")
    fits = same_all(cond.shape, tensors[0].shape) or cond.shape == tensors[0].shape
    require(fits, f"prim where: condition {cond.shape}, value {tensors[0].shape}")
    return pointwise_like((*tensors, cond), tensors[0].dtype)


@prim("convert", kind=Kind.POINTWISE, reference=lambda x, dtype: x.to(dtype), facts=Facts(annihilated_by=(0,)))
def convert(x: TensorMeta, dtype: torch.dtype) -> TensorMeta:
    """x in another dtype: round to nearest even between floats, truncate to integers, != 0 to bool."""
    return pointwise_like((x,), dtype)


def _refuse(x: Tensor, wrong: Tensor, fault: int) -> Tensor:
    if wrong.any():
        raise fault_error(fault)
    return x.clone()


@prim("refuse", kind=Kind.POINTWISE, reference=_refuse)
def refuse(x: TensorMeta, wrong: TensorMeta, fault: int) -> TensorMeta:
    """x, after a check: raises the error number `fault` if any element of the bool tensor `wrong` is true."""
    require(wrong.dtype is torch.bool and same_all(wrong.shape, x.shape), f"prim refuse: {wrong.dtype} {wrong.shape}")
    return pointwise_like((x, wrong), x.dtype)


@prim("clone", kind=Kind.POINTWISE, reference=lambda x: x.clone(), facts=Facts(annihilated_by=(0,)))
def clone(x: TensorMeta) -> TensorMeta:
    """A copy: the same values in new memory."""
    return pointwise_like((x,), x.dtype)
