"""Symbolic sizes inside PyTorch: `torch.SymInt` with smelt's node class.

C++ code that computes with sizes (composite operators, derivative formulas) calls the node's methods, so everything
that it computes stays a `Size`, or a `Ratio` of sizes. A comparison without a proof stays a `SymbolicPredicate` until
it is needed as a bool. Some C++ code states which value it accepts if the comparison is undecided; then no assumption
is needed. (The node protocol: c10/core/SymNodeImpl.h in PyTorch.)
"""

from __future__ import annotations

import builtins
import functools
import math
import numbers
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from torch import fx

from smelt.base.class_tables import by_class, classes
from smelt.graph.ir.meta import contiguous_stride, is_channels_last, is_dense
from smelt.graph.ir.sym_bool import SymbolicPredicate, both, compare, either, opposite
from smelt.shapes.assumptions import Assumptions
from smelt.shapes.real import Real, make
from smelt.shapes.size import IntLike, Size, known_equal, lowest
from smelt.shapes.unbacked import is_unbacked

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
SYMBOLIC_CLASSES = classes(*SYMBOLIC)
"""The classes of SYMBOLIC as a set."""


class Ratio:
    """The quotient `number / size`, at least one of them a Size: a quotient of element counts, as in derivative
    formulas.

    `float()` specializes the sizes.
    """

    __slots__ = ("number", "size")

    def __init__(self, number: float | Size, size: IntLike) -> None:
        self.number, self.size = number, size

    def __float__(self) -> float:
        return float(self.number) / int(self.size)

    def floor(self) -> int | Size:
        """Returns the largest integer that is not larger."""
        if isinstance(self.number, float):
            return math.floor(float(self))
        return self.number // self.size


_YES, _NO = functools.partial(bool, True), functools.partial(bool)


