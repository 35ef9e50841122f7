"""CUDA's device library for Triton's interpreter, which lacks it: the same functions by NumPy and SciPy."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from smelt.runtime.triton.worker import triton_module


def _special(name: str) -> Callable[..., Any]:
    """Returns a function of SciPy, which is imported at the first call, since only the interpreter needs it."""

    def call(*operands: Any) -> Any:
        return getattr(importlib.import_module("scipy.special"), name)(*operands)

    return call


def _fma(a: Any, b: Any, c: Any) -> Any:
    """A fused multiply-add, which is exact because the product is computed in twice the width."""
    return (np.multiply(a, b, dtype=np.float64) + c).astype(np.float32)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in "trunc rint tan sinh cosh tanh expm1 log1p log10".split()},
    **{name: getattr(np, f"arc{name[1:]}") for name in "asin acos atan asinh acosh atanh atan2".split()},
    **{name: getattr(np, name) for name in "hypot copysign nextafter fmod".split()},
    "pow": np.power,
    "exp": np.exp,
    "exp2": np.exp2,
    "fast_dividef": np.divide,
    "fma": _fma,  # for float32
    "erfc": _special("erfc"),
    "erfinv": _special("erfinv"),
    "lgamma": _special("gammaln"),
}


def _interpreted(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*operands: Any, _semantic: Any = None) -> Any:
        language = triton_module("language")
        data = function(*(x.handle.data for x in operands))
        first = next((x for x in operands if x.shape), operands[0])
        shaped = max(operands, key=lambda x: x.handle.data.size)
        make = triton_module("runtime.interpreter").TensorHandle
        handle = make(np.asarray(data, dtype=shaped.handle.data.dtype), shaped.handle.dtype)
        # in the interpreter a scalar is an array of one element
        kind = language.block_type(first.dtype, list(data.shape)) if first.shape else first.dtype
        return language.tensor(handle, kind)

    return call


LIBDEVICE = SimpleNamespace(**{name: _interpreted(function) for name, function in _FUNCTIONS.items()})
"""The replacement of `libdevice` in generated modules."""
