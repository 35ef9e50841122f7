"""Universal functions of arrays that share memory with tensors: NumPy's dtypes, values and signs of zero."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from smelt.capture.arrays.ufuncs import _FORMS, _WHOLE
from tests.capture.harness import compiled

FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e-3, 40.0, float("inf"), float("-inf"), float("nan")]
WHOLE = [0, 1, 2, 3, 5, 7, 100]
DTYPES = ("bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64", "complex64")
EXTREMES = (np.maximum, np.minimum, np.fmax, np.fmin)
"""NumPy's choice between 0.0 and -0.0 depends on the place in the array."""


def values(dtype, shift=0):
    kind = np.dtype(dtype).kind
    made = np.array(FLOATS if kind in "fc" else WHOLE).astype(dtype)
    return torch.from_numpy(np.roll(-made if kind == "i" and shift else made, shift))


def same(want, got, ulps=8, signs=True):
    """Equal class, dtype and shape; NaN, infinity and signs of zero in the same places, the rest within rounding."""
    assert type(want) is type(got), (want, got)
    want, got = np.asarray(want), np.asarray(got)
    assert want.dtype == got.dtype and want.shape == got.shape, (want, got)
    if want.dtype.kind not in "fc":
        return np.array_equal(want, got)
    zero = (want == 0) & (got == 0)
    if signs and want.dtype.kind == "f" and not np.array_equal(np.signbit(want[zero]), np.signbit(got[zero])):
        return False
    eps = float(np.finfo(want.dtype).eps) * ulps
    return np.allclose(want, got, rtol=eps, atol=np.finfo(want.dtype).tiny * ulps, equal_nan=True)


def agree(fn, *args, signs=True):
    """The compiled function captures all of `fn` and gives what NumPy gives, or NumPy raises and both do."""
    run = compiled(fn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            want = fn(*args)
        except (TypeError, ValueError, OverflowError) as error:
            with pytest.raises(type(error)):
                run(*args)
            return
        got = run(*args)
    assert same(want, got, signs=signs), f"{args}\n{want!r}\n{got!r}"


@pytest.mark.parametrize("fn", list(dict.fromkeys([*_FORMS, *_WHOLE])), ids=lambda fn: fn.__name__)
def test_every_captured_function_gives_numpys_values_in_every_dtype(fn):
    for dtype in DTYPES:
        others = [values(dtype, shift) for shift in range(1, 1 + fn.nin - 1)]
        agree(lambda *given: fn(*(each.numpy() for each in given)), values(dtype), *others, signs=fn not in EXTREMES)


@pytest.mark.parametrize("fn", [np.add, np.true_divide, np.maximum, np.less, np.power, np.logical_and])
def test_two_dtypes_and_python_numbers_promote_as_in_numpy(fn):
    for first, second in [("int8", "float32"), ("float16", "float32"), ("bool", "int8"), ("uint8", "int8")]:
        given = values(first)[:7], values(second, 1)[:7]
        agree(lambda a, b: fn(a.numpy(), b.numpy()), *given, signs=fn not in EXTREMES)
    for dtype in ("int8", "int64", "float16", "float32", "bool"):
        for number in (2, 2.5, True, 300, np.float64(2), np.int8(2)):
            agree(lambda a, number=number: fn(a.numpy(), number), values(dtype))
            agree(lambda a, number=number: fn(number, a.numpy()), values(dtype))