class SizeNode:
    """The node of a SymInt, SymBool or SymFloat.

    Attributes:
        value: a Size or number; for SymBool a bool or SymbolicPredicate; for SymFloat a float, Size, Ratio or Real.
        is_int, is_float, is_bool: return whether the node is of this kind, without running Python code, in which an
            interrupt could occur: C++ calls them while it makes a value, and an exception would end the process.
    """

    __slots__ = ("value", "kind", "is_int", "is_float", "is_bool")

    def __init__(self, value: Any, kind: type) -> None:
        self.value, self.kind = value, kind
        self.is_int = _YES if kind is int else _NO
        self.is_float = _YES if kind is float else _NO
        self.is_bool = _YES if kind is bool else _NO

    def is_nested_int(self) -> bool:
        return False

    def is_symbolic(self) -> bool:
        return isinstance(self.value, _SYMBOLIC_VALUES)

    def is_constant(self) -> bool:
        return self.kind is not float and not isinstance(self.value, _SYMBOLIC_VALUES)

    def maybe_as_int(self) -> int | None:
        return self.value if self.kind is int and not isinstance(self.value, Size) else None

    def maybe_as_bool(self) -> bool | None:
        return self.value if self.kind is bool and not isinstance(self.value, SymbolicPredicate) else None

    def maybe_as_float(self) -> float | None:
        return self.value if self.kind is float and not isinstance(self.value, _SYMBOLIC_VALUES) else None

    constant_int = maybe_as_int
    constant_bool = maybe_as_bool

    def nested_int(self) -> None:
        return None

    def nested_int_coeff(self) -> None:
        return None

    def singleton_int(self) -> None:
        return None

    def has_hint(self) -> bool:
        return True

    def clone(self) -> SizeNode:
        return self

    def wrap_int(self, number: int) -> SizeNode:
        return SizeNode(number, int)

    def wrap_bool(self, number: bool) -> SizeNode:
        return SizeNode(number, bool)

    def wrap_float(self, number: float) -> SizeNode:
        return SizeNode(number, float)

    def str(self) -> str:
        """Returns the text for a message of C++ code. Most are never shown: functions write the text of an error before
        they check for it. Therefore, the size is specialized by `Assumptions.pin_written` once a message is shown.
        """
        if isinstance(self.value, Size) and not is_unbacked(self.value):
            return self.value.owner.write(self.value)
        return self._graph_repr()

    def _graph_repr(self) -> builtins.str:
        """Returns the text for a program that prints it: the text of the number, to which the size is specialized."""
        return repr(self.number())

    def number(self) -> Any:
        """Returns the plain number, to which a size is specialized."""
        return self.bool_() if self.kind is bool else self.kind(self.value)

    def int_(self) -> int:
        return int(self.number())

    def bool_(self) -> bool:
        return self.value.ask() if isinstance(self.value, SymbolicPredicate) else bool(self.value)

    def float_(self) -> float:
        return float(self.value)

    def guard_int(self, file: Any, line: Any) -> int:
        return self.int_()

    def guard_float(self, file: Any, line: Any) -> float:
        return self.float_()

    def guard_bool(self, file: Any, line: Any) -> bool:
        return self.bool_()

    def expect_true(self, file: Any, line: Any) -> bool:
        """Decide a condition whose caller raises an error if it is false: compiled code may check it instead."""
        expected = isinstance(self.value, SymbolicPredicate) and self.value.expect(
            "a size is out of range", "RuntimeError"
        )
        return expected or self.bool_()

    def guard_or_false(self, file: Any, line: Any) -> bool:
        """Decide a condition that the caller accepts as false if it is undecided."""
        return self._unless(False)

    guard_size_oblivious = guard_or_false

    def guard_or_true(self, file: Any, line: Any) -> bool:
        """Decide a condition that the caller accepts as true if it is undecided."""
        return self._unless(True)

    def _unless(self, usual: bool) -> bool:
        if not isinstance(self.value, SymbolicPredicate):
            return bool(self.value)
        known = self.value.prove()
        if known is None and self.value.example is usual:
            return usual
        return self.value.ask()

    def expect_size(self, file: Any, line: Any) -> bool:
        return SizeNode(compare("<", self.value, 0, True), bool).expect_true(file, line)

    def statically_known_true(self, file: Any, line: Any) -> bool:
        return self.value.prove() is True if isinstance(self.value, SymbolicPredicate) else bool(self.value)

    def sym_float(self) -> SizeNode:
        """Returns the same value as a float; exact for integers below 2**53."""
        return SizeNode(self.value if isinstance(self.value, _SYMBOLIC_VALUES) else float(self.value), float)

    def sym_sqrt(self) -> SizeNode:
        return SizeNode(make(math.sqrt, as_real(self.value)), float)

    sqrt = _sym_sqrt = sym_sqrt

    def sym_int(self) -> SizeNode:
        return self if self.kind is int else SizeNode(int(self.value), int)

    def floor(self) -> SizeNode:
        return SizeNode(_rounded(self.value, math.floor), int)

    def ceil(self) -> SizeNode:
        return SizeNode(_rounded(self.value, math.ceil), int)

    def trunc(self) -> SizeNode:
        return SizeNode(_rounded(self.value, math.trunc), int)

    def sym_not(self) -> SizeNode:
        return SizeNode(opposite(self.value), bool)

    def neg(self) -> SizeNode:
        if self.kind is float and isinstance(self.value, Size) and _may_be_zero(self.value):
            return SizeNode(make(operator.neg, self.value), float)
        return SizeNode(-self.value, self.kind)

    def abs(self) -> SizeNode:
        return SizeNode(abs(self.value), self.kind)

    def pos(self) -> SizeNode:
        return self

    def sym_sum(self, nodes: Sequence[SizeNode]) -> SizeNode:
        return SizeNode(sum((n.value for n in nodes), 0), int)

    def sym_ite(self, yes: SizeNode, no: SizeNode) -> SizeNode:
        return yes if self.bool_() else no

    # layout queries: sizes and strides are passed as nodes

    def is_contiguous(self, sizes: Any, strides: Any) -> SizeNode:
        shape, stride = _values(sizes), _values(strides)
        return SizeNode(_same(shape, stride, contiguous_stride(shape)), bool)

    def is_channels_last_contiguous_2d(self, sizes: Any, strides: Any) -> SizeNode:
        shape, stride = _values(sizes), _values(strides)
        return SizeNode(len(shape) == 4 and is_channels_last(shape, stride), bool)

    is_channels_last_strides_2d = is_channels_last_contiguous_2d

    def is_channels_last_contiguous_3d(self, sizes: Any, strides: Any) -> SizeNode:
        return SizeNode(False, bool)

    is_channels_last_strides_3d = is_channels_last_contiguous_3d

    def is_non_overlapping_and_dense(self, sizes: Any, strides: Any) -> SizeNode:
        return SizeNode(is_dense(_values(sizes), _values(strides)), bool)

    is_non_overlapping_and_dense_indicator = is_non_overlapping_and_dense


