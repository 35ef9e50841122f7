"""Dtype rules of the prims stage: classes of dtypes, the precision of arithmetic, and type promotion as in eager."""

from __future__ import annotations

from functools import cache

import torch

from smelt.shapes.size import Size

LOW_PRECISION = frozenset({torch.bfloat16, torch.float16})
INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
FLOATS = frozenset({torch.float32, torch.float64}) | LOW_PRECISION
PLAIN = INTEGERS | FLOATS | {torch.bool}
"""Dtypes that decompositions handle; operators on other dtypes (complex, quantized) stay ATen."""

BOUNDS = {d: (torch.finfo(d).min, torch.finfo(d).max) for d in FLOATS} | {
    d: (torch.iinfo(d).min, torch.iinfo(d).max) for d in INTEGERS
}

SATURATED = {torch.uint8: torch.int64, torch.int8: torch.int32, torch.int16: torch.int32}
"""For each small integer dtype, the wider dtype to which a GPU first converts a float (saturating); the result is its
low bits.
"""

COMPLEX = {torch.float16: torch.complex32, torch.float32: torch.complex64, torch.float64: torch.complex128}
"""For each real dtype, the complex dtype whose real and imaginary components have it."""

REAL = {wide: real for real, wide in COMPLEX.items()}
"""Complex dtype -> the dtype of its real and imaginary components."""


def is_float(dtype: torch.dtype) -> bool:
    """Whether the dtype is a (real) floating-point dtype."""
    return dtype.is_floating_point


def is_integral(dtype: torch.dtype) -> bool:
    """Whether the dtype is an integer dtype or bool."""
    return dtype in INTEGERS or dtype is torch.bool


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which eager computes one operator on `dtype`: float32 for bfloat16 and float16, else `dtype`."""
    return torch.float32 if dtype in LOW_PRECISION else dtype


def floating(dtype: torch.dtype) -> torch.dtype:
    """The result dtype of float-valued operators such as exp: for integers and bool the default dtype."""
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


@cache
def _promote(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    return torch.promote_types(a, b)


def _category(dtype: torch.dtype) -> int:
    return 2 if dtype.is_floating_point else 0 if dtype is torch.bool else 1


_OF_NUMBER: dict[type, tuple[int, torch.dtype | None]] = {
    bool: (0, torch.bool),
    int: (1, torch.int64),
    Size: (1, torch.int64),
    float: (2, None),
}


def result_dtype(*operands: object) -> torch.dtype:
    """Returns the promoted dtype of any number of operands (tensor metas and Python numbers), by torch.result_type's
    rules.

    The tensors with dimensions determine the dtype. A 0-d tensor, and after it a number, changes the result only if its
    category (bool < integer < float) is higher.
    """
    levels: list[torch.dtype | None] = [None, None, None]
    for operand in operands:
        if isinstance(operand, (bool, int, float, Size)):
            level, dtype = 2, _OF_NUMBER[type(operand)][1] or torch.get_default_dtype()
        else:
            level, dtype = (0 if len(operand.shape) else 1), operand.dtype  # type: ignore[attr-defined]
        known = levels[level]
        levels[level] = dtype if known is None else _promote(known, dtype)
    result: torch.dtype | None = None
    for found in levels:
        if found is not None and (result is None or _category(found) > _category(result)):
            result = found if result is None else _promote(result, found)
    if result is None:
        raise TypeError("result_dtype needs an operand")
    return result
