"""Pointwise operators: tables of operators that are a single prim, and rules for those composed of a few prims."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from smelt.base.torch_private import OpOverload, schema_of
from smelt.prims.dtypes import BOUNDS, LOW_PRECISION, compute_dtype, is_integral, result_dtype
from smelt.prims.ops import PRIMS
from smelt.prims.registry import Lowering, aten, decomposition, dtype_of, shape_of
from smelt.prims.simplify import UNARY as UNARY_PRIMS
from smelt.prims.simplify import rounded
from smelt.prims.table import Keeps, Prim, Takes
from smelt.shapes.size import Size

# -- one prim per op


def _float_unary(prim: Prim) -> Callable[..., Any]:
    def rule(p: Lowering, x: Node) -> Node:
        return p.pointwise(lambda a: p.emit(prim, a), x, dtype=p.out.dtype)

    return rule


def _same_unary(prim: Prim) -> Callable[..., Any]:
    keeps, for_bool = prim.facts.keeps, prim.facts.for_bool

    def rule(p: Lowering, x: Node) -> Any:
        if dtype_of(x) is torch.bool and keeps is Keeps.NOTHING:
            return NotImplemented if for_bool is None else p.emit(PRIMS[for_bool], x)
        if dtype_of(x) is torch.bool or keeps is Keeps.WHOLE and is_integral(dtype_of(x)):
            return x
        return p.pointwise(lambda a: p.emit(prim, a), x)

    return rule


def _test(prim: Prim) -> Callable[..., Any]:
    of_whole = prim.facts.of_whole

    def rule(p: Lowering, x: Node) -> Node:
        if is_integral(dtype_of(x)) and of_whole is not None:
            return p.full(shape_of(x), of_whole, torch.bool, p.out.device)
        if dtype_of(x) is torch.bool:
            return p.full(shape_of(x), False, torch.bool, p.out.device)
        return p.emit(prim, p.widen(x))

    return rule


def _unary(prim: Prim) -> Callable[..., Any]:
    """Returns the rule of an operator that is the prim of the same name."""
    if prim.facts.takes is Takes.FLOATS:
        return _float_unary(prim)
    return _test(prim) if prim.facts.boolean else _same_unary(prim)


UNARY = [name for name in UNARY_PRIMS if name != "logical_not" and hasattr(aten, name)]
"""Names of unary ATen operators that are the prim of the same name. (Except on bool, `logical_not` is a comparison with
0.)
"""

for _name in UNARY:
    decomposition(getattr(aten, _name).default)(_unary(PRIMS[_name]))


def _overloads(name: str, *overloads: str) -> list[OpOverload]:
    """The named overloads that exist and take a tensor; some operators also have overloads for plain numbers."""
    packet = getattr(aten, name)
    found = [getattr(packet, overload) for overload in overloads if overload in packet.overloads()]
    return [op for op in found if any(str(a.type) == "Tensor" for a in schema_of(op).arguments)]


def _register_binary(name: str, prim_name: str, *overloads: str, dtype_from_result: bool = False) -> None:
    prim, unrounded = PRIMS[prim_name], UNROUNDED.get(prim_name, ())

    def rule(p: Lowering, x: Any, y: Any) -> Node:
        dtype = p.out.dtype if dtype_from_result else None
        return p.pointwise(lambda a, b: _apply(p, prim_name, prim, a, b, x, y), x, y, dtype=dtype, unrounded=unrounded)

    decomposition(*_overloads(name, *overloads))(rule)


def _apply(p: Lowering, name: str, prim: Any, a: Any, b: Any, x: Any, y: Any) -> Node:
    if name in ("maximum", "minimum") and returns_second_zero(p):
        a, b = b, a
    if name == "div" and on_gpu(p) and p.is_number(y):
        return p.mul(a, inverse(p, b, dtype_of(a)))
    for_bool = prim.facts.for_bool
    if for_bool is not None and isinstance(a, Node) and dtype_of(a) is torch.bool:
        return p.emit(PRIMS[for_bool], a, b)
    return p.emit(prim, a, b)


def on_gpu(p: Lowering) -> bool:
    """Whether the result of the operator being decomposed is on a GPU."""
    return p.out.device.type == "cuda"


def inverse(p: Lowering, number: Any, dtype: torch.dtype) -> Any:
    """Returns 1 / number, rounded to `dtype`. To divide by a CPU scalar, eager's CUDA kernels multiply by this
    inverse.
    """
    if isinstance(number, Size):
        number = p.full(p.out.shape, number, dtype, p.out.device)
    if isinstance(number, Node):
        return p.reciprocal(number)
    return torch.tensor(number, dtype=dtype).reciprocal().item()


_VECTOR_BYTES = {"AVX512": 64, "AVX2": 32}.get(torch.backends.cpu.get_cpu_capability(), 16)


def returns_second_zero(p: Lowering) -> bool:
    """Whether eager's `maximum` and `minimum` of 0.0 and -0.0 return the second operand, as CPU vector instructions do.

    The prims return the first operand, and so does eager's scalar code, which computes tensors smaller than a vector.
    (That code also computes the elements after the last full vector, for which this function's result is wrong.)
    """
    out = p.out
    if out.device.type != "cpu" or not out.dtype.is_floating_point:
        return False
    return isinstance(out.numel, Size) or out.numel * out.dtype.itemsize >= _VECTOR_BYTES


UNROUNDED = {"mul": (0, 1), "div": (1,), "floor_div": (1,), "trunc_div": (1,)}
"""For each prim, the positions of operands that eager does not round to the common dtype if they are numbers.

See `Lowering.pointwise`.
"""

_BINARY_OVERLOADS = ("Tensor", "Scalar", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor", "default")

for _name, _prim in {
    "mul": "mul",
    "remainder": "remainder",
    "fmod": "fmod",
    "bitwise_and": "bitwise_and",
    "bitwise_or": "bitwise_or",
    "bitwise_xor": "bitwise_xor",
    "bitwise_left_shift": "shift_left",
    "bitwise_right_shift": "shift_right",
    "eq": "eq",
    "ne": "ne",
    "lt": "lt",
    "le": "le",
    "gt": "gt",
    "ge": "ge",
    "maximum": "maximum",
    "minimum": "minimum",
    "hypot": "hypot",
    "floor_divide": "floor_div",
}.items():
    _register_binary(_name, _prim, *_BINARY_OVERLOADS)
for _name, _prim in {"atan2": "atan2", "copysign": "copysign", "div": "div", "pow": "pow"}.items():
    _register_binary(_name, _prim, *_BINARY_OVERLOADS, dtype_from_result=True)


@decomposition(aten.nextafter.default)
def nextafter(p: Lowering, x: Node, y: Node) -> Any:
    """Returns NotImplemented for bfloat16 and float16: prims compute in float32, where the next number is a different
    one.
    """
    if p.out.dtype in LOW_PRECISION:
        return NotImplemented
    return p.pointwise(lambda a, b: p.nextafter(a, b), x, y)


decomposition(aten.__and__.Tensor, aten.__and__.Scalar)(
    lambda p, x, y: p.pointwise(lambda a, b: p.bitwise_and(a, b), x, y)
)
decomposition(aten.__or__.Tensor, aten.__or__.Scalar)(
    lambda p, x, y: p.pointwise(lambda a, b: p.bitwise_or(a, b), x, y)
)
decomposition(aten.__xor__.Tensor, aten.__xor__.Scalar)(
    lambda p, x, y: p.pointwise(lambda a, b: p.bitwise_xor(a, b), x, y)
)


def _shift(name: str) -> Callable[..., Any]:
    def rule(p: Lowering, x: Node, y: Any) -> Any:
        if not is_integral(p.out.dtype):  # a shift of floats multiplies by a power of 2
            return NotImplemented
        return p.pointwise(lambda a, b: p.emit(PRIMS[name], a, b), x, y)

    return rule


for _name, _prim in {"__lshift__": "shift_left", "__rshift__": "shift_right"}.items():
    decomposition(*_overloads(_name, "Tensor", "Scalar"))(_shift(_prim))
_register_binary("true_divide", "div", "Tensor", dtype_from_result=True)


@decomposition(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(p: Lowering, x: Any, y: Any, *, rounding_mode: str | None = None) -> Node:
    name = {None: "div", "floor": "floor_div", "trunc": "trunc_div"}[rounding_mode]
    dtype, number = p.out.dtype, p.is_number(y)

    def compute(a: Any, b: Any) -> Node:
        if name == "trunc_div" and number and on_gpu(p) and dtype.is_floating_point:
            return p.trunc(_apply(p, "div", PRIMS["div"], a, b, x, y))
        # eager rounds the quotient before it truncates it
        if name == "trunc_div" and not number and dtype in LOW_PRECISION:
            return p.trunc(p.widen(p.convert(p.div(a, b), dtype)))
        return _apply(p, name, PRIMS[name], a, b, x, y)

    return p.pointwise(compute, x, y, dtype=dtype, unrounded=UNROUNDED[name])


@decomposition(aten.add.Tensor, aten.add.Scalar)
def add(p: Lowering, x: Any, y: Any, alpha: Any = 1) -> Node:
    def compute(a: Any, b: Any, alpha: Any) -> Node:
        if p.out.dtype is torch.bool:
            return p.logical_or(a, b) if alpha else p.logical_or(a, a)
        return _add_scaled(p, a, b, alpha)

    return _with_scalar(p, compute, x, y, alpha)


@decomposition(aten.sub.Tensor, aten.sub.Scalar)
def sub(p: Lowering, x: Any, y: Any, alpha: Any = 1) -> Node:
    return _with_scalar(p, lambda a, b, factor: _add_scaled(p, a, b, factor, minus=True), x, y, alpha)


@decomposition(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(p: Lowering, x: Any, y: Any, alpha: Any = 1) -> Node:
    return _with_scalar(p, lambda a, b, factor: _add_scaled(p, b, a, factor, minus=True), x, y, alpha)


def _with_scalar(p: Lowering, compute: Callable[..., Node], *operands: Any, unrounded: Sequence[int] = ()) -> Node:
    """Pointwise `compute(*operands)`. The last operand is a scalar: a number, or a tensor without dimensions."""
    *rest, factor = operands
    every = range(len(operands))
    is_rounded = p.out.dtype in LOW_PRECISION and len(rest) not in unrounded and not on_gpu(p)
    if isinstance(factor, Node):
        operands = (*rest, p.convert(factor, p.out.dtype) if is_rounded else factor)
        return p.pointwise(compute, *operands, dtype=p.out.dtype, unrounded=unrounded, unrounded_on_gpu=every)
    if is_rounded:
        factor = rounded(factor, p.out.dtype)
    return p.pointwise(lambda *ready: compute(*ready, factor), *rest, unrounded=unrounded, unrounded_on_gpu=every)


def _add_scaled(p: Lowering, a: Any, b: Any, factor: Any, minus: bool = False) -> Node:
    """a + b * factor, or a - b * factor. It rounds once, like the fused multiply-add in eager's kernels."""
    one = not isinstance(factor, Node) and factor == 1
    if one or not p.out.dtype.is_floating_point:
        return (p.sub if minus else p.add)(a, _times(p, b, factor))
    if minus:
        factor = p.neg(factor) if isinstance(factor, Node) else -factor
    return p.fma(b, factor, a)


def _times(p: Lowering, x: Any, factor: Any) -> Any:
    if isinstance(factor, Node) and not isinstance(x, Node):
        x, factor = factor, x
    if not isinstance(factor, Node) and factor == 1:
        return x
    return p.mul(x, factor) if isinstance(x, Node) else x * factor


for _name in ("logical_and", "logical_or", "logical_xor"):

    def _logical(p: Lowering, x: Node, y: Node, _prim: Any = PRIMS[_name]) -> Node:
        a, b = (p.broadcast(truth(p, v), p.out.shape) for v in (x, y))
        return p.emit(_prim, a, b)

    decomposition(getattr(aten, _name).default)(_logical)


def truth(p: Lowering, x: Node) -> Node:
    """x != 0 as bool."""
    return x if dtype_of(x) is torch.bool else p.ne(p.widen(x), 0)


@decomposition(aten.logical_not.default)
def logical_not(p: Lowering, x: Node) -> Node:
    return p.logical_not(x) if dtype_of(x) is torch.bool else p.eq(p.widen(x), 0)


# -- selection


@decomposition(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def where(p: Lowering, cond: Node, a: Any, b: Any) -> Node:
    return select(p, cond, a, b)


def select(p: Lowering, cond: Node, a: Any, b: Any) -> Node:
    """`where` with broadcasting; the operands are converted to the result's dtype."""
    out = p.out
    cond = p.broadcast(truth(p, cond), out.shape)
    a, b = (p.broadcast(p.convert(v, out.dtype), out.shape) if isinstance(v, Node) else v for v in (a, b))
    if not isinstance(a, Node) and not isinstance(b, Node):
        a = p.full(out.shape, a, out.dtype, out.device)
    return p.where(cond, a, b)


@decomposition(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(p: Lowering, x: Node, mask: Node, value: Any) -> Node:
    return select(p, mask, value, x)


@decomposition(aten.clamp.default, aten.clamp.Tensor)
def clamp(p: Lowering, x: Node, low: Any = None, high: Any = None) -> Node:
    swap = (isinstance(low, Node) or isinstance(high, Node)) and returns_second_zero(p)

    def limited(choose: Callable[..., Node], a: Node, bound: Any) -> Node:
        return choose(bound, a) if swap else choose(a, bound)

    def compute(a: Node, *bounds: Any) -> Node:
        rest = list(bounds)
        if low is not None:
            a = limited(p.maximum, a, rest.pop(0))
        return a if high is None else limited(p.minimum, a, rest.pop(0))

    return p.pointwise(compute, x, *(b for b in (low, high) if b is not None))


@decomposition(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(p: Lowering, x: Node, low: Any) -> Node:
    return clamp(p, x, low, None)


@decomposition(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(p: Lowering, x: Node, high: Any) -> Node:
    return clamp(p, x, None, high)


@decomposition(aten.fmax.default)
def fmax(p: Lowering, x: Node, y: Node) -> Node:
    return p.pointwise(lambda a, b: _ignore_nan(p, a, b, p.maximum), x, y)


@decomposition(aten.fmin.default)
def fmin(p: Lowering, x: Node, y: Node) -> Node:
    return p.pointwise(lambda a, b: _ignore_nan(p, a, b, p.minimum), x, y)


def _ignore_nan(p: Lowering, a: Node, b: Node, choose: Callable[[Node, Node], Node]) -> Node:
    if dtype_of(a) is torch.bool:
        return p.logical_or(a, b) if choose == p.maximum else p.logical_and(a, b)
    if is_integral(dtype_of(a)):
        return choose(a, b)
    pair = (b, a) if p.out.dtype is torch.bfloat16 else (a, b)  # of two zeros, eager returns the second in bfloat16
    return p.where(p.isnan(a), b, p.where(p.isnan(b), a, choose(*pair)))


@decomposition(aten.nan_to_num.default)
def nan_to_num(
    p: Lowering, x: Node, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Node:
    if is_integral(dtype_of(x)):
        return x
    low, high = BOUNDS[dtype_of(x)]

    def compute(a: Node) -> Node:
        up = p.where(p.eq(a, math.inf), high if posinf is None else posinf, a)
        down = p.where(p.eq(a, -math.inf), low if neginf is None else neginf, up)
        return p.where(p.isnan(a), 0.0 if nan is None else nan, down)

    return p.pointwise(compute, x)


# -- a few prims per op


@decomposition(aten.square.default)
def square(p: Lowering, x: Node) -> Node:
    return p.pointwise(lambda a: p.mul(a, a), x)


@decomposition(aten.sgn.default)
def sgn(p: Lowering, x: Node) -> Node:
    return x if dtype_of(x) is torch.bool else p.pointwise(lambda a: p.sign(a), x)


@decomposition(aten.frac.default)
def frac(p: Lowering, x: Node) -> Node:
    return p.pointwise(lambda a: p.sub(a, p.trunc(a)), x)


@decomposition(aten.isposinf.default)
def isposinf(p: Lowering, x: Node) -> Node:
    return p.full_like(p.ne(x, x), False) if is_integral(dtype_of(x)) else p.eq(p.widen(x), math.inf)


@decomposition(aten.isneginf.default)
def isneginf(p: Lowering, x: Node) -> Node:
    return p.full_like(p.ne(x, x), False) if is_integral(dtype_of(x)) else p.eq(p.widen(x), -math.inf)


@decomposition(aten.deg2rad.default)
def deg2rad(p: Lowering, x: Node) -> Node:
    return p.pointwise(lambda a: p.mul(a, math.pi / 180), x, dtype=p.out.dtype)


@decomposition(aten.rad2deg.default)
def rad2deg(p: Lowering, x: Node) -> Node:
    return p.pointwise(lambda a: p.mul(a, 180 / math.pi), x, dtype=p.out.dtype)


@decomposition(aten.sinc.default)
def sinc(p: Lowering, x: Node) -> Node:
    def compute(a: Node) -> Node:
        y = p.mul(a, math.pi)
        return p.where(p.eq(a, 0), 1.0, p.div(p.sin(y), y))

    return p.pointwise(compute, x, dtype=p.out.dtype)


@decomposition(aten.logit.default)
def logit(p: Lowering, x: Node, eps: float | None = None) -> Node:
    def compute(a: Node) -> Node:
        if eps is not None:
            a = p.minimum(p.maximum(a, eps), 1 - eps)
        return p.log(p.div(a, p.sub(1, a)))

    return p.pointwise(compute, x, dtype=p.out.dtype)


@decomposition(aten.addcmul.default)
def addcmul(p: Lowering, x: Node, a: Node, b: Node, *, value: Any = 1) -> Node:
    return _with_scalar(
        p, lambda x, a, b, value: _add_scaled_op(p, p.mul, x, a, b, value), x, a, b, value, unrounded=(3,)
    )


@decomposition(aten.addcdiv.default)
def addcdiv(p: Lowering, x: Node, a: Node, b: Node, *, value: Any = 1) -> Node:
    return _with_scalar(
        p, lambda x, a, b, value: _add_scaled_op(p, p.div, x, a, b, value), x, a, b, value, unrounded=(3,)
    )


def _add_scaled_op(p: Lowering, op: Callable[..., Node], x: Node, a: Node, b: Node, value: Any) -> Node:
    """x + value * op(a, b), evaluated in the order of eager's kernels for the device."""
    if on_gpu(p):
        return _add_scaled(p, x, op(a, b), value)
    scaled = _times(p, a, value)
    return _add_scaled(p, x, scaled, b) if op == p.mul else p.add(x, op(scaled, b))


@decomposition(aten.lerp.Scalar)
def lerp(p: Lowering, start: Node, end: Node, weight: Any) -> Node:
    # whether a symbolic weight is below 0.5, which selects the formula, is known only at run time
    if isinstance(weight, Size):
        weight = p.full((), weight, compute_dtype(p.out.dtype), p.out.device)
    return _lerp(p, start, end, weight, (2,))


@decomposition(aten.lerp.Tensor)
def lerp_by_tensor(p: Lowering, start: Node, end: Node, weight: Node) -> Node:
    return _lerp(p, start, end, weight, ())  # a weight on the CPU is a number for CUDA kernels, which round it, too


def _lerp(p: Lowering, start: Node, end: Node, weight: Any, unrounded_on_gpu: tuple[int, ...]) -> Node:
    def compute(a: Node, b: Node, *rest: Node) -> Node:
        w, span = rest[0] if rest else weight, p.sub(b, a)
        if not isinstance(w, Node):
            if abs(w) < 0.5:
                return _add_scaled(p, a, span, w)
            return _add_scaled(p, b, span, _one_minus(p, w, dtype_of(a)), minus=True)
        far = _add_scaled(p, b, span, p.sub(1.0, w), minus=True)
        return p.where(p.lt(p.abs(w), 0.5), _add_scaled(p, a, span, w), far)

    weights = [weight] if isinstance(weight, Node) else []
    return p.pointwise(compute, start, end, *weights, unrounded=(2,), unrounded_on_gpu=unrounded_on_gpu)


def _one_minus(p: Lowering, weight: float, dtype: torch.dtype) -> float:
    """1 - weight; eager's CUDA kernels round the weight before they subtract it."""
    return (1 - torch.tensor(weight, dtype=dtype)).item() if on_gpu(p) else 1 - weight


@decomposition(aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other)
def xlogy(p: Lowering, x: Any, y: Any) -> Node:
    def compute(a: Any, b: Any) -> Node:
        a, b = _as_nodes(p, a, b)
        product = p.where(p.eq(a, 0), 0.0, p.mul(a, p.log(b)))
        return p.where(p.isnan(b), math.nan, product)

    return p.pointwise(compute, x, y, dtype=p.out.dtype)


@decomposition(aten.logaddexp.default)
def logaddexp(p: Lowering, x: Node, y: Node) -> Node:
    def compute(a: Node, b: Node) -> Node:
        top = p.maximum(a, b)
        finite = p.add(top, p.log1p(p.exp(p.neg(p.abs(p.sub(a, b))))))
        return p.where(p.logical_and(p.isinf(a), p.eq(a, b)), a, finite)

    return p.pointwise(compute, x, y)


@decomposition(aten.logaddexp2.default)
def logaddexp2(p: Lowering, x: Node, y: Node) -> Node:
    def compute(a: Node, b: Node) -> Node:
        rest = p.log1p(p.exp2(p.neg(p.abs(p.sub(a, b)))))
        finite = p.add(p.maximum(a, b), p.mul(rest, 1 / math.log(2)))
        return p.where(p.logical_and(p.isinf(a), p.eq(a, b)), a, finite)

    return p.pointwise(compute, x, y)


@decomposition(aten.ldexp.Tensor)
def ldexp(p: Lowering, x: Node, y: Node) -> Node:
    return p.pointwise(lambda a, b: p.mul(a, p.exp2(b)), x, y, dtype=p.out.dtype)


@decomposition(aten.heaviside.default)
def heaviside(p: Lowering, x: Node, values: Node) -> Any:
    if dtype_of(x) is torch.bool:
        return NotImplemented

    def compute(a: Node, v: Node) -> Node:
        step = p.convert(p.gt(a, 0), dtype_of(a))
        if dtype_of(a).is_floating_point:  # eager returns 0 for NaN
            step = p.where(p.isnan(a), 0.0, step)
        return p.where(p.eq(a, 0), v, step)

    return p.pointwise(compute, x, values)


def _as_nodes(p: Lowering, *operands: Any) -> list[Node]:
    """The operands; numbers become constant tensors of the result's shape, in the dtype in which it is computed."""
    out, dtype = p.out, compute_dtype(p.out.dtype)
    return [x if isinstance(x, Node) else p.full(out.shape, x, dtype, out.device) for x in operands]


@decomposition(aten.isclose.default)
def isclose(p: Lowering, x: Node, y: Node, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    dtype = result_dtype(x.meta["val"], y.meta["val"])
    if not dtype.is_floating_point:
        return NotImplemented

    def compute(a: Node, b: Node) -> Node:
        close = p.eq(a, b)
        if equal_nan:
            close = p.logical_or(close, p.logical_and(p.isnan(a), p.isnan(b)))
        limit = p.add(p.mul(p.abs(b), rtol), atol)
        error = p.abs(p.sub(a, b))
        return p.logical_or(close, p.logical_and(p.isfinite(error), p.le(error, limit)))

    return p.pointwise(compute, x, y)


@decomposition(aten.round.decimals)
def round_decimals(p: Lowering, x: Node, *, decimals: int) -> Node:
    factor = 10.0 ** abs(decimals)

    def compute(a: Node) -> Node:
        if decimals >= 0:
            return p.div(p.round(p.mul(a, factor)), factor)
        return p.mul(p.round(p.div(a, factor)), factor)

    return p.pointwise(compute, x)


@decomposition(aten.special_xlog1py.default, aten.special_xlog1py.self_scalar, aten.special_xlog1py.other_scalar)
def xlog1py(p: Lowering, x: Any, y: Any) -> Node:
    def compute(a: Any, b: Any) -> Node:
        a, b = _as_nodes(p, a, b)
        product = p.where(p.eq(a, 0), 0.0, p.mul(a, p.log1p(b)))
        return p.where(p.isnan(b), math.nan, product)

    return p.pointwise(compute, x, y, dtype=p.out.dtype)


@decomposition(aten.special_entr.default)
def entr(p: Lowering, x: Node) -> Node:
    def compute(a: Node) -> Node:
        inside = p.neg(p.mul(a, p.log(a)))
        at_edge = p.where(p.eq(a, 0), 0.0, p.full_like(a, -math.inf))
        return p.where(p.logical_or(p.gt(a, 0), p.isnan(a)), inside, at_edge)

    return p.pointwise(compute, x, dtype=p.out.dtype)
