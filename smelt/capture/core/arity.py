"""Arity check of calls with a special meaning: a call that does not fit the signature raises Python's own error.

A function with a special meaning under capture (`registry.special`) is replaced by a function of capture, which unpacks
the arguments. If they do not fit, the program must get the error that the original function raises.
"""

from __future__ import annotations

import collections
import contextvars
import inspect
import types
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

from smelt.base.class_tables import ClassTable, by_class, classes, isinstance
from smelt.capture.core.breaks import Break, user
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.graph.trace.trace import TraceTensor

How: TypeAlias = Callable[[Interpreter, Args, Kwargs], object]

_UNLIMITED = 1 << 30
_UNSIGNED: dict[int, tuple[Collection[int], bool]] = {
    id(type): ((1, 3), False),
    id(bool): (range(2), False),
    id(iter): (range(1, 3), False),
    id(next): (range(1, 3), False),
    id(super): (range(3), False),
    id(vars): (range(2), False),
    id(dict.__getitem__): (range(2, 3), False),
    id(list.__getitem__): (range(2, 3), False),
    **dict.fromkeys(map(id, (dict.update, vars(dict)["__init__"])), (range(1, 3), True)),
    **dict.fromkeys(map(id, (vars(collections.OrderedDict)["__init__"],)), (range(1, 3), True)),
    id(vars(collections.OrderedDict)["update"]): (range(1, 3), True),
    id(collections.defaultdict.__missing__): (range(2, 3), False),
    id(contextvars.ContextVar.get): (range(1, 3), False),
    id(vars(str)["format"]): (range(1, _UNLIMITED), True),
}
"""id of a function without a signature -> (accepted counts of positional arguments, whether it accepts keywords)."""

_OF_CLASSES = classes(types.MethodDescriptorType, types.WrapperDescriptorType)


class Meaning:
    """The special meaning of a function under capture, which applies to calls whose arguments fit its signature.

    Args:
        function: the function that the program calls.
        how: the function of capture that replaces it: (vm, args, kwargs) -> result.
    """

    __slots__ = ("_counts", "_known", "_signature", "_words", "function", "how")

    def __init__(self, function: Any, how: How) -> None:
        self.function, self.how = function, how
        self._known = False

    def __call__(self, vm: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        if not self._known:
            self._look()
        if not self._fits(args, kwargs) or type(self.function) in _OF_CLASSES and self._of_another(vm, args):
            self._refuse(vm, args, kwargs)
        return self.how(vm, args, kwargs)

    def _look(self) -> None:
        """Read the function's signature. This happens at its first call, because most functions are never called."""
        self._counts, self._words = _UNSIGNED.get(id(self.function), (range(_UNLIMITED), True))
        self._signature: inspect.Signature | None = None
        if id(self.function) not in _UNSIGNED and _has_reliable_signature(self.function):
            try:
                self._signature = inspect.signature(self.function, follow_wrapped=False)
            except (TypeError, ValueError):
                pass
            else:
                self._counts, self._words = _positional(self._signature), False
        self._known = True

    def _fits(self, args: Args, kwargs: Kwargs) -> bool:
        if len(args) in self._counts and (self._words or not kwargs):
            return True
        if self._signature is None:
            return False
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError:
            return False
        return True

    def _of_another(self, vm: Interpreter, args: Args) -> bool:
        """Whether a method of a builtin class is called without an object, or with an object of another class."""
        owner = self.function.__objclass__
        return not args or not isinstance(args[0], owner) and not issubclass(vm.type_of(args[0]), owner)

    def _refuse(self, vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
        """Call the function with a wrong number of arguments, so that it raises its own error. It raises before it
        reads the arguments, so placeholders are passed.

        Raises:
            UserError: the function's error.
            Break: the function accepts this number of arguments after all; the graph breaks, and Python makes the call.
        """
        passed: list[object] = [value if type(value) in _INERT else () for value in args]
        if type(self.function) in _OF_CLASSES and args:
            passed[0] = _as_shown(vm, args[0])
        user(self.function, *passed, **dict.fromkeys(kwargs, ()))
        name = getattr(self.function, "__qualname__", repr(self.function))
        raise Break(f"{name} with {len(passed)} arguments", "it is known to take others")


def _as_shown(vm: Interpreter, value: object) -> object:
    """An object that represents the value for C code: its class is the class that the value has in the program."""
    if type(value) is TraceTensor:
        return vm.tensors.stand_in(value)
    return _EXAMPLES.get(vm.type_of(value), value) if vm.type_of(value) is not type(value) else value


_INERT = classes(int, float, bool, str, type(None))
_EXAMPLES: ClassTable[object] = by_class({int: 0, float: 0.0, bool: True})


_KINDS_WITH_SIGNATURES = classes(type, types.BuiltinFunctionType, *_OF_CLASSES)


def _has_reliable_signature(function: Any) -> bool:
    """Whether `inspect.signature` is reliable for the function: it is a Python function, or a builtin function, method
    or class outside of torch and smelt.
    """
    if isinstance(function, types.FunctionType):
        return True
    kind, module = type(function), getattr(function, "__module__", None) or "builtins"
    return kind in _KINDS_WITH_SIGNATURES and module.split(".")[0] not in ("torch", "smelt")


def _positional(signature: inspect.Signature) -> range:
    """The accepted numbers of arguments when all are positional; empty if a keyword-only argument is required."""
    kinds = [(p.kind, p.default is p.empty) for p in signature.parameters.values()]
    if (inspect.Parameter.KEYWORD_ONLY, True) in kinds:
        return range(0)
    plain = [needed for kind, needed in kinds if kind in _PLAIN]
    many = any(kind is inspect.Parameter.VAR_POSITIONAL for kind, _ in kinds)
    return range(sum(plain), _UNLIMITED if many else len(plain) + 1)


_PLAIN = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
