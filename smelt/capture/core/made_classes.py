"""Classes that the program makes anew at each call: guards compare how they were made, not their identity.

A class statement in a function makes another class each time, with the same bases and with functions of the same code.
Such a class is external: a guard compares the class statement (`Statement`), functions and cells are read from the
class, and residual code reads the class from its source. If an operation depends on more than the statement describes
(C code that receives the class, a read of its whole dictionary), the class is guarded by identity after all (`pin`).
"""

from __future__ import annotations

import enum
import functools
import sys
import types
import typing
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from smelt.base.class_tables import ClassTable, by_class, classes, isinstance
from smelt.base.python_text import module_name
from smelt.capture import _native as native
from smelt.capture.core import sources
from smelt.capture.core.interface import Args, Interpreter, T
from smelt.capture.core.registry import READ
from smelt.capture.core.sources import Source
from smelt.capture.core.values import FIELD, HEAP, LEAVES, is_constant, is_written

_MEMBERS = classes(types.MemberDescriptorType, types.GetSetDescriptorType)
_CONTENT_IS_READ = classes(tuple, list, dict, set, frozenset, torch.Tensor)
"""Types of class attributes whose content is guarded only when it is read."""

_OF_LIBRARIES = frozenset({"_abc_impl", "__dataclass_params__"})
"""Attributes in which libraries store their own data in a class."""

_OF_AUTOGRAD = frozenset({"_backward_cls", "_forward_cls", "_autograd_function_id"})
"""Attributes that torch sets on an autograd function and on the class of its nodes, different for each class. If the
program reads one, the class is guarded by identity (`pin_read`)."""

_ABSTRACT = 1 << 20

_repeated: set[tuple[str, str]] = set()
"""(module, qualified name) of the classes of which more than one was seen, or which the captured function makes."""


class NotPlain(Exception):
    """A class has an attribute that its statement does not fully describe."""


def may_be_redefined(vm: Interpreter, cls: type, source: Source) -> bool:
    """Whether the next call may have another class of the same statement: the captured function makes it, or the
    compile site has seen another one. All other classes are compared by identity, which is cheaper."""
    is_local = source.local or source.kind == native.CELL  # functions that are made anew have their own cells
    if not is_local or not cls.__flags__ & HEAP or _is_found(cls):
        return False
    name = module_name(cls.__module__), cls.__qualname__
    known = vm.sizes.changes.classes.setdefault(name, weakref.ref(cls))
    if known() is not cls or cls.__qualname__.startswith(f"{vm.python.running}.<locals>."):
        _repeated.add(name)
    return name in _repeated


def note_statement(module: Any, function: str, name: Any) -> None:
    """Record that the captured function makes a class of this name at each call."""
    _repeated.add((module, f"{function}.<locals>.{name}"))


def _is_found(cls: type) -> bool:
    """Whether the class can be looked up by its qualified name in its module, and is therefore the only one."""
    found: object = sys.modules.get(module_name(cls.__module__))
    for name in cls.__qualname__.split("."):
        found = getattr(found, "__dict__", {}).get(name)
    return found is cls


class Statement:
    """A description of a class statement; called as a guard, it checks whether another class has an equal description.
    It does not keep the class alive."""

    def __init__(self, cls: type) -> None:
        self.__name__ = f"class {cls.__qualname__}"
        self.description = _describe(cls, {id(cls)})

    def __call__(self, cls: object) -> bool:
        if not isinstance(cls, type):
            return False
        try:
            return bool(_describe(cls, {id(cls)}) == self.description)
        except NotPlain:
            return False


