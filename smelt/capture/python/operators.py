"""Unary, binary and comparison operators on numbers, on tensors (as graph nodes) and on objects (dunder methods)."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from smelt.base.class_tables import classes, isinstance
from smelt.capture.core.breaks import user
from smelt.capture.core.interface import NO_OVERRIDE, Interpreter
from smelt.capture.core.prologue_value import PrologueValue
from smelt.capture.core.values import LEAVES
from smelt.capture.python.attribute_reads import python_method
from smelt.graph.ir.symint import floor_divided, with_supported_operands
from smelt.graph.trace.trace import TraceTensor

_COMPARE = {
    operator.lt: ("__lt__", "__gt__"),
    operator.le: ("__le__", "__ge__"),
    operator.eq: ("__eq__", "__eq__"),
    operator.ne: ("__ne__", "__ne__"),
    operator.gt: ("__gt__", "__lt__"),
    operator.ge: ("__ge__", "__le__"),
}


def _dunders(fn: Callable[..., object]) -> tuple[str, ...]:
    """The left operand's dunder methods for an operator function, in the order in which Python tries them."""
    base = fn.__name__.strip("_")
    if base.startswith("i") and hasattr(operator, base[1:].replace("and", "and_").replace("or", "or_")):
        if base not in ("invert", "index"):
            return (f"__{base}__", f"__{base[1:]}__")
    return (f"__{base}__",)


_BINARY: dict[object, tuple[tuple[str, ...], str]] = {}


def _names(fn: Callable[..., object]) -> tuple[tuple[str, ...], str]:
    known = _BINARY.get(fn)
    if known is None:
        forward = _dunders(fn)
        known = _BINARY[fn] = (forward, "__r" + forward[-1][2:])
    return known


_OUT_OF_PLACE = {
    operator.iadd: operator.add,
    operator.iand: operator.and_,
    operator.ifloordiv: operator.floordiv,
    operator.ilshift: operator.lshift,
    operator.imatmul: operator.matmul,
    operator.imul: operator.mul,
    operator.imod: operator.mod,
    operator.ior: operator.or_,
    operator.ipow: operator.pow,
    operator.irshift: operator.rshift,
    operator.isub: operator.sub,
    operator.itruediv: operator.truediv,
    operator.ixor: operator.xor,
}
"""In-place operator -> the operator for `n += tensor` with a number `n`, which makes a new tensor."""

_JOINING = frozenset({operator.add, operator.iadd, operator.mul, operator.imul, operator.or_, operator.ior})
"""Operators that copy the items of containers without reading them."""

_FORMATTING = (operator.mod, operator.imod)
"""Operators that format the right operand if the left one is a `str` or `bytes`."""

_TEXTS = classes(str, bytes)
_FLOORING = (operator.floordiv, operator.ifloordiv)
_NUMBERS = {int, float, bool, torch.SymInt, torch.SymFloat}

BINARY: tuple[Callable[..., object], ...] = (*_OUT_OF_PLACE, *_OUT_OF_PLACE.values())
COMPARISONS: tuple[Callable[..., object], ...] = tuple(_COMPARE)
UNARY: tuple[Callable[..., object], ...] = (operator.neg, operator.pos, operator.invert)


def _floors_floats(kinds: set[type]) -> bool:
    """Whether `//` on operands of these types divides floating-point numbers, at least one of which is symbolic."""
    return kinds <= _NUMBERS and (torch.SymFloat in kinds or kinds == {float, torch.SymInt})


def _of_leaves(fn: Callable[..., object], left: object, right: object) -> object:
    """The result of an operator on plain data."""
    left, right = with_supported_operands(left, right)
    floors = fn in _FLOORING and _floors_floats({type(left), type(right)})
    return user(floor_divided if floors else fn, left, right)


def binary(vm: Interpreter, fn: Callable[..., object], left: object, right: object) -> object:
    """`left <op> right`"""
    first, second = type(left), type(right)
    if first in LEAVES and second in LEAVES:
        return _of_leaves(fn, left, right)
    forward, reflected = _names(fn)
    own = _methods(vm, left, right, forward, reflected)
    formats = first in _TEXTS and fn in _FORMATTING
    if not own and not formats and (first is TraceTensor or second is TraceTensor):
        return _of_tensors(vm, fn if first is TraceTensor else _OUT_OF_PLACE.get(fn, fn), left, right)
    if not own and (first is PrologueValue or second is PrologueValue):
        return vm.prologue.run(fn, (left, right), {})
    for method, obj, other in own:
        out = vm.call(method, (obj, other), {})
        if out is not NotImplemented:
            return out
    vm.effects.refuse_foreign(left, right)
    vm.effects.refuse_iterators((left, right))  # `items += iterator`
    left, right = _without_methods(left, right, own)
    both = map(vm.effects.mirror, (left, right)) if fn in _JOINING else vm.effects.plain_all((left, right))
    return vm.effects.original(vm.native(fn, *with_supported_operands(*both)))


