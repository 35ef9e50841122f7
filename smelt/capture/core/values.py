"""Kinds of values (plain immutable data, constants, other objects), and the guards for reading external ones."""

from __future__ import annotations

import collections
import enum
import re
import sys
import types
import typing
from typing import Any, TypeAlias

import numpy
import torch

from smelt.base.class_tables import ClassTable, by_class, classes, isinstance
from smelt.base.python_text import module_name
from smelt.base.torch_private import OpOverload, OpOverloadPacket
from smelt.capture import _native as native
from smelt.capture.core import sources
from smelt.capture.core.interface import Interpreter
from smelt.capture.core.prologue_value import PrologueValue
from smelt.capture.core.registry import READ
from smelt.capture.core.sources import Source
from smelt.graph.ir.symint import SYMBOLIC
from smelt.graph.trace.trace import TraceTensor

NoneType = type(None)

SINGLETONS = (NoneType, bool, type(...), type(NotImplemented), torch.dtype, torch.layout, torch.memory_format)
"""Types whose values are compared by identity."""

PLAIN = (int, float, str, bytes, complex, range, torch.device, torch.Size, numpy.generic)
"""Types whose values are compared by equality."""

NUMPY_SCALARS = frozenset(kind for kind in numpy.sctypeDict.values() if kind not in (numpy.object_, numpy.void))
"""Numbers and texts of numpy: immutable, unlike its arrays and records."""

_NUMPY_NAN = (numpy.inexact, numpy.datetime64, numpy.timedelta64)

LEAVES = classes(*SINGLETONS, *PLAIN, *NUMPY_SCALARS, *SYMBOLIC)
"""Exact types of immutable data without tensors."""

COMPUTED = classes(TraceTensor, PrologueValue, *SYMBOLIC)
"""Types of placeholders for values that each call computes."""

_NOTHING: dict[Any, Any] = {}
SIZED_ITERATORS: ClassTable[Any] = by_class(
    {
        **{type(iter(view(_NOTHING))): view for view in (dict.keys, dict.values, dict.items)},
        type(iter(set[Any]())): None,
    }
)
"""Type of an iterator that raises when the size of its dict or set changes -> the method that makes the dict's view;
None for the iterator of a set."""

NUMPY_FUNCTIONS: tuple[type, ...] = (numpy.ufunc, type(numpy.prod))
"""Types of numpy's functions: universal functions (`numpy.lcm`), and functions that other arrays may override."""

C_METHODS = classes(types.MethodDescriptorType, types.WrapperDescriptorType)
"""Types of methods written in C, as stored in their class. Capture binds them with `types.MethodType`, which, unlike
C's own bound methods, refers to the descriptor."""

MethodOfC: TypeAlias = types.MethodDescriptorType | types.WrapperDescriptorType
BoundMethodOfC: TypeAlias = types.BuiltinMethodType | types.MethodWrapperType

FIELD: type = type(vars(collections.namedtuple("_Point", "x"))["x"])
"""The descriptor of a named tuple's field."""

