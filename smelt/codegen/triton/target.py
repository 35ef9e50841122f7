"""Text of types, numbers and pointwise operators in Triton.

Low-precision floats are computed in float32 and rounded where the program converts or stores them. CUDA's device
library is `libdevice`; names of the functions of library.py begin with `m_`.
"""

from __future__ import annotations

import math

import numpy as np
import torch

VALUE_TYPES = {
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.bfloat16: "tl.float32",
    torch.float16: "tl.float32",
    torch.int64: "tl.int64",
    torch.int32: "tl.int32",
    torch.int16: "tl.int16",
    torch.int8: "tl.int8",
    torch.uint8: "tl.uint8",
    torch.bool: "tl.int1",
}
"""Type of a value in registers, by dtype."""

MEMORY_TYPES = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "u8",
}
"""Type to which a pointer points, by its name in signatures."""

NARROW = {torch.bfloat16: "tl.bfloat16", torch.float16: "tl.float16"}

FLOAT_OPS = {
    "neg": "({0} * -1.0)",  # Triton's minus is 0 - x, which gives +0.0 for x = 0.0
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "m_div({0}, {1})",
    "reciprocal": "m_div(1.0, {0})",
    "rsqrt": "m_rsqrt({0})",
    "erf": "m_erf({0})",
    "sqrt": "m_sqrt({0})",
    "abs": "tl.abs({0})",
    **{op: f"tl.{op}({{0}})" for op in "exp2 log log2 sin cos floor ceil".split()},
    **{op: f"libdevice.{op}({{0}})" for op in "trunc tan asin acos atan sinh cosh tanh asinh acosh atanh".split()},
    **{op: f"libdevice.{op}({{0}})" for op in "erfc erfinv lgamma exp expm1 log1p log10".split()},
    **{op: f"libdevice.{op}({{0}}, {{1}})" for op in "atan2 hypot copysign nextafter fmod pow".split()},
    "fma": "tl.fma({0}, {1}, {2})",
    "round": "libdevice.rint({0})",
    "isnan": "({0} != {0})",
    "isinf": '(tl.abs({0}) == float("inf"))',
    "isfinite": "({0} - {0} == 0)",
    "signbit": "m_signbit({0})",
    "sign": "m_sign({0})",
    "sigmoid": "m_sigmoid({0})",
    "digamma": "m_digamma({0})",
    **{op: "m_" + op + "({0}, {1})" for op in "maximum minimum remainder floor_div trunc_div".split()},
}

QUICK_OPS = {"exp": "tl.exp({0})"}
"""Faster operations for float32 results that are immediately rounded to low precision: `exp` by one multiplication and
the power of two, whose error grows with the argument (4 ulp at 10, 29 at 60).
"""

OURS = "m_"
"""Prefix of the functions of library.py; on integers, of those that treat negative numbers specially."""

WIDENED_OPS = {
    "neg": "-{0}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "bitwise_not": "~{0}",
    **{op: "m_" + op + "_int({0}, {1})" for op in "remainder floor_div trunc_div fmod".split()},
    **{op: "m_" + op + "({0}, {1}, {bits})" for op in "shift_left shift_right".split()},
}
"""Integer operations whose results are converted back to the width of small integers."""

INTEGER_OPS = WIDENED_OPS | {
    "abs": "tl.abs({0})",
    "sign": "m_sign_int({0})",
    **{op: "{0}" for op in "floor ceil trunc round".split()},
    "isnan": "({0} != {0})",
    "isinf": "({0} != {0})",
    "isfinite": "({0} == {0})",
    "signbit": "({0} < 0)",
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "bitwise_xor": "{0} ^ {1}",
    "maximum": "tl.maximum({0}, {1})",
    "minimum": "tl.minimum({0}, {1})",
    "pow": "m_pow_int({0}, {1})",
}

