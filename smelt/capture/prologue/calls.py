"""Properties of functions that prologues call: whether they draw random numbers, write, or have a predictable result
type.
"""

from __future__ import annotations

import builtins
import math
import operator
import random
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

from smelt.base.class_tables import isinstance
from smelt.capture.core.prologue_value import PrologueValue

CLOCKS = frozenset(
    getattr(time, name)
    for name in ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time")
)

SOURCES = CLOCKS | {numpy.random.seed}
"""Functions, besides generators' methods, whose result differs at each call, or that set the state of a generator."""

MAKERS = frozenset({random.Random, numpy.random.RandomState, numpy.random.default_rng})
"""Functions that make random generators."""

SEEDED = {numpy.random.seed: numpy.random.mtrand._rand}
"""The generator whose state a function sets."""

EXACT = frozenset(
    "random uniform rand randn randint random_sample normal standard_normal permutation gauss normalvariate "
    "getrandbits randrange exponential seed triangular expovariate betavariate beta gamma integers".split()
) | {clock.__name__ for clock in CLOCKS}
"""Names of generators' methods and clocks for which type, dtype and shape of the result follow from the arguments."""

_NUMBERS = "add sub mul neg pos lt le gt ge eq ne not_ truth abs and_ or_ xor iadd isub imul".split()
CERTAIN = frozenset(
    [getattr(operator, name) for name in _NUMBERS]
    + [bool, float, str, abs, math.floor, math.ceil, math.trunc, torch.tensor, torch.from_numpy]
    + [numpy.stack, numpy.concatenate, numpy.abs, numpy.add, numpy.multiply, numpy.subtract, numpy.sqrt, numpy.exp]
)
"""Functions that raise no error and for which the kind of the result follows from the kinds of the arguments."""

MUTATING = frozenset(
    [numpy.put, numpy.place, numpy.copyto, numpy.putmask, numpy.fill_diagonal, numpy.put_along_axis]
    + [numpy.random.shuffle]
)
"""Functions of numpy that write to their arguments."""

PLAIN_METHODS = frozenset(
    "astype sum mean std var min max argmin argmax prod any all copy item tolist transpose flatten ravel cumsum "
    "cumprod clip round swapaxes squeeze argsort conj dot trace diagonal view".split()
)
"""Names of methods of arrays and numbers for which constant arguments determine the kind of the result."""

PURE_METHODS = PLAIN_METHODS | frozenset(
    "reshape repeat take nonzero choose compress searchsorted tobytes is_integer hex bit_length conjugate "
    "random uniform rand randn randint random_sample normal standard_normal permutation permuted choice integers "
    "gauss normalvariate sample randrange getrandbits choices upper lower strip format split join".split()
)
"""Names of methods that change neither their object nor their arguments."""

_PLAIN_FUNCTIONS = frozenset(
    {builtins.int, float, bool, str, complex, repr, format, abs, round, divmod, pow, min, max, sum, sorted, "".join}
    | {value for value in vars(operator).values() if isinstance(value, types.BuiltinFunctionType)}
    | {value for value in vars(math).values() if isinstance(value, types.BuiltinFunctionType)}
)


def range_of(generator: object, name: str, args: Sequence[Any], named: bool) -> tuple[object, object] | None:
    """The minimum and maximum of the numbers that a method of a generator may return; None if they are not known.

    Args:
        named: whether there are keyword arguments.
    """
    if named or any(type(a) not in (int, float) for a in args):
        return None
    if name in ("random", "rand", "random_sample", "uniform") and not args:
        return 0.0, 1.0
    if name == "uniform" and len(args) == 2 and 0 in args:  # otherwise rounding may give a value outside of the range
        return min(args), max(args)
    if name == "randint" and len(args) == 2:
        return args[0], args[1] - (not isinstance(generator, random.Random))
    if name in ("randrange", "integers", "randint") and len(args) in (1, 2):
        return (0, args[0] - 1) if len(args) == 1 else (args[0], args[1] - 1)
    return None


_ANSWERS: dict[Callable[..., object], Callable[..., bool | None]] = {
    operator.lt: lambda low, high, n: True if high < n else False if low >= n else None,
    operator.le: lambda low, high, n: True if high <= n else False if low > n else None,
    operator.gt: lambda low, high, n: True if low > n else False if high <= n else None,
    operator.ge: lambda low, high, n: True if low >= n else False if high < n else None,
}
_SWAPPED: dict[Callable[..., object], Callable[..., object]] = {
    operator.lt: operator.gt,
    operator.le: operator.ge,
    operator.gt: operator.lt,
    operator.ge: operator.le,
}


def answer_by_range(fn: Callable[..., object], left: object, right: object) -> bool | None:
    """The result of comparing a prologue value of known range with a plain number, if the range decides it;
    else None.
    """
    if fn not in _ANSWERS:
        return None
    if not isinstance(left, PrologueValue):
        left, right, fn = right, left, _SWAPPED[fn]
    if not isinstance(left, PrologueValue) or left.range is None or type(right) is not int and type(right) is not float:
        return None
    return _ANSWERS[fn](*left.range, right)


def is_numpy(fn: object) -> bool:
    """Whether `fn` is a function or class of NumPy that computes only: it draws no random numbers and is not in
    `ACTING`.
    """
    module = getattr(fn, "__module__", None)
    if isinstance(fn, numpy.ufunc):
        return True
    if isinstance(fn, numpy.vectorize):  # it runs code of the program
        return False
    if not isinstance(module, str) or module.split(".")[0] != "numpy" or module.startswith("numpy.random"):
        return False
    return getattr(fn, "__name__", "") not in ACTING


ACTING = frozenset(
    "save savez savez_compressed savetxt load loadtxt genfromtxt fromfile memmap open_memmap DataSource seterr "
    "seterrcall errstate setbufsize set_printoptions printoptions vectorize frompyfunc apply_along_axis "
    "apply_over_axes piecewise fromfunction nditer".split()
)
"""Names of NumPy functions that act outside of the program, or call functions among their arguments."""


def is_plain(fn: object) -> bool:
    """Whether a function only computes its result, from values of any kind."""
    try:
        return fn in _PLAIN_FUNCTIONS or is_numpy(fn)
    except TypeError:  # it is not hashable
        return False