HEAP = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: the class was made at run time, as class statements do."""

IMMUTABLE_TYPE = 1 << 8
"""Py_TPFLAGS_IMMUTABLETYPE: the attributes of the class cannot be assigned."""


_SHOWN = frozenset(
    {("decimal", "Decimal"), ("fractions", "Fraction"), ("zoneinfo", "ZoneInfo")}
    | {("datetime", name) for name in ("date", "time", "datetime", "timedelta", "timezone")}
)
"""Classes of immutable values that C code or uncaptured code may read: their `repr` shows the whole value."""


def alike(value: Any, constant: Any) -> bool:
    """Whether two plain values of one class are indistinguishable. For some types `==` is true for distinguishable
    values (0.0 and -0.0), or false for indistinguishable ones (NaN)."""
    if type(constant) is range:
        return (value.start, value.stop, value.step) == (constant.start, constant.stop, constant.step)
    if isinstance(constant, numpy.generic):
        if value.dtype.char in "gG":  # long doubles have padding bytes; `repr` also shows the sign of zero
            return value.dtype == constant.dtype and repr(value) == repr(constant)
        return value.dtype == constant.dtype and value.tobytes() == constant.tobytes()
    return bool(value == constant)


native.set_equality(alike)


def _showing(kind: type) -> Any:
    """The function whose result a guard compares for values of this class; None if no known function describes the
    whole value.
    """
    for base in kind.__mro__:
        if base in PLAIN_SHOWN:
            return PLAIN_SHOWN[base]
        if (module_name(base.__module__), base.__name__) in _SHOWN or _is_number(base):
            return base.__repr__
    return None


def _is_number(cls: type) -> bool:
    """Whether this is a class of numbers written in C (such as gmpy2's), whose `repr` describes the whole value."""
    found = vars(cls)
    if found.get("__hash__") is None or not all(
        type(found.get(n)) is types.WrapperDescriptorType for n in _OF_A_NUMBER
    ):
        return False
    return any(name in found for name in ("__float__", "__int__", "__index__", "__complex__"))


_OF_A_NUMBER = ("__repr__", "__eq__", "__hash__")


_SHOWN_BY = ((int, "__int__"), (float, "__float__"), (str, "__str__"), (bytes, "__bytes__"), (complex, "__complex__"))
PLAIN_SHOWN = by_class({kind: vars(kind)[name] for kind, name in _SHOWN_BY})
"""Builtin class -> the method that converts an instance of a subclass to the class itself."""


def is_shown(value: object) -> bool:
    """Whether reading the value added guards on everything that C code can read of it."""
    return type(value) is slice or isinstance(value, PLAIN) or _showing(type(value)) is not None


def is_written(cls: type) -> bool:
    """Whether class statements made the class and all its bases but `object`, so that C code stores nothing in its
    instances."""
    return all(base is object or base.__flags__ & HEAP and not _hides(base) for base in cls.__mro__)


def is_foreign(cls: type) -> bool:
    """Whether C code outside of Python, torch, numpy and smelt stores data in the instances."""
    if is_written(cls):
        return False
    made = next(base for base in cls.__mro__ if not base.__flags__ & HEAP or _hides(base))
    return made.__module__.split(".")[0] not in _KNOWN


_KNOWN = sys.stdlib_module_names | {"torch", "numpy", "smelt"}


def _hides(cls: type) -> bool:
    """Whether instances are larger than bases, slots, `__dict__` and `__weakref__` require: C code stores data in
    them."""
    members = sum(type(each) is types.MemberDescriptorType for each in vars(cls).values())
    members += ("__dict__" in vars(cls)) + ("__weakref__" in vars(cls))
    return cls.__basicsize__ > max(base.__basicsize__ for base in cls.__bases__) + members * tuple.__itemsize__


CONSTANT_TYPES: tuple[type, ...] = (
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.GenericAlias,
    types.UnionType,
    types.CodeType,
    typing.TypeVar,
    type(typing.Any),
    type(typing.Union[int, str]),  # noqa: UP007
    type(typing.List[int]),  # noqa: UP006
    enum.Enum,
    re.Pattern,
    OpOverload,
    OpOverloadPacket,
    type(torch.ops),
    type(torch.ops.aten),
    *NUMPY_FUNCTIONS,
)
"""Types whose values are guarded by identity and used unchanged."""


@READ(*SINGLETONS, *CONSTANT_TYPES)
def read_constant(vm: Interpreter, value: object, source: Source) -> Any:
    """Read a constant: the guard compares its identity."""
    vm.guards.check(source, native.IS, value)
    return value


@READ(types.BuiltinFunctionType, types.MethodWrapperType)
def read_c_function(vm: Interpreter, value: Any, source: Source) -> object:
    """Read a C function: the guard compares its identity; the object of a bound one (`random.random`) becomes
    external."""
    if not is_bound(value):
        return read_constant(vm, value, source)
    vm.guards.check(source, native.TYPE_IS, type(value))
    vm.external(value.__self__, sources.attr(source, "__self__"))
    return vm.register(value, source)


def is_bound(value: object) -> bool:
    """Whether this is a C function that is bound to an object other than a module or class."""
    if not isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
        return False
    owner = value.__self__
    plain = owner is None or isinstance(owner, (types.ModuleType, type))
    return not plain and not type(owner).__name__.startswith("pybind11")  # pybind11 binds plain functions to an object


@READ(*PLAIN)
def read_plain(vm: Interpreter, value: object, source: Source) -> object:
    """Read plain data: the guard compares type and value; a number that has changed between calls becomes a symbol."""
    if vm.values.numbers_change and (type(value) is int or type(value) is float):
        key = vm.guards.fetch(source), "number"  # the same source read twice is the same input
        if key in vm.reads:
            return vm.reads[key]
        size = vm.sizes.of_number(value, source)
        if size is not None:
            vm.reads[key] = vm.tensors.read_number(value, size, source)
            return vm.reads[key]
    if type(value) not in LEAVES and not isinstance(value, enum.Enum):
        return read_object(vm, value, source)
    vm.guards.check(source, native.EQ, value)
    if is_nan(value):
        vm.compared.read_nan(value, source)
    return value


def is_nan(value: object) -> bool:
    """Whether a plain value does not equal itself, so that containers compare its identity."""
    return type(value) in _MAY_BE_NAN and bool(value != value)


def is_equal_to_itself(value: object) -> bool:
    """Whether the value is plain data other than NaN, so that `==` suffices for a comparison."""
    return type(value) in LEAVES and not is_nan(value)


_MAY_BE_NAN = classes(float, complex, *(kind for kind in NUMPY_SCALARS if issubclass(kind, _NUMPY_NAN)))


@READ(slice)
def read_slice(vm: Interpreter, value: slice, source: Source) -> slice:
    """Read a slice's start, stop and step; if one of them is a symbol, a new slice replaces the external one."""
    key = id(value), "slice"
    if key not in vm.reads:
        vm.guards.check(source, native.TYPE_IS, slice)
        names = ("start", "stop", "step")
        fields = [vm.external(getattr(value, name), sources.slot(source, vars(slice)[name])) for name in names]
        same = all(field is getattr(value, name) for field, name in zip(fields, names, strict=True))
        vm.reads[key] = vm.register(value if same else slice(*fields), source)
        vm.keep(value)
    return vm.reads[key]


@READ(types.FunctionType)
def read_function(vm: Interpreter, value: types.FunctionType, source: Source) -> object:
    """Read a function: the guard compares its identity, or its code if it is local, as closures are often made anew."""
    key = id(value), "function"
    if not source.local:
        vm.guards.check(source, native.IS, value)
        vm.reads[key] = value
        return value
    if key in vm.reads:  # also read from a source whose guard compares identity: both reads are one object
        vm.guards.check(source, native.IS, value)
    vm.guards.check(source, native.TYPE_IS, types.FunctionType)
    vm.guards.check(sources.function_field(source, "__code__"), native.IS, value.__code__)
    return vm.register(value, source)


@READ(tuple)
def read_tuple(vm: Interpreter, value: tuple[object, ...], source: Source) -> object:
    """Read a tuple: the guard compares its class; each item is read when it is used."""
    if id(value) not in vm.python.constants:
        return read_object(vm, value, source)
    key = id(value), "tuple"  # a constant of the code is not the external object, even where both are one object
    if key not in vm.reads:
        vm.keep(value)
        vm.reads[key] = read_object(vm, (*list(value),), source)
    return vm.reads[key]


@READ(object)
def read_object(vm: Interpreter, value: object, source: Source) -> Any:
    """Read an object of another type: the guard compares its class; attributes are guarded when they are read."""
    if isinstance(value, enum.Enum) and id(type(value)) not in vm.python.made_classes:
        return read_constant(vm, value, source)
    vm.check_type(value, source)
    show = _showing(type(value))
    if show is not None:
        vm.guards.check(sources.called(source, show, show.__qualname__), native.EQ, show(value))
    return vm.register(value, source)


def is_constant(value: object) -> bool:
    """Whether the value is immutable data, or of a kind that is guarded by identity."""
    if is_bound(value):
        return False
    return type(value) in LEAVES or isinstance(value, CONSTANT_TYPES) or isinstance(value, types.FunctionType)


def own_dict(obj: object) -> dict[str, object] | None:
    """The instance's dictionary, even if `__dict__` does not show it (type variables from 3.12 on); None without
    one."""
    try:
        attributes = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return native.instance_dict(obj)
    return attributes if isinstance(attributes, dict) else None
