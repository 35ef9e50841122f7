"""Pointwise simplifications (identities and constants) that the builder applies before it makes a node.

A rule gets the builder and the prim's arguments, and returns a simpler value or None. Rules depend only on operands,
which exist before the node does, so applying them once to each new node leaves no pattern to simplify in the finished
graph. Results are equal bit for bit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from smelt.prims.dtypes import BOUNDS, INTEGERS, SATURATED
from smelt.prims.ops import PRIMS
from smelt.prims.table import Kind, Number
from smelt.shapes.size import Size

if TYPE_CHECKING:
    from smelt.prims.builder import Builder

Rule = Callable[..., Any]
Identity = Callable[["Builder", Any, Any], Any]

FULL, CONVERT, NEG, WHERE = (PRIMS[name] for name in ("full", "convert", "neg", "where"))


def operands(x: Node) -> tuple[Any, ...]:
    """Returns the arguments of a prim node."""
    return x.args


def constant_of(x: Any) -> Any:
    """Returns the Python number that x represents: x itself, or the value of a `full` node; None for anything else,
    symbolic sizes included.
    """
    if isinstance(x, Node):
        return operands(x)[1] if is_constant(x) else None
    return x


def is_constant(x: Node) -> bool:
    """Whether x is a `full` node whose value is a Python number."""
    return x.target is FULL and type(operands(x)[1]) is not Size


def typed(number: Number, dtype: torch.dtype) -> Number:
    """Returns the number as a Python bool, int or float, whichever represents dtype. Integers wrap around in dtype, as
    in eager's kernels (`int8 + 300`, `int8 == 300`).
    """
    if type(number) is Size:
        return bool(number) if dtype is torch.bool else number
    if dtype is torch.bool:
        return bool(number)
    if not dtype.is_floating_point:
        return wrapped(int(number), dtype)
    return rounded(number, dtype) if type(number) is int and abs(number) > 1 << 53 else float(number)  # rounded once


def wrapped(number: int, dtype: torch.dtype) -> int:
    """Returns the integer, wrapped around to the range of an integer dtype."""
    limits = torch.iinfo(dtype)
    return (number - limits.min) % (1 << limits.bits) + limits.min


def recast(number: Number, source: torch.dtype, dtype: torch.dtype, device: torch.device) -> Number:
    """Returns a number of dtype `source`, converted to `dtype` as a kernel on the device would."""
    number = rounded(number, source)
    if type(number) is not float or dtype not in INTEGERS:
        return typed(number, dtype)
    if device.type != "cuda":
        return torch.tensor(number, dtype=source).to(dtype).item()
    low, high = BOUNDS[SATURATED.get(dtype, dtype)]
    return 0 if math.isnan(number) else wrapped(int(min(max(number, low), high)), dtype)


def rounded(number: Number, dtype: torch.dtype) -> Number:
    """Returns the number, rounded or wrapped around to dtype. A symbolic size is returned unchanged."""
    if type(number) is Size:
        return number
    if type(number) is int and dtype in INTEGERS:
        return wrapped(number, dtype)
    if type(number) is int and not -(1 << 63) <= number < 1 << 63:
        number = float(number)
    if type(number) is float:
        return _rounded_float(number.hex(), dtype)
    return torch.tensor(number).to(dtype).item()


@functools.lru_cache(4096)
def _rounded_float(number: str, dtype: torch.dtype) -> Number:
    """Returns a float rounded to dtype; it is given as hexadecimal text, which distinguishes 0.0 from -0.0."""
    return torch.tensor(float.fromhex(number), dtype=torch.float64).to(dtype).item()


# -- identities of binary prims: (builder, x, y), of which at most one is a number


def _is(value: Any, number: int) -> bool:
    """Whether an operand certainly equals that number for all values of symbolic sizes."""
    return not isinstance(value, (Node, Size)) and bool(value == number)


def _is_zero(value: Any, sign: float) -> bool:
    """Whether an operand is the floating-point zero of this sign (1.0: 0.0; -1.0: -0.0)."""
    return type(value) is float and value == 0 and math.copysign(1.0, value) == sign


def _add(p: Builder, x: Any, y: Any) -> Any:
    if _is(y, 0) and not _is_zero(y, 1.0):  # -0.0 + 0.0 is 0.0
        return x
    if isinstance(y, Node) and y.target is NEG:
        return p.sub(x, operands(y)[0])
    return None


def _sub(p: Builder, x: Any, y: Any) -> Any:
    if not isinstance(y, Node):
        return x if _is(y, 0) and not _is_zero(y, -1.0) else None
    if _is(x, 0):
        return None if y.meta["val"].dtype.is_floating_point else p.neg(y)
    return p.add(x, operands(y)[0]) if y.target is NEG else None


def _mul(p: Builder, x: Any, y: Any) -> Any:
    if isinstance(y, (Node, Size)):
        return None
    return x if y == 1 else p.neg(x) if y == -1 else _scaled_mask(p, x, y)


def _scaled_mask(p: Builder, x: Any, factor: Number) -> Any:
    """Returns mask * factor as a selection, where(mask, factor, 0), for a mask that was converted from bool;
    else None.
    """
    if x.target is CONVERT and x.meta["val"].dtype.is_floating_point and math.isfinite(factor):
        mask = operands(x)[0]
        if mask.meta["val"].dtype is torch.bool:
            return p.where(mask, p.full_like(x, factor), 0.0 * factor)
    return None


def _div(p: Builder, x: Any, y: Any) -> Any:
    if isinstance(y, Node):
        return p.reciprocal(y) if _is(x, 1) else None
    if isinstance(y, Size):
        return None
    if y == 1:
        return x
    if y != 0 and (mask := _scaled_mask(p, x, 1 / rounded(y, x.meta["val"].dtype))) is not None:
        return mask
    exact = y != 0 and math.isfinite(y) and math.frexp(y)[0] in (0.5, -0.5) and 1e-30 < abs(y) < 1e30
    return p.mul(x, 1 / y) if exact and x.meta["val"].dtype is not torch.float16 else None


_FLOAT_POWERS: dict[float, Callable[[Builder, Any], Any]] = {
    0.5: lambda p, x: p.sqrt(x),
    -0.5: lambda p, x: p.rsqrt(x),
    -1.0: lambda p, x: p.reciprocal(x),
    -2.0: lambda p, x: p.reciprocal(p.mul(x, x)),
}
_POWERS: dict[float, Callable[[Builder, Any], Any]] = {
    0.0: lambda p, x: p.full_like(x, 1),
    1.0: lambda p, x: x,
    2.0: lambda p, x: p.mul(x, x),
    3.0: lambda p, x: p.mul(p.mul(x, x), x),
}


def _pow(p: Builder, x: Any, y: Any) -> Any:
    if isinstance(y, Node):
        return None
    make = _POWERS.get(y)
    if make is None and x.meta["val"].dtype.is_floating_point:
        make = _FLOAT_POWERS.get(y)
    return make(p, x) if make else None


def _floor_div(p: Builder, x: Any, y: Any) -> Any:
    return x if _is(y, 1) and x.meta["val"].dtype in INTEGERS else None


def _logical_and(p: Builder, x: Any, y: Any) -> Any:
    if isinstance(y, Node) or x.meta["val"].dtype is not torch.bool:
        return x if x is y and x.meta["val"].dtype is torch.bool else None
    return x if y else p.full_like(x, False)


def _logical_or(p: Builder, x: Any, y: Any) -> Any:
    if isinstance(y, Node) or x.meta["val"].dtype is not torch.bool:
        return x if x is y and x.meta["val"].dtype is torch.bool else None
    return p.full_like(x, True) if y else x


def _same(p: Builder, x: Any, y: Any) -> Any:
    return x if x is y else None


def _bitwise_and(p: Builder, x: Any, y: Any) -> Any:
    return _logical_and(p, x, y) if x.meta["val"].dtype is torch.bool else _same(p, x, y)


def _bitwise_or(p: Builder, x: Any, y: Any) -> Any:
    return _logical_or(p, x, y) if x.meta["val"].dtype is torch.bool else _same(p, x, y)


_VIEWS = frozenset(PRIMS[name] for name in ("reshape", "permute", "broadcast_in_dim"))


def _compared_iota(p: Builder, x: Any, y: Any, answer: bool) -> Any:
    """Fold a comparison of an increasing `iota` with a number that its first element has reached (`positions >= 0`) to
    `answer`.
    """
    if not isinstance(x, Node) or type(y) not in (int, float):
        return None
    counted = x
    while counted.target in _VIEWS:
        counted = operands(counted)[0]
    if counted.target is not PRIMS["iota"]:
        return None
    _, start, step, *_ = operands(counted)
    if type(start) is not int or type(step) is not int or step <= 0 or start < y:
        return None
    return p.full(x.meta["val"].shape, answer, torch.bool, x.meta["val"].device)


IDENTITIES: dict[str, Identity] = {
    "ge": functools.partial(_compared_iota, answer=True),
    "lt": functools.partial(_compared_iota, answer=False),
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "pow": _pow,
    "floor_div": _floor_div,
    "trunc_div": _floor_div,
    "logical_and": _logical_and,
    "logical_or": _logical_or,
    "bitwise_and": _bitwise_and,
    "bitwise_or": _bitwise_or,
    "maximum": _same,
    "minimum": _same,
}


def _binary(name: str) -> Rule:
    """Returns the rule of a binary prim: constant operands become numbers (on the right for commutative prims), and a
    prim of two constants is computed.
    """
    prim, identity = PRIMS[name], IDENTITIES.get(name)
    swap = prim.facts.commutative

    def rule(p: Builder, x: Any, y: Any) -> Any:
        a, b = constant_of(x), constant_of(y)
        if a is None and b is None:
            return identity(p, x, y) if identity else None
        like = (x if isinstance(x, Node) else y).meta["val"]
        if a is not None and b is not None:
            return _fold(p, name, like, typed(a, like.dtype), typed(b, like.dtype))
        if a is not None:
            number = typed(a, like.dtype)
            x, y = (y, number) if swap else (number, y)
        else:
            y = typed(b, like.dtype)
        simpler = identity(p, x, y) if identity else None
        return p.unique(prim, (x, y)) if simpler is None else simpler

    return rule


def _fold(p: Builder, name: str, like: Any, *numbers: Number) -> Node:
    """Returns the prim's result for constant operands, computed by its eager reference."""
    tensors = [torch.tensor(n, dtype=like.dtype) for n in numbers]
    value = PRIMS[name](*tensors)
    return p.full(like.shape, value.item(), value.dtype, like.device)


