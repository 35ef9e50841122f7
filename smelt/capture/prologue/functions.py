"""Functions of the program that draw random numbers and use no tensors: each call is one prologue operation.

The numbers that such a function draws decide its control flow (`if len(chosen) == 0`), so that it cannot become a
graph. Its code, and that of all functions that it calls, is scanned first: it may draw, and change what it made itself,
but access nothing else.
"""

from __future__ import annotations

import builtins
import inspect
import itertools
import math
import operator
import random
import types
from collections.abc import Iterator
from typing import Any

import numpy
import torch

from smelt.base.class_tables import classes, isinstance
from smelt.capture import _native as native
from smelt.capture.core import sources
from smelt.capture.core.by_code import ByCode
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.policy import Policy, is_frozen, policy_of
from smelt.capture.core.prologue_value import PrologueValue
from smelt.capture.core.values import LEAVES, own_dict
from smelt.capture.prologue.calls import ACTING
from smelt.capture.python.effects import CONTAINERS

_DRAWING = frozenset(
    "random rand randn randint uniform choice choices sample shuffle permutation permuted normal standard_normal "
    "random_sample randrange gauss normalvariate integers beta gamma binomial poisson multinomial exponential".split()
)
"""Names of methods that draw random numbers."""

_MODULES = (random, numpy, numpy.random, numpy.linalg, math, operator, itertools)
_UNSAFE = frozenset(
    "open exec eval compile input print globals locals vars setattr delattr __import__ breakpoint id help memoryview "
    "exit quit super".split()
)
"""Builtins that act outside of a function, or depend on the calling frame."""

_BAD_OPS = frozenset(
    "STORE_GLOBAL DELETE_GLOBAL STORE_ATTR DELETE_ATTR STORE_NAME DELETE_NAME LOAD_BUILD_CLASS IMPORT_NAME IMPORT_STAR "
    "SEND GET_AWAITABLE BEFORE_ASYNC_WITH BEFORE_WITH".split()
)
_BAD_NAMES = ACTING | frozenset("tofile dump dumps setflags getstate setstate get_state set_state __dict__".split())
_EMPTY = types.CellType()
_MAX_CALL_DEPTH = 8
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class _NotPureError(Exception):
    """Raised if a function may do more than draw random numbers and compute."""


def call_whole(vm: Interpreter, fn: types.FunctionType, args: Args, kwargs: Kwargs) -> object:
    """Record the call as one operation of the prologue; NotImplemented if the function has to be interpreted."""
    if not _mentions_drawing(fn) or policy_of(fn) is not Policy.INLINE or vm.tensors is not vm.outermost:
        return NotImplemented
    try:
        given = [*args, *kwargs.values()]
        scan = _Scan(vm, [value for value in given if not _is_data(vm, value)])
        scan.function(fn, 0)
        if not scan.draws:
            return NotImplemented
        scan.refuse_pending()
        plain_args, plain_kwargs = _data(vm, args), _data(vm, kwargs)
    except _NotPureError:
        return NotImplemented
    try:
        out = vm.prologue.run_function(fn, plain_args, plain_kwargs)
    except Exception:  # the program may catch it after random numbers were drawn: interpret the function
        return NotImplemented
    scan.guard()
    return out


def _mentions_drawing(fn: types.FunctionType, depth: int = 0) -> bool:
    """Whether the function, or one that it names, draws random numbers; cached by code object."""
    code = fn.__code__
    known = _mentions.get(code)
    if known is not None:
        return known
    _mentions.put(code, False)  # result for recursive calls
    names = {name for each in _codes(code) for name in each.co_names}
    found = not _DRAWING.isdisjoint(names)
    if not found and depth < _MAX_CALL_DEPTH:
        for name in names:
            other = fn.__globals__.get(name)
            if isinstance(other, types.FunctionType) and not is_frozen(other.__module__):
                found = found or _mentions_drawing(other, depth + 1)
            cls = _owner(fn)
            other = getattr(cls, name, None) if cls is not None else None
            if isinstance(other, types.FunctionType) and not is_frozen(other.__module__):
                found = found or _mentions_drawing(other, depth + 1)
    return _mentions.put(code, found)


_mentions: ByCode[bool] = ByCode()


def _owner(fn: types.FunctionType) -> object:
    """The class in which a method is defined, by its qualified name."""
    names = fn.__qualname__.split(".")
    if len(names) != 2:
        return None
    cls = fn.__globals__.get(names[0])
    return cls if isinstance(cls, type) else None


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _codes(const)


