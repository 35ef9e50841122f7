"""Guards on objects that C code hashes and compares: keys of dictionaries, items of sets and lists, operands of `==`.

Reading a container guards its class, and reading an object guards the object's class. Guards on a container's content
or an object's identity are added only if an operation depends on them, as the lookup of a key in C code does.
"""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Callable, Iterable
from typing import Any, TypeGuard

from smelt.base.class_tables import isinstance
from smelt.capture import _native as native
from smelt.capture.core.interface import Args, Interpreter
from smelt.capture.core.prologue_value import PrologueValue
from smelt.capture.core.sources import PROLOGUE, Source, const
from smelt.capture.core.values import C_METHODS, LEAVES, is_nan
from smelt.capture.python.effects import CONTAINERS, values_of
from smelt.graph.ir.symint import SYMBOLIC_CLASSES, pinned
from smelt.graph.trace.trace import TraceTensor

_HASHED = (dict, set, frozenset)
_SEARCHED = (list, tuple, collections.deque)
_LOOKING = frozenset(map("__{}__".format, "eq ne lt le gt ge contains".split()))
_SEARCHING = _LOOKING | {"index", "count", "remove", "sort"}
_BY_KEY = frozenset("get pop setdefault __getitem__ __setitem__ __delitem__ move_to_end".split())
_MAKING: tuple[type, ...] = (
    set,
    frozenset,
    dict,
    collections.OrderedDict,
    collections.Counter,
    collections.defaultdict,
)
_OPERATORS = frozenset(
    {operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.contains, operator.indexOf}
    | {operator.countOf, operator.and_, operator.or_, operator.xor, operator.sub, operator.iand, operator.ior}
    | {operator.ixor, operator.isub, operator.is_, operator.is_not, sorted, min, max, hash}
)
_ITEMS = (operator.getitem, operator.setitem, operator.delitem)


class Compared:
    """The external objects that C code distinguishes in one capture."""

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm
        self._objects: dict[int, tuple[object, Source]] = {}
        self._functions: dict[int, types.FunctionType] = {}
        self._by_address = False
        self._nans: list[tuple[object, Source]] = []
        self._guards_nans = False

    def release(self) -> None:
        """Drop the references to the program's objects."""
        self._objects.clear()
        self._functions.clear()
        self._nans.clear()

    def look(self, fn: Callable[..., object], args: Args) -> None:
        """Guard the arguments that a call of C code will compare."""
        hashed, values = _compared(fn, args)
        for value in values:
            self.note(value, hashed)
        if self._nans and not self._guards_nans:
            self._guards_nans = self._count_nans(values, set()) > (not hashed)
        if fn is hash and args and self._objects:
            self._by_address = True  # the hash of an object is its address

    def made(self, fn: Callable[..., object], out: object) -> None:
        """Guard the keys of a set or dictionary that C code made, because they may come from an iterator."""
        if _makes(fn):
            for key in out if isinstance(out, CONTAINERS) else ():
                self.note(key)
                self.ask_nan(key)

    def foreign(self, keys: Iterable[object]) -> None:
        """Guard by identity all noted objects if the keys of an external dictionary, which is copied, are compared by
        identity."""
        if not self._by_address:
            self._by_address = any(map(_compares_identity, keys))

    def note(self, value: object, hashed: bool = True) -> None:
        """Guard everything that distinguishes the value from others.

        Args:
            hashed: whether the value is hashed; if so, a symbolic number must have its present value.
        """
        if type(value) not in LEAVES:
            self._note(value, hashed, set())

    def _note(self, value: Any, hashed: bool, seen: set[int]) -> None:
        if hashed and type(value) in SYMBOLIC_CLASSES:
            pinned((value,))
        if type(value) in LEAVES or id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, CONTAINERS):
            value = self.vm.effects.plain(value)
            for item in values_of(value):
                self._note(item, hashed, seen)
            return
        self.vm.effects.refuse_unguarded(value)
        if type(value) is types.MethodType:
            self._note(self.vm.load_attr(value, "__self__"), hashed, seen)
        source = self._source(value)
        if source is None:
            if self._is_constant_function(value):
                self._functions[id(value)] = value
        elif source.kind != PROLOGUE and (type(value) is TraceTensor or _is_by_identity(value)):
            self._objects[id(value)] = value, source

    @property
    def sources(self) -> list[Source]:
        """The sources of the objects whose identities may matter."""
        return [source for _, source in (*self._objects.values(), *self._nans)]

    def describe_state(self) -> tuple[object, ...]:
        """What was compared so far; an equal description follows as long as no other object is compared."""
        return len(self._objects), len(self._functions), len(self._nans), self._guards_nans, self._by_address

    def read_nan(self, value: object, source: Source) -> None:
        """Record an external NaN: guards accept any other NaN until the program depends on the object's identity."""
        self._nans.append((value, source))

    def ask_nan(self, *values: object) -> None:
        """If all of these are NaN, guard the identities of all external NaN, because the program depends on them."""
        if self._nans and all(map(is_nan, values)):
            self._guards_nans = True

    def nan_source(self, value: object) -> Source | None:
        """The source of an external NaN object; None for any other value."""
        return next((source for each, source in self._nans if each is value), None)

    def _count_nans(self, values: Iterable[object], seen: set[int]) -> int:
        """The number of NaN among the values that C code compares, also in containers."""
        count = 0
        for value in values:
            if isinstance(value, CONTAINERS) and id(value) not in seen:
                seen.add(id(value))
                count += self._count_nans(values_of(self.vm.effects.plain(value)), seen)
                seen.discard(id(value))
            else:
                count += is_nan(value)
        return count

    def are_one(self, left: object, right: object) -> bool:
        """`left is right`, guarded."""
        left, right = map(self.vm.effects.copies.own, (left, right))
        self.ask_nan(left, right)
        if left is not right:
            self.guard_distinct(left, right)
        return left is right

    def guard_distinct(self, one: object, other: object) -> None:
        """Guard that these are two objects, because the program has compared their identities."""
        a, b = self._source(one), self._source(other)
        if a is not None and b is not None:
            self.vm.guards.different(a, b)
        elif a is not None:
            self._guard_distinct_constant(one, a, other)
        elif b is not None:
            self._guard_distinct_constant(other, b, one)

    def _source(self, value: object) -> Source | None:
        """The source of an external object, or of the external object that this value replaces; None without one."""
        source = self.vm.effects.original_source(value)
        return value.source if source is None and type(value) is PrologueValue else source

    def _guard_distinct_constant(self, one: object, source: Source, other: object) -> None:
        """Guard that an external function or class, whose identity has no guard, is not this constant one."""
        if self._is_constant_function(other):
            self._guard_distinct_functions(one, source, [other])
        elif isinstance(other, type) and isinstance(one, type) and id(other) not in self.vm.python.made_classes:
            self.vm.guards.different(source, const(other, other.__qualname__))

    def _is_constant_function(self, value: object) -> TypeGuard[types.FunctionType]:
        return type(value) is types.FunctionType and id(value) not in self.vm.python.created

    def _guard_distinct_functions(self, one: object, source: Source, others: Iterable[types.FunctionType]) -> None:
        """Guard that an external function, whose guard compares only its code, is none of these constant functions."""
        if type(one) is types.FunctionType:
            for other in others:
                if other.__code__ is one.__code__:
                    self.vm.guards.different(source, const(other, other.__qualname__))

    def guard(self) -> None:
        """Add the guards: on identities if the addresses matter, else that the objects are different from each
        other."""
        for value, source in self._nans if self._guards_nans else ():
            self.vm.guards.check(source, native.IS, value)
        if self._by_address:
            for value, source in self._objects.values():
                real = self.vm.tensors.real.get(id(value)) if type(value) is TraceTensor else value
                if real is not None:
                    self.vm.guards.check(source, native.IS, real)
        else:
            self.vm.guards.all_different(source for _, source in self._objects.values())
            for value, source in self._objects.values():
                self._guard_distinct_functions(value, source, self._functions.values())