def _unary(name: str) -> Rule:
    def rule(p: Builder, x: Node) -> Any:
        if is_constant(x):
            return _fold(p, name, x.meta["val"], operands(x)[1])
        if name == "neg" and x.target is NEG:
            return operands(x)[0]
        return None

    return rule


def _where(p: Builder, cond: Node, a: Any, b: Any) -> Any:
    if is_constant(cond):
        chosen = a if operands(cond)[1] else b
        if isinstance(chosen, Node):
            return chosen
        return p.full_like(b if operands(cond)[1] else a, chosen)
    if a is b:
        return a
    first, second = constant_of(a), constant_of(b)
    if first is not None and second is None:
        return p.unique(PRIMS["where"], (cond, typed(first, b.meta["val"].dtype), b))
    if second is not None and first is None:
        return p.unique(PRIMS["where"], (cond, a, typed(second, a.meta["val"].dtype)))
    return None


_HOLDS: dict[torch.dtype, frozenset[torch.dtype]] = {
    torch.bool: frozenset(INTEGERS) | {torch.float16, torch.bfloat16, torch.float32, torch.float64},
    torch.uint8: frozenset({torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32})
    | {torch.float64},
    torch.int8: frozenset({torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32})
    | {torch.float64},
    torch.int16: frozenset({torch.int32, torch.int64, torch.float32, torch.float64}),
    torch.int32: frozenset({torch.int64, torch.float64}),
    torch.float16: frozenset({torch.float32, torch.float64}),
    torch.bfloat16: frozenset({torch.float32, torch.float64}),
    torch.float32: frozenset({torch.float64}),
}
"""For each dtype, the wider dtypes that represent each of its values exactly, so that a conversion to one of them and
then to a third dtype is one conversion.
"""