class _Is:
    """An object that is compared by identity."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is _Is and other.value is self.value

    __hash__ = None  # type: ignore[assignment]


def _describe(cls: type, inside: set[int]) -> tuple[object, ...]:
    names = cls.__name__, cls.__qualname__, module_name(cls.__module__), cls.__flags__ & _ABSTRACT
    kinds = tuple(_class(each, inside) for each in (type(cls), *cls.__bases__))
    attributes = tuple((key, _describe_attribute(key, value, inside)) for key, value in vars(cls).items())
    members = _members(cls) if issubclass(cls, enum.Enum) else ()
    return names, kinds, attributes, tuple((name, _plain(member._value_)) for name, member in members)


def _members(cls: type[enum.Enum]) -> Iterator[tuple[str, enum.Enum]]:
    return iter(cls.__dict__.get("_member_map_", {}).items())


def _class(cls: type, inside: set[int]) -> _Is | tuple[object, ...]:
    name = module_name(cls.__module__), cls.__qualname__
    if name not in _repeated or _is_found(cls):
        return _Is(cls)
    return ("itself",) if id(cls) in inside else _describe(cls, inside | {id(cls)})


def _describe_attribute(key: str, value: object, inside: set[int]) -> object:
    """The description of an attribute of a class.

    Raises:
        NotPlain: the class statement does not fully describe the attribute.
    """
    kind = type(value)
    if key in _OF_LIBRARIES or key in _OF_AUTOGRAD:
        return "unread", _class(kind, inside)
    if type(value) is types.FunctionType:
        kept = (value.__defaults__ or (), tuple((value.__kwdefaults__ or {}).items()))
        return kind, value.__code__, len(value.__closure__ or ()), *map(len, kept), _scope(value.__globals__)
    if type(value) is staticmethod or type(value) is classmethod:
        return kind, _describe_attribute(key, value.__func__, inside)
    if type(value) is property:
        return kind, *(_describe_attribute(key, each, inside) for each in (value.fget, value.fset, value.fdel))
    if type(value) is functools._lru_cache_wrapper:
        return kind, _describe_attribute(key, value.__wrapped__, inside), tuple(value.cache_parameters().items())
    return _class(value, inside) if isinstance(value, type) else _describe_object(key, value, inside)


def _describe_object(key: str, value: Any, inside: set[int]) -> object:
    """The description of an attribute that is neither a function nor a class.

    Raises:
        NotPlain: the class statement does not fully describe the attribute.
    """
    kind = type(value)
    if kind in _MEMBERS:
        return kind, value.__name__
    if kind is FIELD:
        return kind, value.__reduce__()[1][0]
    if isinstance(value, enum.Enum) and (module_name(kind.__module__), kind.__qualname__) in _repeated:
        return "member", value._name_
    if kind in LEAVES or kind is tuple and all(type(each) in LEAVES for each in value):
        return _plain(value)
    if kind in _CONTENT_IS_READ or module_name(kind.__module__) == "enum" or is_written(kind):
        return "unread", _class(kind, inside)
    if is_constant(value):
        return _Is(value)
    raise NotPlain(key)


def _scope(names: dict[str, Any]) -> object:
    """The description of a function's globals: their identity for those of a module, their content for the few globals
    of a function made from source text."""
    if vars(sys.modules.get(names.get("__name__", ""), object)) is names or len(names) > _MAX_SCOPE_NAMES:
        return _Is(names)
    entries = sorted((key, value) for key, value in names.items() if key != "__builtins__")
    return tuple((key, _plain(value) if type(value) in LEAVES else _Is(value)) for key, value in entries)


_MAX_SCOPE_NAMES = 4


def _plain(value: object) -> tuple[type, object]:
    if type(value) is tuple:
        return tuple, tuple(map(_plain, value))
    if type(value) in LEAVES:
        return type(value), repr(value) if type(value) is float or type(value) is complex else value
    raise NotPlain


@READ(type)
def read_class(vm: Interpreter, cls: type, source: Source) -> object:
    """Read an external class; the guard compares its statement if each call may make the class anew, else its
    identity."""
    if not may_be_redefined(vm, cls, source):
        vm.guards.check(source, native.IS, cls)
        return cls
    try:
        statement = Statement(cls)
    except NotPlain:
        vm.guards.check(source, native.IS, cls)
        return cls
    vm.guards.python(statement, [source])
    _guard_distinct(vm, statement.description, source)
    vm.python.made_classes[id(cls)] = cls, statement
    vm.register(cls, source)
    vm.external(type(cls), kind_of(source))
    for at, base in enumerate(cls.__bases__):
        vm.external(base, sources.sequence_item(sources.attr(source, "__bases__"), at, tuple))
    for key, value in vars(cls).items():
        if key not in _OF_AUTOGRAD:
            _register(vm, value, sources.attribute_of(source, key))
    for name, member in _members(cls) if issubclass(cls, enum.Enum) else ():
        table = sources.attribute_of(source, "_member_map_")
        vm.sources.setdefault(id(member), sources.dict_item(table, name))
        vm.keep(member)
    return cls


def _guard_distinct(vm: Interpreter, description: object, source: Source) -> None:
    """Guard that a class or alias and those read before with an equal description are different objects."""
    for other, known in vm.python.made_classes.values():
        if known.description == description:
            vm.guards.different(vm.sources[id(other)], source)


class _Alias:
    """The description of a generic alias or a type variable: only its type, because its components have their own
    guards."""

    def __init__(self, kind: type) -> None:
        self.description = kind


@READ(types.GenericAlias, types.UnionType, type(typing.List[int]), typing.TypeVar)  # noqa: UP006
def read_alias(vm: Interpreter, value: object, source: Source) -> object:
    """Read `Box[int]`, `int | str` or a type variable; guards compare its components if each call may make it anew,
    else its identity."""
    names = _COMPONENTS.get(type(value))
    # the bound in `class Box[T: bound()]` is evaluated when it is read
    lazy = getattr(value, "__infer_variance__", False)
    if names is None or not source.local or lazy:
        vm.guards.check(source, native.IS, value)
        return value
    _guard_distinct(vm, type(value), source)
    vm.python.made_classes[id(value)] = value, _Alias(type(value))
    vm.guards.check(source, native.TYPE_IS, type(value))
    vm.register(value, source)
    for name in names:
        field, field_source = getattr(value, name), sources.attr(source, name)
        if type(field) is not tuple:
            _field(vm, field, field_source)
            continue
        vm.guards.check(field_source, native.TYPE_IS, tuple)
        vm.guards.check(field_source, native.LEN, len(field))
        for at, each in enumerate(field):
            _field(vm, each, sources.sequence_item(field_source, at, tuple))
    return value


def _field(vm: Interpreter, value: object, source: Source) -> None:
    if type(value) in LEAVES:  # C code reads it, so a number there cannot be a symbol
        vm.guards.check(source, native.EQ, value)
    else:
        vm.external(value, source)


_OF_A_VARIABLE = (
    *("__infer_variance__", "__name__", "__module__", "__bound__", "__constraints__"),
    *("__covariant__", "__contravariant__", "__default__"),
)
_COMPONENTS: ClassTable[tuple[str, ...]] = by_class(
    {
        types.GenericAlias: ("__origin__", "__args__", "__unpacked__"),
        types.UnionType: ("__args__",),
        type(typing.List[int]): ("__origin__", "__args__", "_inst", "_name"),  # noqa: UP006
        typing.TypeVar: tuple(name for name in _OF_A_VARIABLE if hasattr(typing.TypeVar("example"), name)),
    }
)
"""Class of an alias or type variable -> the attributes by which two of them are compared."""


def _register(vm: Interpreter, value: object, source: Source) -> None:
    """Register functions and classes in a class's attributes as external, with the attribute as their source."""
    if type(value) is types.FunctionType:
        if id(value) not in vm.sources:
            vm.register(value, source)
    elif type(value) is staticmethod or type(value) is classmethod:
        _register(vm, value.__func__, sources.attr(source, "__func__"))
    elif type(value) is functools._lru_cache_wrapper:
        _register(vm, value.__wrapped__, sources.attr(source, "__wrapped__"))
    elif type(value) is property:
        for name in ("fget", "fset", "fdel"):
            _register(vm, getattr(value, name), sources.attr(source, name))
    elif isinstance(value, type):
        vm.external(value, source)