_SYMBOLIC_VALUES = (Size, Ratio, SymbolicPredicate, Real)
"""Classes of values that are not known before the compiled code runs."""


def _values(nodes: Any) -> Any:
    return tuple(from_torch(n.value if isinstance(n, SizeNode) else n) for n in nodes)


def _same(shape: Any, stride: Any, wanted: Any) -> bool:
    return any(known_equal(n, 0) for n in shape) or all(
        known_equal(n, 1) or known_equal(a, b) for n, a, b in zip(shape, stride, wanted, strict=True)
    )


def _binary(name: str, compute: Callable[[Any, Any], Any]) -> None:
    def method(self: SizeNode, other: SizeNode) -> SizeNode:
        a, b = self.value, other.value
        if compute is operator.pow and isinstance(a, Size) and not (type(b) is int and b >= 0):
            return SizeNode(make(operator.pow, a, b), float)
        if self.kind is float or other.kind is float:
            return SizeNode(_on_floats(compute, a, b), float)
        out = compute(a, b)
        kind = bool if isinstance(out, SymbolicPredicate) else int if isinstance(out, Size) else type(out)
        return SizeNode(out, float if isinstance(out, (Ratio, Real)) else kind)

    setattr(SizeNode, name, method)


def _on_floats(compute: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Compute an operation on floats. Integral floats beside sizes are treated as integers, so that `size - 1.0` stays
    a size.
    """
    if not isinstance(a, _SYMBOLIC_VALUES) and not isinstance(b, _SYMBOLIC_VALUES):
        return compute(a, b)
    if _may_be_signed_zero(compute, a, b) or isinstance(a, Real) or isinstance(b, Real):
        return _on_reals(compute, as_real(a), as_real(b))
    floats = a, b
    a, b = map(_integral, floats)
    if compute is _divided:
        return _divided(a, b)
    scaled = _scaled(a, b) if compute is operator.mul else None
    if scaled is not None:
        return scaled
    if compute in (operator.add, operator.sub, operator.mul) and all(isinstance(n, (int, Size)) for n in (a, b)):
        return compute(a, b)
    return make(compute, *map(as_real, floats)) if compute in _ARITHMETIC else compute(*map(float, floats))


def _integral(number: Any) -> Any:
    """Returns an integral float as an integer; anything else unchanged."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _may_be_signed_zero(compute: Callable[[Any, Any], Any], a: Any, b: Any) -> bool:
    """Whether the result may be a zero of floats, which has a sign, unlike an integer."""
    if compute is not operator.add and any(isinstance(n, float) and n == 0 for n in (a, b)):
        return True
    return _may_be_minus_zero(compute, a, b)


def _on_reals(compute: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
    if isinstance(x, (int, Size)) and isinstance(y, (int, Size)):
        x = make(float, x) if isinstance(x, Size) else float(x)
    return make(operator.truediv if compute is _divided else compute, x, y)


def _scaled(a: Any, b: Any) -> Ratio | None:
    """Returns a size times a float that is a short fraction, or a ratio of sizes times a number; None for other
    operands.
    """
    if Size in (type(a), type(b)) and float in (type(a), type(b)):
        size, number = (a, b) if isinstance(a, Size) else (b, a)
        above, below = number.as_integer_ratio() if math.isfinite(number) else (0, _MAX_DENOMINATOR + 1)
        if below <= _MAX_DENOMINATOR:
            return Ratio(size * above, below)
    for ratio, number in ((a, b), (b, a)):
        if isinstance(ratio, Ratio) and isinstance(number, (int, float)):
            return Ratio(ratio.number * number, ratio.size)
    return None


def _may_be_minus_zero(compute: Callable[[Any, Any], Any], a: Any, b: Any) -> bool:
    """Whether the operation may give -0.0 on floats, where it gives 0 on integers."""
    if compute is operator.mul:
        return (_may_be_negative(a) and _may_be_zero(b)) or (_may_be_zero(a) and _may_be_negative(b))
    return compute in (operator.mod, operator.floordiv) and _may_be_negative(b)


def _may_be_negative(value: Any) -> bool:
    low = lowest(value) if isinstance(value, Size) else value
    return not isinstance(low, (int, float)) or low < 0


def _may_be_zero(value: Any) -> bool:
    if not isinstance(value, Size):
        return isinstance(value, _SYMBOLIC_VALUES) or value == 0
    low = lowest(value)
    return low is None or low <= 0


_ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.mod, operator.floordiv, operator.pow)


def as_real(value: Any) -> Any:
    """Returns a quotient of sizes as a symbolic float; anything else unchanged."""
    return make(operator.truediv, value.number, value.size) if isinstance(value, Ratio) else value


def _rounded(value: Any, rounding: Callable[[float], int]) -> Any:
    if isinstance(value, Size):
        return value
    if isinstance(value, Ratio) and isinstance(value.number, (int, Size)) and isinstance(value.size, int):
        if rounding is math.ceil:
            return -Ratio(-value.number, value.size).floor()
        if rounding is math.floor or value.number >= 0:
            return value.floor()
    return rounding(float(value))


def whole_product(size: Any, scale: float) -> Any:
    """Returns `int(size * scale)`, as C++ computes the size of a scaled image."""
    return _rounded(_on_floats(operator.mul, size, scale), math.floor)


_MAX_DENOMINATOR = 2**10
"""Maximum denominator of a float whose product with a size becomes a quotient of integers, which is exact."""


def _divided(a: Any, b: Any) -> Any:
    """Returns the true quotient; a size as denominator stays symbolic."""
    if isinstance(b, Size) and isinstance(a, (int, float, Size)):
        return Ratio(a, b)
    if isinstance(a, Size) and isinstance(b, int) and 0 < b <= _MAX_DENOMINATOR and b & (b - 1) == 0:
        return Ratio(a, b)
    return make(operator.truediv, as_real(a), as_real(b))


def _is_size_beside_one(size: Any, other: Any) -> bool:
    """Whether the call is `max(size, 1)`, by which C++ computes strides: if a size is 0 at a call, no stride
    matters.
    """
    return type(other) is int and other == 1 and isinstance(size, Size) and lowest(size) == 0


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "mod": operator.mod,
    "floordiv": operator.floordiv,
    "int_floordiv": operator.floordiv,
    "truediv": _divided,
    "int_truediv": _divided,
    "float_truediv": _divided,
    "pow": operator.pow,
    "pow_by_natural": operator.pow,
    "float_pow": operator.pow,
    "sym_max": lambda a, b: a if _is_size_beside_one(a, b) else b if _is_size_beside_one(b, a) else max(a, b),
    "sym_min": min,
    "lshift": lambda a, b: a * 2 ** int(b),
    "rshift": lambda a, b: a // 2 ** int(b),
    "and_": lambda a, b: both(a, b) if isinstance(a, (bool, SymbolicPredicate)) else int(a) & int(b),
    "or_": lambda a, b: either(a, b) if isinstance(a, (bool, SymbolicPredicate)) else int(a) | int(b),
    "sym_and": both,
    "sym_or": either,
}
_COMPARISONS: dict[str, Callable[[Any, Any], bool | SymbolicPredicate]] = {
    "eq": lambda a, b: compare("==", a, b),
    "ne": lambda a, b: compare("==", a, b, True),
    "lt": lambda a, b: compare("<", a, b),
    "gt": lambda a, b: compare("<", b, a),
    "ge": lambda a, b: compare("<", a, b, True),
    "le": lambda a, b: compare("<", b, a, True),
}