def _of_tensors(vm: Interpreter, fn: Callable[..., object], left: object, right: object) -> object:
    """The result of an operator of which one operand is a tensor, and none has a method of the program for it."""
    if vm.subclasses.present:  # the right operand may be of a subclass
        out = vm.subclasses.intercept(fn, (left, right), {})
        if out is not NO_OVERRIDE:
            return out
    return vm.tensors.run(fn, (vm.effects.plain(left), vm.effects.plain(right)), {})


def _methods(
    vm: Interpreter, left: object, right: object, forward: tuple[str, ...], reflected: str
) -> list[tuple[Any, object, object]]:
    """(method, operand, other operand) of the operands' methods that are written in Python, in the order of Python's
    calls.

    If the left operand is a tensor whose operator accepts the right one, the right one's method is not included.
    """
    if type(left) is TraceTensor:
        forward = (next((name for name in forward if hasattr(vm.type_of(left), name)), forward[-1]),)
    own = [(python_method(vm, left, name), left, right) for name in forward]
    if type(left) is TraceTensor and own[0][0] is None and _torchs(right):
        return []
    if type(right) is not type(left) or type(left) is TraceTensor and vm.type_of(right) is not vm.type_of(left):
        back = python_method(vm, right, reflected)
        ahead = issubclass(vm.type_of(right), vm.type_of(left)) and back is not python_method(vm, left, reflected)
        own.insert(len(own) - ahead, (back, right, left))
    return [each for each in own if each[0] is not None]


def _torchs(operand: object) -> bool:
    """Whether torch's operator accepts the value as the other operand."""
    return isinstance(operand, (int, float, complex)) or hasattr(type(operand), "__torch_function__")


def _without_methods(
    left: object, right: object, refused_methods: list[tuple[Any, object, object]]
) -> tuple[object, object]:
    """Substitutes for the operands after all their methods returned NotImplemented; the substitutes have no methods, so
    that Python's fallback or error results without a second call."""
    mute = {id(type(obj)): type(type(obj).__name__, (), {}) for _, obj, _ in refused_methods}
    first = mute[id(type(left))]() if id(type(left)) in mute else left
    if left is right:
        return first, first
    return first, mute[id(type(right))]() if id(type(right)) in mute else right


def unary(vm: Interpreter, fn: Callable[..., object], value: object) -> object:
    """`<op> value`"""
    if type(value) is TraceTensor:
        replaced = python_method(vm, value, _names(fn)[0][0])
        return vm.tensors.run(fn, (value,), {}) if replaced is None else vm.call(replaced, (value,), {})
    if type(value) is PrologueValue:
        return vm.prologue.run(fn, (value,), {})
    if fn is operator.invert and type(value) is bool:
        vm.effects.defer(fn, (value,), {})  # Python 3.12 warns; residual code repeats this call
        return user(fn, int(value))
    method = python_method(vm, value, f"__{fn.__name__.strip('_')}__")
    return vm.call(method, (value,), {}) if method is not None else user(fn, value)


def _negated(vm: Interpreter, out: object) -> object:
    return out is False if isinstance(out, bool) else vm.native(operator.not_, out)


def compare(vm: Interpreter, fn: Callable[..., object], left: object, right: object) -> object:
    """`left <comparison> right`"""
    first, second = type(left), type(right)
    if first in LEAVES and second in LEAVES:
        return user(fn, *with_supported_operands(left, right))
    own = _comparing(vm, fn, left, right)
    if not own and (first is TraceTensor or second is TraceTensor):
        if left is None or right is None:
            return fn is operator.ne
        return _of_tensors(vm, fn, left, right)
    if not own and (first is PrologueValue or second is PrologueValue):
        return vm.prologue.run(fn, (left, right), {})
    for method, obj, other in own:
        out = vm.call(method, (obj, other), {})
        if out is not NotImplemented:
            return _negated(vm, out) if fn is operator.ne and method.__name__ == "__eq__" else out
    vm.effects.refuse_foreign(left, right)
    left, right = _without_methods(left, right, own)
    return vm.native(fn, *with_supported_operands(*vm.effects.plain_all((left, right))))


def _comparing(
    vm: Interpreter, fn: Callable[..., object], left: object, right: object
) -> list[tuple[Any, object, object]]:
    """(method, operand, other operand) for a comparison, in the order of Python's calls; without a `__ne__`, `!=`
    negates `__eq__`."""
    if type(left) is TraceTensor and _torchs(right):
        replaced = python_method(vm, left, _COMPARE[fn][0])
        return [] if replaced is None else [(replaced, left, right)]
    own = []
    for obj, other, name in ((left, right, _COMPARE[fn][0]), (right, left, _COMPARE[fn][1])):
        method = python_method(vm, obj, name)
        if method is None and fn is operator.ne and type(obj) is not TraceTensor:
            method = python_method(vm, obj, "__eq__")
        if method is not None:
            own.append((method, obj, other))
    ahead = type(right) is not type(left) and issubclass(type(right), type(left))
    return own[::-1] if ahead else own