BOOL_OPS = {
    "add": "{0} | {1}",
    "mul": "{0} & {1}",
    "maximum": "{0} | {1}",
    "minimum": "{0} & {1}",
    "bitwise_not": "({0} == 0)",
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "bitwise_xor": "{0} ^ {1}",
    "abs": "{0}",
    "sign": "{0}",
    "isnan": "({0} != {0})",
    "isinf": "({0} != {0})",
    "isfinite": "({0} == {0})",
    "signbit": "({0} != {0})",
}

COMMON_OPS = {
    "eq": "({0} == {1})",
    "ne": "({0} != {1})",
    "lt": "({0} < {1})",
    "le": "({0} <= {1})",
    "gt": "({0} > {1})",
    "ge": "({0} >= {1})",
    "logical_and": "({0} != 0) & ({1} != 0)",
    "logical_or": "({0} != 0) | ({1} != 0)",
    "logical_xor": "({0} != 0) ^ ({1} != 0)",
    "logical_not": "({0} == 0)",
    "where": "tl.where({0}, {1}, {2})",
}


def operator(op: str, dtype: torch.dtype, args: list[str]) -> str:
    """Returns the Triton expression of a pointwise operation.

    Raises:
        KeyError: the operation does not exist for the dtype.
    """
    table = FLOAT_OPS if dtype.is_floating_point else BOOL_OPS if dtype is torch.bool else INTEGER_OPS
    template = table.get(op) or COMMON_OPS[op]
    if dtype is torch.uint8 and template.startswith(OURS):
        wide = template.format(*(f"{a}.to(tl.int64)" for a in args), bits=8)
        return f"{wide}.to(tl.uint8)"
    return template.format(*args, bits=8 * dtype.itemsize)


def quotient(dtype: torch.dtype, args: list[str], divisor: float) -> str:
    """Returns the quotient of floats by a constant, as a multiplication by its reciprocal: a division's branches take
    time.

    The result equals a division for dividends of at least 1e-35; for smaller ones, whose remainder is subnormal, the
    last bit may differ.
    """
    b = np.float32(divisor)
    if VALUE_TYPES[dtype] != "tl.float32" or not 1 <= abs(b) <= LARGEST_DIVISOR:
        return operator("div", dtype, args)
    reciprocal = literal(float(np.float32(1) / b), torch.float32)
    return f"m_div_by({args[0]}, {literal(-float(b), torch.float32)}, {reciprocal})"


LARGEST_DIVISOR = 2.0**64
"""Maximum constant divisor that is replaced by its reciprocal, which must not be subnormal. The minimum is 1, because
quotients must not overflow.
"""


def whole_division(op: str, dtype: torch.dtype, a: str, b: str) -> str:
    """Returns the quotient or remainder of integers by an integer that may be 0, as eager's kernel on a GPU computes
    it.

    The types follow C: narrower integers are widened to 32 bits. Quotients of unsigned integers are rounded towards 0.
    """
    if dtype is torch.uint8:
        op = {"floor_div": "trunc_div", "remainder": "fmod"}.get(op, op)
    if dtype.itemsize >= 4:
        return f"m_{op}_any({a}, {b})"
    return f"m_{op}_any({a}.to(tl.int32), {b}.to(tl.int32)).to({VALUE_TYPES[dtype]})"


def literal(value: bool | int | float, dtype: torch.dtype) -> str:
    """Returns a number as text, rounded to the dtype. A plain float32 literal adapts to the type of its float
    operands.
    """
    if dtype is torch.bool:
        return f"tl.full([], {int(bool(value))}, tl.int1)"
    if not dtype.is_floating_point:
        return f"tl.full([], {int(torch.tensor(value, dtype=dtype).item())}, {VALUE_TYPES[dtype]})"
    number = float(torch.tensor(value, dtype=dtype).item())
    text = f"float('{number}')" if math.isnan(number) or math.isinf(number) else repr(number)
    if number == 0 and math.copysign(1.0, number) < 0:  # `full` would lose the sign of -0.0
        return f"(tl.full([], -1.0, {VALUE_TYPES[dtype]}) * 0.0)"
    return f"tl.full([], {text}, {VALUE_TYPES[dtype]})"
