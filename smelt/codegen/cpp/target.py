"""Types, literals and operator templates of C-like targets; a renderer overrides only the differences."""

from __future__ import annotations

import math

import torch

VALUE_TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.bfloat16: "float",
    torch.float16: "float",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.int16: "int16_t",
    torch.int8: "int8_t",
    torch.uint8: "uint8_t",
    torch.bool: "bool",
}
"""C type of a value in a register. Low-precision floats are computed in float and rounded after each operation."""

MEMORY_TYPES = VALUE_TYPES | {torch.bfloat16: "uint16_t", torch.float16: "uint16_t", torch.bool: "uint8_t"}

UNSIGNED = {
    torch.int64: "uint64_t",
    torch.int32: "uint32_t",
    torch.int16: "uint16_t",
    torch.int8: "uint8_t",
    torch.uint8: "uint8_t",
}

ROUNDING = {torch.bfloat16: "bf16", torch.float16: "f16"}

FLOAT_OPS = {
    "neg": "-{0}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "reciprocal": "{one} / {0}",
    "rsqrt": "{one} / sqrt{f}({0})",
    **{op: op + "{f}({0})" for op in "sqrt floor ceil trunc tan asin acos atan sinh cosh asinh acosh atanh".split()},
    **{op: op + "{f}({0})" for op in "erfc lgamma".split()},
    **{op: op + "{f}({0}, {1})" for op in "atan2 hypot copysign nextafter".split()},
    "fma": "FMA({0}, {1}, {2})",
    "round": "rint{f}({0})",
    "isnan": "{0} != {0}",
    "isinf": "fabs{f}({0}) == INFINITY",
    "isfinite": "{0} - {0} == 0",
    "signbit": "copysign{f}({one}, {0}) < 0",  # GCC 12 fails on a vector of __builtin_signbit of shifted bits
    **{op: "m_" + op + "({0})" for op in "exp expm1 exp2 log log2 log10 log1p sigmoid tanh erf".split()},
    **{op: "m_" + op + "{far}({0})" for op in ("sin", "cos")},
    **{op: "m_" + op + "({0})" for op in "erfinv digamma sign abs".split()},
    **{op: "m_" + op + "({0}, {1})" for op in "maximum minimum pow fmod remainder floor_div trunc_div".split()},
}
"""Templates of float operations; {f}: suffix of the C library's float functions, {one}: the literal 1, {far}: see
`Renderer.op`.
"""

INTEGER_OPS = {
    "neg": "({t})-({u}){0}",
    "add": "({t})(({u}){0} + ({u}){1})",
    "sub": "({t})(({u}){0} - ({u}){1})",
    "mul": "({t})(({w}){0} * ({w}){1})",
    **{op: "{0}" for op in "floor ceil trunc round".split()},
    "isnan": "false",
    "isinf": "false",
    "isfinite": "true",
    "signbit": "{0} < 0",
    "bitwise_not": "({t})~{0}",
    "bitwise_and": "({t})({0} & {1})",
    "bitwise_or": "({t})({0} | {1})",
    "bitwise_xor": "({t})({0} ^ {1})",
    **{op: "m_" + op + "({0}, {1})" for op in ("shift_left", "shift_right")},
    **{op: "m_" + op + "({0})" for op in "sign abs".split()},
    **{op: "m_" + op + "({0}, {1})" for op in "maximum minimum pow fmod remainder floor_div trunc_div".split()},
}
"""Templates of integer operations: unsigned arithmetic wraps where signed would be undefined. {w}: at least 32 bits
wide.
"""

BOOL_OPS = {
    "add": "{0} | {1}",
    "mul": "{0} & {1}",
    "maximum": "{0} | {1}",
    "minimum": "{0} & {1}",
    "bitwise_not": "!{0}",
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "bitwise_xor": "{0} != {1}",
    "abs": "{0}",
    "sign": "{0}",
    "isnan": "false",
    "isinf": "false",
    "isfinite": "true",
    "signbit": "false",
}

COMMON_OPS = {
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "logical_and": "({0} != 0) & ({1} != 0)",
    "logical_or": "({0} != 0) | ({1} != 0)",
    "logical_xor": "({0} != 0) != ({1} != 0)",
    "logical_not": "{0} == 0",
    "where": "{0} ? {1} : {2}",
}


class Renderer:
    """A target that computes in C: types and operators. Subclasses override the differences."""

    name = "c"
    value_types = VALUE_TYPES
    memory_types = MEMORY_TYPES

    def op(self, op: str, dtype: torch.dtype, args: list[str], far: str = "true") -> str:
        """Returns the C expression of a pointwise operation. `far`: a C++ boolean constant as text: whether arguments
        of any magnitude must be supported.

        Raises:
            KeyError: the target has no such operation for the dtype.
        """
        table = FLOAT_OPS if dtype.is_floating_point else BOOL_OPS if dtype is torch.bool else INTEGER_OPS
        template = table.get(op) or COMMON_OPS[op]
        wide = "uint64_t" if dtype is torch.int64 else "uint32_t"
        suffix = "" if dtype is torch.float64 else "f"
        return template.format(
            *args,
            f=suffix,
            far=f"<{far}>" if suffix else "",
            one="1.0" + suffix,
            t=self.value_types[dtype],
            u=UNSIGNED.get(dtype, ""),
            w=wide,
        )

    def literal(self, value: bool | int | float, dtype: torch.dtype) -> str:
        """Returns the text of a number, rounded to the dtype."""
        if dtype is torch.bool:
            return "true" if value else "false"
        if dtype.is_floating_point:
            return _float_literal(float(torch.tensor(value, dtype=dtype).item()), dtype is torch.float64)
        number = int(torch.tensor(value, dtype=dtype).item())
        if dtype is torch.int64:
            return "INT64_MIN" if number == -(2**63) else f"(int64_t){number}"
        if dtype is not torch.int32:
            return f"({self.value_types[dtype]}){number}"
        return "INT32_MIN" if number == -(2**31) else f"({number})" if number < 0 else str(number)


def _float_literal(number: float, double: bool) -> str:
    if math.isnan(number) or math.isinf(number):
        text = "(float)NAN" if math.isnan(number) else "INFINITY" if number > 0 else "(-INFINITY)"
        return f"(double){text}" if double else text  # std::max and its like need operands of one type
    text = repr(number) if double else f"{number:.9g}"
    text = text if any(c in text for c in ".en") else text + ".0"
    text = text if double else text + "f"
    return f"({text})" if number < 0 or text[0] == "-" else text