def _comparison(name: str, compare: Callable[[Any, Any], bool | SymbolicPredicate]) -> None:
    def method(self: SizeNode, other: SizeNode) -> SizeNode:
        if isinstance(self.value, (Real, Ratio)) or isinstance(other.value, (Real, Ratio)):
            return SizeNode(getattr(operator, name)(as_real(self.value), as_real(other.value)), bool)
        a, b = (_comparable(n.value) for n in (self, other))
        return SizeNode(compare(a, b), bool)

    setattr(SizeNode, name, method)


def _comparable(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, (Size, int)) else float(value)


for _name, _compute in _OPERATIONS.items():
    _binary(_name, _compute)
for _name, _compare in _COMPARISONS.items():
    _comparison(_name, _compare)


def to_torch(value: Any) -> Any:
    """Convert a Size to a SymInt and a Real to a SymFloat, also inside lists and tuples; anything else is unchanged."""
    kind = type(value)
    if kind is Real:
        return torch.SymFloat(SizeNode(value, float))
    if kind is Size:
        return torch.SymInt(SizeNode(value, int))
    if kind is list or kind is tuple or kind is torch.Size:
        return (list if kind is list else tuple)(map(to_torch, value))
    return value


def floor_divided(left: Any, right: Any) -> Any:
    """Returns `left // right` of floats as Python divides; torch's own division goes through an integer, which has no
    -0.0.
    """
    a, b = (from_torch(value) if isinstance(value, SYMBOLIC) else value for value in (left, right))
    return to_torch(_on_floats(operator.floordiv, float(a) if isinstance(a, int) else a, b))