def kind_of(source: Source) -> Source:
    """The source of `type(value)`."""
    return Source(source, native.TYPE, None, f"type({source.text})")


def check_type(vm: Interpreter, value: object, source: Source) -> None:
    """Guard the class of a value."""
    cls = type(value)
    if (
        cls.__flags__ & HEAP
        and source.local
        and (id(cls) in vm.python.made_classes or may_be_redefined(vm, cls, source))
    ):
        vm.external(cls, kind_of(source))
    else:
        vm.guards.check(source, native.TYPE_IS, cls)


def pin(vm: Interpreter, cls: T) -> T:
    """Guard a class by identity, because an operation depends on more of it than its statement describes."""
    if id(cls) in vm.python.made_classes:
        vm.guards.check(vm.sources[id(cls)], native.IS, cls)
    return cls


def pin_read(vm: Interpreter, cls: object, name: str) -> None:
    """Pin a class if the program reads an attribute in which autograd stores state, which the class statement does not
    describe."""
    if name in _OF_AUTOGRAD:
        pin(vm, cls)


def pin_given(vm: Interpreter, fn: object, args: Args, out: object) -> None:
    """Pin the classes among the arguments of code that runs uncaptured, unless it needs no more than their
    statements."""
    if fn is super:  # attributes of the `super` object are read from the class
        return
    if isinstance(fn, type):
        if type(fn).__call__ is not type.__call__:
            pin(vm, fn)
    elif isinstance(fn, types.BuiltinFunctionType) and fn.__name__ == "__new__":
        args = args[1:]
    elif isinstance(out, enum.Enum) and id(out) in vm.sources:  # `out` is an enum member that is read from its class
        return
    for each in args:
        if isinstance(each, (type, *_COMPONENTS)):
            pin(vm, each)