def _convert(p: Builder, x: Node, dtype: torch.dtype) -> Any:
    source = x.meta["val"].dtype
    if source is dtype:
        return x
    if x.target is FULL and (is_constant(x) or source in (torch.int64, torch.float64)):
        meta = x.meta["val"]
        return p.full(meta.shape, recast(operands(x)[1], source, dtype, meta.device), dtype, meta.device)
    if x.target is WHERE:
        cond, a, b = operands(x)
        first, second = constant_of(a), constant_of(b)
        if first is not None and second is not None:
            return p.where(cond, _recast(p, x, first, dtype), _recast(p, x, second, dtype))
    if x.target is CONVERT:
        inner = operands(x)[0]
        if source in _HOLDS.get(inner.meta["val"].dtype, ()):
            return p.convert(inner, dtype)
    return None


def _recast(p: Builder, x: Node, number: Number, dtype: torch.dtype) -> Node:
    """Returns a constant with the shape and device of x: `number`, which has the dtype of x, converted to `dtype`."""
    meta = x.meta["val"]
    return p.full(meta.shape, recast(number, meta.dtype, dtype, meta.device), dtype, meta.device)


def _full(p: Builder, shape: Any, value: Number, dtype: torch.dtype, device: torch.device) -> Any:
    number = rounded(typed(value, dtype), dtype)
    return p.unique(FULL, (shape, number, dtype, device))


def _clone(p: Builder, x: Node) -> Any:
    return x if x.target is PRIMS["clone"] else None


_POINTWISE = {name: prim.parameters for name, prim in PRIMS.items() if prim.kind is Kind.POINTWISE}
BINARY = [name for name, parameters in _POINTWISE.items() if parameters == ("x", "y")]
UNARY = [name for name, parameters in _POINTWISE.items() if parameters == ("x",) and name != "clone"]
"""Names of the pointwise primitives with one tensor operand; BINARY has those with two."""

RULES: dict[str, Rule] = (
    {name: _binary(name) for name in BINARY}
    | {name: _unary(name) for name in UNARY}
    | {"where": _where, "convert": _convert, "full": _full, "clone": _clone}
)
"""The simplification rules of pointwise prims, `full` and `clone`, by name."""