class _Scan:
    """Scans the code of a function and of all functions that it calls.

    Args:
        objects: external objects among the arguments.

    Raises:
        _NotPureError: one of the functions may do more than draw random numbers and compute.
    """

    def __init__(self, vm: Interpreter, objects: list[object]) -> None:
        self.vm, self.objects = vm, objects
        self.draws = False
        self.names: set[str] = set()
        self.functions: dict[int, types.FunctionType] = {}
        for value in objects:
            if vm.source_of(value) is None or isinstance(value, (*CONTAINERS, torch.Tensor)):
                raise _NotPureError
            if callable(value) and not isinstance(value, torch.nn.Module):
                raise _NotPureError

    def function(self, fn: object, depth: int) -> None:
        """Scan one function."""
        if isinstance(fn, (staticmethod, classmethod)):
            fn = fn.__func__
        if not isinstance(fn, types.FunctionType) or depth > _MAX_CALL_DEPTH or fn.__code__.co_flags & _SUSPENDED:
            raise _NotPureError
        if id(fn) in self.functions:
            return
        self.functions[id(fn)] = fn
        if fn.__dict__ and "__wrapped__" in fn.__dict__:
            raise _NotPureError
        for cell in fn.__closure__ or ():
            if id(cell) in self.vm.python.created or cell == _EMPTY or type(cell.cell_contents) not in LEAVES:
                raise _NotPureError
        for code in _codes(fn.__code__):
            self._code(fn, code, depth)

    def _code(self, fn: types.FunctionType, code: types.CodeType, depth: int) -> None:
        decoded = self.vm.decode(code)
        if not _BAD_OPS.isdisjoint(decoded.names) or not _BAD_NAMES.isdisjoint(code.co_names):
            raise _NotPureError
        if code is fn.__code__ and "STORE_DEREF" in decoded.names and code.co_freevars:
            raise _NotPureError
        self.names.update(code.co_names)
        self.draws = self.draws or not _DRAWING.isdisjoint(code.co_names)
        for name in code.co_names:
            if name in fn.__globals__:
                self._global(fn.__globals__[name], depth)
            elif hasattr(builtins, name) and name in _UNSAFE:
                raise _NotPureError
            for value in self.objects:
                self._attribute(value, name, depth)

    def _global(self, value: object, depth: int) -> None:
        if isinstance(value, types.ModuleType):
            if value not in _MODULES:
                raise _NotPureError
        elif isinstance(value, types.FunctionType) and policy_of(value) is Policy.INLINE:
            self.function(value, depth + 1)
        elif type(value) not in LEAVES and not isinstance(value, (types.BuiltinFunctionType, numpy.ufunc)):
            bound = isinstance(value, types.MethodType) and isinstance(value.__self__, random.Random)
            if not bound and not (isinstance(value, type) and value.__module__ in ("builtins", "numpy")):
                raise _NotPureError

    def _attribute(self, value: object, name: str, depth: int) -> None:
        """The attribute of an external object that a name in the code may refer to."""
        attributes = own_dict(value)
        if isinstance(value, torch.nn.Module) and any(
            name in (value.__dict__.get(table) or ()) for table in ("_parameters", "_buffers", "_modules")
        ):
            raise _NotPureError
        if attributes is not None and name in attributes:
            if not _is_plain_data(attributes[name]):
                raise _NotPureError
            return
        raw = next((vars(base)[name] for base in type(value).__mro__ if name in vars(base)), None)
        if raw is None or type(raw) in LEAVES:
            return
        self.function(raw.fget if isinstance(raw, property) else raw, depth + 1)

    def refuse_pending(self) -> None:
        """End the graph if there are deferred writes of the program, which the function would not see."""
        effects = self.vm.effects
        if any(store.name in self.names or store.kind == "cell" for store in effects.stores.values()):
            raise _NotPureError
        if self.objects and effects.containers_changed():
            raise _NotPureError

    def guard(self) -> None:
        """Guard that the global names in the scanned code still refer to the scanned functions, and the types of
        objects.
        """
        vm = self.vm
        for fn in list(self.functions.values()):
            for name in fn.__code__.co_names:
                value = fn.__globals__.get(name)
                if isinstance(value, types.FunctionType) and not is_frozen(fn.__globals__.get("__name__")):
                    vm.guards.check(sources.global_item(vm.globals_source(fn.__globals__), name), native.IS, value)
        for value in self.objects:
            vm.guards.check(vm.sources[id(value)], native.TYPE_IS, type(value))


def _is_plain_data(value: object) -> bool:
    if type(value) is list or type(value) is tuple:
        return all(map(_is_plain_data, value))
    return type(value) in LEAVES or type(value) is numpy.ndarray


_SEQUENCES = classes(list, tuple, torch.Size)


def _is_data(vm: Interpreter, value: object) -> bool:
    kind = type(value)
    if type(value) is PrologueValue:
        return not value.changes
    if isinstance(value, (list, tuple)) and kind in _SEQUENCES and vm.source_of(value) is None:
        return all(_is_data(vm, item) for item in value)
    if type(value) is list or type(value) is tuple:
        return all(type(item) in LEAVES for item in value)
    return kind in LEAVES


def _data(vm: Interpreter, value: object) -> Any:
    """A copy of the arguments in their present state."""
    return vm.prologue.arguments(value)