def _compared(fn: Any, args: Args) -> tuple[bool, tuple[object, ...]]:
    """(whether the C code hashes its operands, the arguments that it hashes or compares)"""
    owner, name = getattr(fn, "__self__", None), getattr(fn, "__name__", None)
    if type(fn) in C_METHODS:
        kind = fn.__objclass__
    elif isinstance(fn, types.BuiltinFunctionType | types.MethodWrapperType) and isinstance(owner, CONTAINERS):
        kind, args = type(owner), (owner, *args)
    elif any(fn is each for each in _ITEMS):
        return True, args[1:2] if args and isinstance(args[0], dict) else ()
    elif _makes(fn) or name in ("fromkeys", "_count_elements"):
        return True, tuple(a for a in args if isinstance(a, CONTAINERS))
    else:
        return fn is hash, args if isinstance(fn, types.BuiltinFunctionType) and fn in _OPERATORS else ()
    return _compared_by(kind, name, args)


def _compared_by(kind: type, name: str | None, args: Args) -> tuple[bool, tuple[object, ...]]:
    """(whether it hashes, the arguments that it hashes or compares) for a container's method; `args` begin with the
    container."""
    if issubclass(kind, _HASHED):
        return name not in _LOOKING, args[1:2] if name in _BY_KEY else args if name in _LOOKING else args[1:]
    return name in ("remove", "sort"), args if issubclass(kind, _SEARCHED) and name in _SEARCHING else ()


def _makes(fn: object) -> bool:
    return any(fn is each for each in _MAKING)


def _is_by_identity(value: object) -> bool:
    return type(value).__eq__ is object.__eq__ and not isinstance(value, type)


def _compares_identity(key: object) -> bool:
    if type(key) in LEAVES:
        return False
    return any(map(_compares_identity, key)) if isinstance(key, tuple | frozenset) else _is_by_identity(key)
