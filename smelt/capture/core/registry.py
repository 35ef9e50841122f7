"""Dispatch tables: functions that read, call or rebuild values, by type or identity. Modules register them on import.

With these tables ("register by type") the modules need not import each other.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from types import CodeType, FunctionType
from typing import Any, Protocol, TypeVar

from smelt.base.class_tables import ByIdentity
from smelt.capture.core.arity import Meaning
from smelt.capture.core.interface import Args, Interpreter, Kwargs

F = TypeVar("F", bound=Callable[..., object])


_kept: list[object] = []
"""Objects whose identity is a key of a table, kept alive so that no other object gets the same identity."""


class TypeTable:
    """Functions by type; a subclass uses the function of its nearest registered base (cached per class)."""

    def __init__(self, default: Callable[..., object] | None = None) -> None:
        self.default = default
        self._found: ByIdentity[type, Callable[..., object]] = ByIdentity()
        self._given: dict[int, Callable[..., object]] = {}  # by identity of types that are kept alive

    def __call__(self, *types: type) -> Callable[[F], F]:
        """Decorator: register for these types and their subclasses."""

        def register(fn: F) -> F:
            for kind in types:
                self._given[id(kind)] = fn
            _kept.extend(types)
            return fn

        return register

    def find(self, kind: type) -> Any:
        """The function for a type, or the table's default."""
        found = self._given.get(id(kind)) or self._found.get(kind)
        if found is None:
            given = map(self._given.get, map(id, kind.__mro__))
            found = next((function for function in given if function is not None), self.default)
            if found is not None:
                self._found.put(kind, found)
        return found


READ = TypeTable()
"""(vm, value, source) -> handle, by the type of an external value: adds the guards for reading it."""

CALL = TypeTable()
"""(vm, callable, args, kwargs) -> result, by the callable's type."""

ATTR = TypeTable()
"""(vm, object, name) -> value, by the object's type."""

REBUILD = TypeTable()
"""(rebuild, value) -> expression in residual code, for objects made during the frame, by their type."""

BY_POLICY: dict[Enum, Callable[[Interpreter, Args, Kwargs], object]] = {}
"""(vm, args, kwargs) -> result, by the policy of the function that is called."""


class Rebuilder(Protocol):
    """Writes the expression that reconstructs a value; the functions of `REBUILD` get it for nested values."""

    vm: Interpreter
    lines: list[str]
    acts: bool

    def __call__(self, value: object) -> str:
        """The expression of a nested value."""

    def constant(self, value: object, hint: str) -> str:
        """The name of an object that is passed to residual code as a constant."""

    def assign(self, value: object, expression: str) -> str:
        """The name of a new variable of residual code, set to the expression's value."""


SPECIAL: dict[int, Meaning] = {}
"""id of a function -> its special meaning under capture, (vm, args, kwargs) -> result."""


def special(*functions: object) -> Callable[[F], F]:
    """Decorator: register the special meaning under capture of these functions, for calls that fit their signatures."""

    def register(fn: F) -> F:
        for function in functions:
            SPECIAL[id(function)] = Meaning(function, fn)
            _kept.append(function)
        return fn

    return register


TRANSFORMED: dict[int, Callable[[Interpreter, FunctionType, Args, Kwargs], object]] = {}
"""id of the code that all functions of one factory share -> (vm, function, args, kwargs) -> result."""


def made_by(code: CodeType | None) -> Callable[[F], F]:
    """Decorator: register the special meaning under capture of functions with this code; None registers nothing (this
    version of torch has no such function)."""

    def register(fn: F) -> F:
        if code is not None:
            TRANSFORMED[id(code)] = fn
            _kept.append(code)
        return fn

    return register


TENSOR_METHODS: dict[str, Callable[..., object]] = {}
"""name of a method -> (vm, tensor, ...) -> result, for methods of tensors that are no operators."""


CONSTANTS: dict[int, object] = {}
"""id of a function -> the result of every call of it during capture."""


def constant(value: object, *functions: object) -> None:
    """Register `value` as the result of every call of these functions during capture."""
    for function in functions:
        CONSTANTS[id(function)] = value
        _kept.append(function)
