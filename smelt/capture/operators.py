"""Unary, binary and comparison operators: numbers at once, tensors as graph nodes, objects by their dunder methods."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from smelt.capture.attributes import python_method
from smelt.capture.breaks import user
from smelt.capture.host_values import HostValue
from smelt.capture.values import LEAVES
from smelt.graph.trace import TraceTensor

_COMPARE = {
    operator.lt: ("__lt__", "__gt__"),
    operator.le: ("__le__", "__ge__"),
    operator.eq: ("__eq__", "__eq__"),
    operator.ne: ("__ne__", "__ne__"),
    operator.gt: ("__gt__", "__lt__"),
    operator.ge: ("__ge__", "__le__"),
}


def _dunders(fn: Callable[..., Any]) -> tuple[str, ...]:
    """The dunder methods that an operator function asks the left operand for, most special first."""
    base = fn.__name__.strip("_")
    if base.startswith("i") and hasattr(operator, base[1:].replace("and", "and_").replace("or", "or_")):
        if base not in ("invert", "index"):
            return (f"__{base}__", f"__{base[1:]}__")
    return (f"__{base}__",)


_BINARY: dict[Any, tuple[tuple[str, ...], str]] = {}


def _names(fn: Callable[..., Any]) -> tuple[tuple[str, ...], str]:
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
"""`n += tensor` with a number `n` makes a new tensor."""


def binary(vm: Any, fn: Callable[..., Any], left: Any, right: Any) -> Any:
    """`left <op> right`"""
    first, second = type(left), type(right)
    if first in LEAVES and second in LEAVES:
        return user(fn, left, right)
    if first is TraceTensor or second is TraceTensor:
        fn = fn if first is TraceTensor else _OUT_OF_PLACE.get(fn, fn)
        return vm.tensors.run(fn, (vm.effects.plain(left), vm.effects.plain(right)), {})
    if first is HostValue or second is HostValue:
        return vm.hosts.run(fn, (left, right), {})
    forward, reflected = _names(fn)
    for name in forward:
        method = python_method(vm, left, name)
        if method is not None:
            out = vm.call(method, (left, right), {})
            if out is not NotImplemented:
                return out
    method = python_method(vm, right, reflected)
    if method is not None:
        out = vm.call(method, (right, left), {})
        if out is not NotImplemented:
            return out
    vm.effects.refuse_iterators((left, right))  # `items += iterator`
    plain = vm.effects.plain
    return vm.effects.original(vm.native(fn, plain(left), plain(right)))


def unary(vm: Any, fn: Callable[..., Any], value: Any) -> Any:
    """`<op> value`"""
    if type(value) is TraceTensor:
        return vm.tensors.run(fn, (value,), {})
    if type(value) is HostValue:
        return vm.hosts.run(fn, (value,), {})
    method = python_method(vm, value, f"__{fn.__name__.strip('_')}__")
    return vm.call(method, (value,), {}) if method is not None else user(fn, value)


def compare(vm: Any, fn: Callable[..., Any], left: Any, right: Any) -> Any:
    """`left <comparison> right`"""
    first, second = type(left), type(right)
    if first in LEAVES and second in LEAVES:
        return user(fn, left, right)
    if first is TraceTensor or second is TraceTensor:
        if left is None or right is None:
            return fn is operator.ne
        return vm.tensors.run(fn, (vm.effects.plain(left), vm.effects.plain(right)), {})
    if first is HostValue or second is HostValue:
        return vm.hosts.run(fn, (left, right), {})
    for obj, other, name in ((left, right, _COMPARE[fn][0]), (right, left, _COMPARE[fn][1])):
        method = python_method(vm, obj, name)
        if method is not None:
            out = vm.call(method, (obj, other), {})
            if out is not NotImplemented:
                return out
        elif fn is operator.ne and (method := python_method(vm, obj, "__eq__")) is not None:
            out = vm.call(method, (obj, other), {})
            if out is not NotImplemented:
                return out is False if isinstance(out, bool) else vm.native(operator.not_, out)
    return vm.native(fn, vm.effects.plain(left), vm.effects.plain(right))