def symbolic_value(value: Any) -> Any:
    """Returns the value in the node of a SymInt, SymFloat or SymBool; one with another library's node is returned
    unchanged.
    """
    return value.node.value if isinstance(value.node, SizeNode) else value


def from_torch(value: Any) -> Any:
    """Convert a SymInt to a Size (or to the number that it is known to be), also inside lists and tuples."""
    if isinstance(value, SYMBOLIC):
        node = value.node
        if not isinstance(node, SizeNode) or node.kind is bool:
            return node.bool_() if isinstance(node, SizeNode) else value
        known = node.value.owner.simplify(node.value) if isinstance(node.value, Size) else node.value
        if node.kind is float and isinstance(known, (int, Size)):
            return Ratio(known, 1) if isinstance(known, Size) else float(known)
        return known
    kind = type(value)
    if kind is list or kind is tuple or kind is torch.Size:
        return (list if kind is list else tuple)(map(from_torch, value))
    return value


def decided_flags(value: Any) -> Any:
    """Decide SymBools, also in tuples, because C code accepts no symbolic flags."""
    if type(value) is torch.SymBool:
        return bool(value)
    return tuple(map(decided_flags, value)) if type(value) is tuple else value


def has_symint(value: Any) -> bool:
    """Whether a symbolic number is among (nested) arguments."""
    if type(value) in _SEQUENCES:
        return any(map(has_symint, value))
    return isinstance(value, SYMBOLIC)


def pinned(value: Any) -> Any:
    """Specialize symbolic numbers to the plain numbers of the example, also inside lists, tuples and shapes."""
    kind = type(value)
    if kind in _PLAIN:
        return _PLAIN[kind](value)
    if kind in _SEQUENCES:
        return kind(map(pinned, value))
    return value


_SEQUENCES = classes(list, tuple, torch.Size)

_PLAIN = by_class({torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool})


def is_other_number(kind: type) -> bool:
    """Whether numbers of this class are not supported by torch's symbolic numbers: any but int, float and bool."""
    if kind in _KNOWN:
        return False
    return issubclass(kind, (int, float, complex, numpy.generic)) or issubclass(kind, numbers.Number)


_KNOWN = classes(int, float, bool, *SYMBOLIC)


def with_supported_operands(left: Any, right: Any) -> tuple[Any, Any]:
    """Returns two operands; a symbolic one is replaced by its plain number if it does not support the class of the
    other one.

    With such a number the operators of symbolic numbers give wrong results: not equal.
    """
    first, second = type(left), type(right)
    if first in SYMBOLIC_CLASSES and is_other_number(second) or second in SYMBOLIC_CLASSES and is_other_number(first):
        return pinned(left), pinned(right)
    return left, right


def has_other_number(value: Any) -> bool:
    """Whether a number of a class other than int, float and bool is among (nested) arguments."""
    return any(map(has_other_number, value)) if type(value) in _SEQUENCES else is_other_number(type(value))


def has_size(value: Any) -> bool:
    """Whether a Size is among (nested) arguments."""
    kind = type(value)
    if kind is list or kind is tuple:
        return any(map(has_size, value))
    return kind is Size


def owner_of(gm: fx.GraphModule) -> Assumptions:
    """Returns the assumptions to which the symbols of a torch-level graph belong; new ones if it has no symbols."""
    for node in gm.graph.nodes:
        meta = node.meta.get("val")
        for value in meta if isinstance(meta, tuple) else (meta,):
            for size in (value, *getattr(value, "shape", ())):
                if isinstance(size, (Size, Real)):
                    return size.owner
    return Assumptions()
