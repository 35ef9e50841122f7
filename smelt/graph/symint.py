"""Symbolic sizes inside PyTorch: `torch.SymInt` over our own node class.

C++ code that computes with sizes (composite operators, derivative formulas) calls the node's methods, so everything it
computes stays a `Size`. Comparisons are decided at once (see `shapes.assumptions`).
(The node protocol: c10/core/SymNodeImpl.h in PyTorch.)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.graph.meta import contiguous_stride, is_channels_last, is_dense
from smelt.shapes.size import Size, known_equal

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class SizeNode:
    """What a SymInt, or the SymBool or SymFloat of an answered question, holds.

    Attributes:
        value: a Size or number; a bool for SymBool, a float for SymFloat.
    """

    __slots__ = ("value", "kind")

    def __init__(self, value: Any, kind: type) -> None:
        self.value, self.kind = value, kind

    def is_int(self) -> bool:
        return self.kind is int

    def is_float(self) -> bool:
        return self.kind is float

    def is_bool(self) -> bool:
        return self.kind is bool

    def is_nested_int(self) -> bool:
        return False

    def is_symbolic(self) -> bool:
        return isinstance(self.value, Size)

    def is_constant(self) -> bool:
        return not isinstance(self.value, Size)

    def maybe_as_int(self) -> int | None:
        return self.value if self.kind is int and not isinstance(self.value, Size) else None

    def maybe_as_bool(self) -> bool | None:
        return self.value if self.kind is bool else None

    def maybe_as_float(self) -> float | None:
        return self.value if self.kind is float else None

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
        """What the program prints: the number, which pins the size."""
        return repr(self.number())

    _graph_repr = str

    def number(self) -> Any:
        """The plain number. A size is pinned to it."""
        return int(self.value) if isinstance(self.value, Size) else self.value

    def int_(self) -> int:
        return int(self.number())

    def bool_(self) -> bool:
        return bool(self.value)

    def float_(self) -> float:
        return float(self.number())

    def guard_int(self, file: Any, line: Any) -> int:
        return self.int_()

    def guard_float(self, file: Any, line: Any) -> float:
        return self.float_()

    def guard_bool(self, file: Any, line: Any) -> bool:
        return self.bool_()

    guard_size_oblivious = guard_or_false = guard_or_true = expect_true = guard_bool

    def expect_size(self, file: Any, line: Any) -> bool:
        return bool(self.value >= 0)

    def statically_known_true(self, file: Any, line: Any) -> bool:
        return self.bool_()

    def sym_float(self) -> SizeNode:
        return SizeNode(self.float_(), float)

    def sym_int(self) -> SizeNode:
        return self if self.kind is int else SizeNode(int(self.value), int)

    def sym_not(self) -> SizeNode:
        return SizeNode(not self.value, bool)

    def neg(self) -> SizeNode:
        return SizeNode(-self.value, self.kind)

    def abs(self) -> SizeNode:
        return SizeNode(abs(self.value), self.kind)

    def pos(self) -> SizeNode:
        return self

    def sym_sum(self, nodes: Sequence[SizeNode]) -> SizeNode:
        return SizeNode(sum((n.value for n in nodes), 0), int)

    def sym_ite(self, yes: SizeNode, no: SizeNode) -> SizeNode:
        return yes if self.value else no

    # layouts: sizes and strides come as nodes

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


def _values(nodes: Any) -> Any:
    return tuple(from_torch(n.value if isinstance(n, SizeNode) else n) for n in nodes)


def _same(shape: Any, stride: Any, wanted: Any) -> bool:
    return all(known_equal(n, 1) or known_equal(a, b) for n, a, b in zip(shape, stride, wanted, strict=True))


def _binary(name: str, compute: Callable[[Any, Any], Any], kind: type | None = None) -> None:
    def method(self: SizeNode, other: SizeNode) -> SizeNode:
        out = compute(self.value, other.value)
        return SizeNode(out, kind or (int if isinstance(out, Size) else type(out)))

    setattr(SizeNode, name, method)


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "mod": operator.mod,
    "floordiv": operator.floordiv,
    "int_floordiv": operator.floordiv,
    "truediv": operator.truediv,
    "int_truediv": operator.truediv,
    "float_truediv": operator.truediv,
    "pow": operator.pow,
    "pow_by_natural": operator.pow,
    "float_pow": operator.pow,
    "sym_max": max,
    "sym_min": min,
    "lshift": lambda a, b: a * 2 ** int(b),
    "rshift": lambda a, b: a // 2 ** int(b),
    "and_": lambda a, b: a and b if isinstance(a, bool) else int(a) & int(b),
    "or_": lambda a, b: a or b if isinstance(a, bool) else int(a) | int(b),
    "sym_and": lambda a, b: a and b,
    "sym_or": lambda a, b: a or b,
}
for _name, _compute in _OPERATIONS.items():
    _binary(_name, _compute)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _binary(_name, getattr(operator, _name), bool)


def to_torch(value: Any) -> Any:
    """A Size as a SymInt, also inside lists and tuples; anything else as it is."""
    kind = type(value)
    if kind is Size:
        return torch.SymInt(SizeNode(value, int))
    if kind is list or kind is tuple or kind is torch.Size:
        return (list if kind is list else tuple)(map(to_torch, value))
    return value


def from_torch(value: Any) -> Any:
    """A SymInt as a Size (or the number it is known to be), also inside lists and tuples."""
    if isinstance(value, SYMBOLIC):
        node = value.node
        if not isinstance(node, SizeNode):
            return value
        return node.value.owner.simplify(node.value) if isinstance(node.value, Size) else node.value
    kind = type(value)
    if kind is list or kind is tuple or kind is torch.Size:
        return (list if kind is list else tuple)(map(from_torch, value))
    return value


def has_symint(value: Any) -> bool:
    """True when a SymInt is among (nested) arguments."""
    kind = type(value)
    if kind is list or kind is tuple:
        return any(map(has_symint, value))
    return isinstance(value, SYMBOLIC)


def has_size(value: Any) -> bool:
    """True when a Size is among (nested) arguments."""
    kind = type(value)
    if kind is list or kind is tuple:
        return any(map(has_size, value))
    return kind is Size
