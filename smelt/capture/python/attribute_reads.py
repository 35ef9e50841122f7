"""Attribute reads with guards, as in `object.__getattribute__` and its counterparts of other types."""

from __future__ import annotations

import enum
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from smelt.base.class_tables import by_class, classes, isinstance
from smelt.base.python_text import module_name
from smelt.capture import _native as native
from smelt.capture.core import flags, policy, sources
from smelt.capture.core.breaks import Break, UserError, user
from smelt.capture.core.interface import Interpreter
from smelt.capture.core.made_classes import pin, pin_read
from smelt.capture.core.prologue_value import PrologueValue
from smelt.capture.core.registry import ATTR, READ
from smelt.capture.core.sources import Source
from smelt.capture.core.values import C_METHODS, FIELD, HEAP, LEAVES, is_constant, own_dict
from smelt.capture.python.class_dict import class_dict
from smelt.capture.python.effects import DELETED
from smelt.capture.python.readers import class_of_referent
from smelt.graph.ir.symint import pinned
from smelt.graph.trace.trace import TraceTensor

_GET = vars(torch.nn.Module)["__getattr__"]  # read at import: the program may replace it for a time
MISS = object()
"""Result of a lookup that found no attribute."""
_UNKNOWN = object()
"""Marker of a lookup whose result is not cached yet."""

_GENERIC = (object.__getattribute__, BaseException.__getattribute__, dict.__getattribute__, tuple.__getattribute__)
SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_SLOTS = classes(*SLOTS)
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
_PLAIN = (*FUNCTIONS, *SLOTS, type, property, staticmethod, classmethod)


def find_in_class(vm: Interpreter, cls: type, name: str) -> Any:
    """The raw attribute that a lookup in the method resolution order finds, guarded once per (class, name), or MISS."""
    if name in vm.effects.class_writes:
        pending = written_class_attr(vm, cls, name)
        if pending is not None:
            return MISS if pending[0] is DELETED else pending[0]
    return _outside_in_class(vm, cls, name)


def _outside_in_class(vm: Interpreter, cls: type, name: str) -> object:
    """The raw attribute of an external class, guarded, without the program's deferred writes; MISS without one."""
    key = (id(cls), name)  # by identity: a metaclass may define its own hash, or none
    found = vm.python.lookups.get(key, _UNKNOWN)
    if found is _UNKNOWN:
        found = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), MISS)
        if id(cls) in vm.python.made_classes:
            _guard_before(vm, cls, name)
            if found is not MISS and type(found).__flags__ & HEAP:  # guards its class, which is read next
                vm.external(found, class_attr(vm, cls, name))
        # attributes of other classes cannot be assigned
        elif cls.__flags__ & HEAP and id(cls) not in vm.python.created:
            kind, operand = (native.MISSING, None) if found is MISS else (native.IS, found)
            vm.guards.check(sources.class_attr(cls, name), kind, operand)
        vm.python.lookups[key] = found
        vm.keep(cls)
    return found


def _guard_before(vm: Interpreter, cls: type, name: str) -> None:
    """Guard the lookup of a name in the bases of a class made at each call; a guard on the statement covers the class
    itself."""
    for base in cls.__mro__:
        if id(base) not in vm.python.made_classes:
            _outside_in_class(vm, base, name)
        elif name in vars(base):
            pin_read(vm, base, name)
            return


def class_attr(vm: Interpreter, cls: type, name: str) -> Source:
    """The source of the raw attribute of a class."""
    for base in cls.__mro__ if id(cls) in vm.python.made_classes else ():
        if name in vars(base):
            known = vm.sources[id(base)] if id(base) in vm.python.made_classes else None
            return sources.class_attr(base, name) if known is None else sources.attribute_of(known, name)
    return sources.class_attr(cls, name)


def written_class_attr(vm: Interpreter, cls: type, name: str) -> tuple[object] | None:
    """(value,) that the program's writes to a class or its bases give the name, DELETED for a removal; None if they do
    not affect the lookup."""
    if name not in vm.effects.class_writes:
        return None
    deleted = False
    for base in cls.__mro__:
        store = vm.effects.stores.get(("attr", id(base), name))
        if store is not None and store.value is not DELETED:
            if base is not cls and id(cls) not in vm.python.created and id(cls) not in vm.python.made_classes:
                # at the next call a class before the base in the order may have the name
                vm.guards.flag(_gets_from, (cls, name, base), True)
            return (store.value,)
        deleted = deleted or store is not None
        if store is None and name in vars(base):
            return (vars(base)[name],) if deleted else None
    return (DELETED,) if deleted else None


def _gets_from(cls: type, name: str, base: type) -> bool:
    """Whether `base` is the first class in the method resolution order with the name. A comparison of the values would
    not do: they may be equal."""
    return not any(name in vars(before) for before in cls.__mro__[: cls.__mro__.index(base)])


_BUILT_IN = classes(list, tuple, dict, set, frozenset, slice, type, types.FunctionType, TraceTensor, PrologueValue)


def python_method(vm: Interpreter, obj: object, name: str) -> Any:
    """A dunder method of the object's class if it is written in Python; None otherwise.

    For a tensor, only a method that replaces torch's own is returned.
    """
    cls = type(obj)
    if type(obj) is TraceTensor:
        return _tensor_method(vm, obj, name)
    if cls in LEAVES or cls in _BUILT_IN:
        return None
    raw = find_in_class(vm, cls, name)
    return raw if isinstance(raw, types.FunctionType) else None


_OF_TENSORS = {id(raw): raw for cls in (torch.nn.Parameter, *torch.Tensor.__mro__) for raw in vars(cls).values()}


def replaced_in_tensor(vm: Interpreter, tensor: TraceTensor, name: str) -> object:
    """The guarded attribute of a tensor's class if it differs from the one that torch defines; None otherwise."""
    raw = find_in_class(vm, vm.type_of(tensor), name)
    if raw is MISS or id(raw) in _OF_TENSORS:
        return None
    if isinstance(raw, types.FunctionType) and module_name(raw.__globals__.get("__name__")).startswith("torch."):
        return None
    return raw


def _tensor_method(vm: Interpreter, tensor: TraceTensor, name: str) -> object:
    if vm.subclasses.present and vm.subclasses.class_of(tensor) is not None:
        return _method_of_subclass(vm, tensor, name)
    method = replaced_in_tensor(vm, tensor, name)
    if method is None or isinstance(method, types.FunctionType) or type(method) in C_METHODS:
        return method
    raise Break(f"Tensor.{name} is a {type(method).__name__}", "capture knows no method of this kind")


def _method_of_subclass(vm: Interpreter, tensor: TraceTensor, name: str) -> object:
    """A method of a subclass of tensors; one of torch's own only if a call of it reaches `__torch_function__`."""
    raw = find_in_class(vm, vm.type_of(tensor), name)
    if raw is MISS or id(raw) in _OF_TENSORS and not vm.subclasses.overrides(tensor):
        return None
    if isinstance(raw, types.FunctionType) or type(raw) in C_METHODS:
        return raw
    raise Break(f"{vm.type_of(tensor).__name__}.{name} is a {type(raw).__name__}", "capture knows no such method")


def refuses(vm: Interpreter, obj: object, name: str) -> bool:
    """Whether the object's class sets the method to None, which forbids the operation and all its fallbacks."""
    cls = type(obj)
    return cls not in LEAVES and cls not in _BUILT_IN and find_in_class(vm, cls, name) is None


@ATTR(object)
def load_object_attr(vm: Interpreter, obj: object, name: str) -> object:
    """An attribute of an ordinary instance."""
    cls = type(obj)
    custom = None if cls in LEAVES else find_in_class(vm, cls, "__getattribute__")
    if isinstance(custom, types.FunctionType):
        return _by_own_method(vm, custom, obj, name)
    source = vm.sources.get(id(obj))
    if source is not None:
        value = vm.reads.get((id(obj), name), MISS)
        if value is DELETED:
            return _missing(vm, obj, name)
        if value is not MISS:
            return value
    elif cls in LEAVES:
        return _leaf_attr(vm, obj, name)
    elif isinstance(obj, enum.Enum) and not policy.is_frozen(cls.__module__):
        source = sources.const(obj, str(obj))  # its identity is guarded; its attributes may be assigned
    try:
        if type(custom) not in C_METHODS:
            raise Break(f"an attribute of a {cls.__name__}", "its __getattribute__ is no function")
        value = _find_generic(vm, obj, cls, name, source)
    except UserError as error:  # raised by `__getattribute__`, a property or another descriptor
        if not isinstance(error.error, AttributeError) or find_in_class(vm, cls, "__getattr__") is MISS:
            raise
        value = MISS
    return _missing(vm, obj, name) if value is MISS else value


def _by_own_method(vm: Interpreter, method: types.FunctionType, obj: object, name: str) -> object:
    """An attribute from a `__getattribute__` that the program defines, which is called at each read."""
    try:
        return vm.call(method, (obj, name), {})
    except UserError as error:
        if not isinstance(error.error, AttributeError) or find_in_class(vm, type(obj), "__getattr__") is MISS:
            raise
    return _missing(vm, obj, name)


def _leaf_attr(vm: Interpreter, obj: object, name: str) -> object:
    """An attribute of a plain value or of a symbolic number."""
    if name == "__class__":
        return vm.type_of(obj)
    return user(getattr, pinned(obj) if name == "__hash__" else obj, name)


def load_generic(vm: Interpreter, obj: object, cls: type, name: str, source: Source | None) -> object:
    """`object.__getattribute__(obj, name)`: it does not call `__getattr__`."""
    value = vm.reads.get((id(obj), name), MISS) if source is not None and _is_of_object(vm, obj, name) else MISS
    if value is MISS:
        value = _find_generic(vm, obj, cls, name, source)
    if value is MISS or value is DELETED:
        raise no_attribute(vm, obj, name)
    return value


def _is_of_object(vm: Interpreter, obj: object, name: str) -> bool:
    """Whether a cached read of this name came from `object.__getattribute__`, and not from `nn.Module.__getattr__`,
    which reads members."""
    attributes = own_dict(obj)
    if not isinstance(obj, torch.nn.Module) or attributes is None:
        return True
    return name in attributes or ("attr", id(obj), name) in vm.effects.stores


def _find_generic(vm: Interpreter, obj: object, cls: type, name: str, source: Source | None) -> object:
    raw = find_in_class(vm, cls, name)
    if raw is not MISS and is_data_descriptor(raw):
        return bind_raw(vm, raw, obj, cls, name, source)
    attributes = instance_dict(vm, obj)
    if attributes is not None and name in attributes:
        if source is None or attributes is not own_dict(obj):
            return attributes[name]
        value = vm.external(attributes[name], sources.instance_item(source, name))
        vm.reads[id(obj), name] = value
        return value
    if raw is not MISS:
        guard_absence(vm, obj, name)
        return bind_raw(vm, raw, obj, cls, name, source)
    return MISS


def instance_dict(vm: Interpreter, obj: object) -> dict[str, object] | None:
    """The instance's dictionary, or its mirror if the program has read `__dict__`; None without a dictionary."""
    attributes = own_dict(obj)
    if attributes is None:
        return None
    mirror = vm.effects.mirrors.get(id(attributes))
    return attributes if mirror is None else mirror.copy


def mirrored_dict(vm: Interpreter, obj: object) -> dict[str, object] | None:
    """The mirror of an object's dictionary, which takes attribute writes if the program has read `__dict__`; else
    None."""
    real = vm.tensors.real.get(id(obj), obj)
    attributes = instance_dict(vm, real)
    return attributes if attributes is not own_dict(real) else None


def is_data_descriptor(raw: object) -> bool:
    """Whether a class attribute is a data descriptor, which takes precedence over the instance's dictionary."""
    if isinstance(raw, types.FunctionType):
        return False
    kind = type(raw)
    return hasattr(kind, "__set__") or hasattr(kind, "__delete__")


def bind_raw(vm: Interpreter, raw: Any, obj: Any, cls: type, name: str, source: Source | None) -> Any:
    """The value of the class attribute `raw` when it is read from an instance."""
    kind = type(raw)
    if kind in _BINDS:
        return _BINDS[kind](raw, obj, cls)
    if kind is property:
        if raw.fget is None:
            raise UserError(AttributeError(f"property {name!r} of {cls.__name__!r} object has no getter"))
        return vm.call(raw.fget, (obj,), {})
    if kind is FIELD and source is not None:
        return vm.external(user(raw.__get__, obj, cls), sources.sequence_item(source, raw.__reduce__()[1][0], cls))
    if kind in _SLOTS:
        return _slot(vm, raw, obj, name, source)
    if kind in C_METHODS or isinstance(raw, functools._lru_cache_wrapper):
        return types.MethodType(raw, obj)
    if kind is enum.property and name in ("name", "value") and isinstance(obj, enum.Enum):
        return load_object_attr(vm, obj, f"_{name}_")
    return _bind_descriptor(vm, raw, obj, cls, name)


_BINDERS: dict[type, Callable[..., object]] = {
    types.FunctionType: lambda raw, obj, cls: types.MethodType(raw, obj),
    staticmethod: lambda raw, obj, cls: raw.__func__,
    classmethod: lambda raw, obj, cls: types.MethodType(raw.__func__, cls),
    types.BuiltinFunctionType: lambda raw, obj, cls: raw,
}
_BINDS = by_class(_BINDERS)
"""Type of a class attribute -> its value on an instance, for types whose `__get__` runs no code of the program."""


def _bind_descriptor(vm: Interpreter, raw: Any, obj: object, cls: type, name: str) -> object:
    """The value of a class attribute without a case of its own in `bind_raw`: the result of its `__get__`, if any."""
    getter = find_in_class(vm, type(raw), "__get__")
    if isinstance(getter, types.FunctionType):
        own = _descriptor(vm, raw, cls, name)
        return vm.call(getter, (own, obj, cls), {})
    if getter is not MISS:
        bound = user(raw.__get__, obj, cls)
        if type(bound) is types.MethodType and bound.__func__ is raw:
            class_value(vm, raw, cls, name)  # a function of another type, such as Cython's
        return bound
    return class_value(vm, raw, cls, name)


def _descriptor(vm: Interpreter, raw: object, cls: type, name: str) -> object:
    """The handle of a descriptor in a class, for a call of its `__get__` that is written in Python."""
    if policy.is_frozen(type(raw).__module__) and id(cls) not in vm.python.made_classes:
        return raw
    return class_value(vm, raw, cls, name)


def class_value(vm: Interpreter, raw: object, cls: type, name: str) -> object:
    """The handle of a raw attribute in a class, which becomes external if it is neither a constant nor written."""
    if (
        id(cls) in vm.python.created
        or is_constant(raw)
        and id(raw) not in vm.sources
        or written_class_attr(vm, cls, name) is not None
    ):
        return raw
    return vm.external(raw, class_attr(vm, cls, name))


def _slot(vm: Interpreter, raw: Any, obj: Any, name: str, source: Source | None) -> object:
    """Read a `__slots__` member, or an attribute that C code computes."""
    if source is None:
        return user(raw.__get__, obj, type(obj))
    if raw is vars(object)["__class__"]:
        return type(obj)  # reading the object guarded its type
    if native.is_slot(raw):
        base = sources.instance_dict(source) if name == "__dict__" else sources.slot(source, raw)
        try:
            value = raw.__get__(obj, type(obj))
        except AttributeError as error:
            vm.external(native.NULL, base)
            raise UserError(error) from None
    else:
        value = user(raw.__get__, obj, type(obj))
        base = sources.instance_dict(source) if name == "__dict__" else sources.attr(source, name)
    value = vm.external(value, base)
    vm.reads[id(obj), name] = value
    return value


def _missing(vm: Interpreter, obj: object, name: str) -> object:
    cls = type(obj)
    fallback = find_in_class(vm, cls, "__getattr__")
    if isinstance(obj, torch.nn.Module) and fallback is _GET:
        return load_member(vm, obj, name)
    if isinstance(fallback, types.FunctionType):
        guard_absence(vm, obj, name)
        return vm.call(fallback, (obj, name), {})
    if fallback is not MISS:
        raise Break(f"an attribute of a {cls.__name__}", "its __getattr__ is no function")
    raise no_attribute(vm, obj, name)


def no_attribute(vm: Interpreter, obj: object, name: str) -> UserError:
    """The error for a missing attribute; adds the guard that the attribute is missing."""
    guard_absence(vm, obj, name)
    return UserError(AttributeError(f"{_class_name(obj)!r} object has no attribute {name!r}", name=name, obj=obj))


def _class_name(obj: object) -> str:
    """The name of an object's class as it appears in Python's errors, with the module for some classes of C code
    (`types.SimpleNamespace`)."""
    try:
        object.__getattribute__(obj, _ABSENT_NAME)
    except AttributeError as error:
        return str(error).split("'")[1]
    return type(obj).__name__


_ABSENT_NAME = "an attribute that no object has"


def guard_absence(vm: Interpreter, obj: object, name: str) -> None:
    """Guard that the instance's own dictionary lacks the name. If the dictionary has the name, no guard is added: the
    program has removed the attribute, or the lookup does not use the dictionary."""
    source, attributes = vm.sources.get(id(obj)), own_dict(obj)
    if source is not None and attributes is not None and name not in attributes:
        vm.guards.check(sources.instance_dict(source), native.NOT_KEY, name)


MEMBERS = ("_parameters", "_buffers", "_modules")
_EMPTY = {table: (None, (table,)) for table in MEMBERS}


def load_member(vm: Interpreter, module: torch.nn.Module, name: str) -> object:
    """A parameter, buffer or submodule, as `nn.Module.__getattr__` finds it."""
    attributes = module.__dict__
    source = vm.sources.get(id(module))
    for table in MEMBERS:
        members = attributes.get(table)
        if members is None:
            continue
        mirror = vm.effects.mirrors.get(id(members))
        if mirror is not None:
            if name in mirror.copy:
                return mirror.copy[name]
        elif name in members:
            if source is None:
                return members[name]
            guard_absence(vm, module, name)
            value = vm.external(members[name], sources.member(source, table, name))
            vm.reads[id(module), name] = value
            return value
        elif source is not None:
            guard_no_member(vm, source, table, members, name)
    raise no_attribute(vm, module, name)


def guard_no_member(vm: Interpreter, source: Source, table: str, members: dict[str, object], name: str) -> None:
    """Guard that a module's table lacks the name."""
    if members:
        vm.guards.check(sources.instance_item(source, table), native.NOT_KEY, name)
    else:
        vm.guards.check(source, native.MODULE, _EMPTY[table])  # one check that it is empty covers all names


# -- types of objects with other lookup rules -------------------------------------------------


@ATTR(types.ModuleType)
def load_module_attr(vm: Interpreter, module: types.ModuleType, name: str) -> object:
    """A global of a Python module."""
    written = vm.effects.variable(module, name) if vm.effects.stores or vm.effects.mirrors else None
    if written is not None and written.value is not DELETED:
        return written.value
    if written is not None and name in vars(module):
        called = vars(module).get("__name__")
        text = f"module {called!r} has no" if isinstance(called, str) else "module has no"
        raise UserError(AttributeError(f"{text} attribute {name!r}", name=name, obj=module))
    key = (id(module), name)
    value = vm.reads.get(key, MISS)
    if value is not MISS:
        return value
    raw = user(getattr, module, name)
    if flags.module_setting(module, name):
        flags.guard_flag(vm, getattr, (module, name), raw)
        return raw
    value = vm.external(raw, _module_item(vm, module, name, raw))
    vm.reads[key] = value
    vm.keep(module)
    return value


def _module_item(vm: Interpreter, module: types.ModuleType, name: str, raw: object) -> Source:
    """The source of a module's attribute; guards also compute an attribute that the module computes."""
    if vars(module).get(name, MISS) is raw:
        return sources.global_item(vm.globals_source(vars(module)), name)
    return sources.attr(sources.const(module, module_name(vars(module).get("__name__")) or "module"), name)


@ATTR(type)
def load_attr_of_class(vm: Interpreter, cls: type, name: str) -> object:
    """An attribute of a class."""
    custom = find_in_class(vm, type(cls), "__getattribute__") if type(cls) is not type else None
    if custom is not None and type(custom) not in C_METHODS:
        return _ask_metaclass(vm, custom, cls, name)
    return load_class_attr(vm, cls, name)


def load_class_attr(vm: Interpreter, cls: type, name: str) -> object:
    """`type.__getattribute__(cls, name)`, then the metaclass's `__getattr__`."""
    pending = written_class_attr(vm, cls, name)
    if pending is not None:
        return _written(cls, name, pending[0])
    if name == "__dict__" and not _is_fixed(vm, pin(vm, cls)):
        return class_dict(vm, cls, functools.partial(_class_dict_value, vm, cls))
    key = (id(cls), name)
    value = vm.reads.get(key, MISS)
    if value is not MISS:
        return value
    raw = find_in_class(vm, cls, name)
    metaclass: Any = type(cls)
    meta = find_in_class(vm, metaclass, name)
    if type(meta) is property:
        return vm.call(meta.fget, (cls,), {})
    if raw is MISS and meta is MISS:
        fallback = find_in_class(vm, metaclass, "__getattr__")
        if isinstance(fallback, types.FunctionType):
            return vm.call(fallback, (cls, name), {})
    if raw is not MISS and not is_data_descriptor(meta):
        getter = find_in_class(vm, type(raw), "__get__")
        if isinstance(getter, types.FunctionType):
            own = _descriptor(vm, raw, cls, name)
            return vm.call(getter, (own, None, cls), {})
    value = _without_program_code(vm, cls, name, raw, meta)
    vm.keep(cls)
    return value


def _without_program_code(vm: Interpreter, cls: type, name: str, raw: object, meta: object) -> object:
    """An attribute that Python computes without running code of the program, guarded to stay the same.

    Args:
        raw, meta: the raw attributes of this name in the class and in its metaclass; MISS without one.
    """
    value = user(getattr, cls, name)
    if type(meta) in _SLOTS and name not in vars(cls):
        guard_slot(vm, cls, name, value)
    elif raw is value:
        value = class_value(vm, raw, cls, name)
    elif raw is MISS and meta is value:
        value = class_value(vm, meta, type(cls), name)
    elif raw is not MISS and not isinstance(value, (*FUNCTIONS, types.MethodType)) and not is_constant(value):
        if name not in ("__dict__", "__doc__", "__annotations__", *_ORDER):
            raise Break(f"attribute {cls.__name__}.{name}", "a descriptor computes it")
    return value


def _ask_metaclass(vm: Interpreter, custom: object, cls: type, name: str) -> object:
    """An attribute of a class whose metaclass defines `__getattribute__`."""
    if not isinstance(custom, types.FunctionType):
        raise Break(f"an attribute of {cls.__name__}", "the __getattribute__ of its metaclass is no function")
    try:
        return vm.call(custom, (cls, name), {})
    except UserError as error:
        fallback = find_in_class(vm, type(cls), "__getattr__")
        if not isinstance(error.error, AttributeError) or not isinstance(fallback, types.FunctionType):
            raise
        return vm.call(fallback, (cls, name), {})


def _class_dict_value(vm: Interpreter, cls: type, name: str, raw: object) -> Any:
    return raw if isinstance(raw, _PLAIN) else class_value(vm, raw, cls, name)


_ORDER = ("__mro__", "__bases__")


def _is_fixed(vm: Interpreter, cls: type) -> bool:
    """Whether attributes of the class need no guards: the captured function made the class, or it belongs to a
    library."""
    return id(cls) in vm.python.created or policy.is_frozen(cls.__module__)


def guard_slot(vm: Interpreter, cls: type, name: str, value: object) -> None:
    """Guard a field that `type` stores for a class (`__name__`, `__bases__`), since the program may assign it."""
    if name in _ORDER:
        guard_order(vm, cls)
    elif is_constant(value) and not _is_fixed(vm, cls):
        vm.external(value, sources.attr(sources.const(cls, cls.__name__), name))


def guard_order(vm: Interpreter, cls: type) -> None:
    """Guard that the class's method resolution order is the same tuple, since an assignment to `__bases__` makes
    another one."""
    if not _is_fixed(vm, cls):
        vm.guards.check(sources.attr(sources.const(cls, cls.__name__), "__mro__"), native.IS, cls.__mro__)


def _written(cls: type, name: str, value: object) -> Any:
    """The value, read from the class, of a class attribute that the program has written."""
    if value is DELETED:
        raise UserError(AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}", name=name, obj=cls))
    if hasattr(type(value), "__get__") and not isinstance(value, types.FunctionType):
        raise Break(f"attribute {cls.__name__}.{name}", "the function has just put a descriptor there")
    return value


@ATTR(super)
def load_super_attr(vm: Interpreter, proxy: object, name: str) -> object:
    """`super().name`"""
    fields = super_fields(vm, proxy)
    obj, cls, start = fields["__self__"], fields["__self_class__"], fields["__thisclass__"]
    if cls is not None and name != "__class__":
        mro = cls.__mro__
        guard_order(vm, cls)
        for base in mro[mro.index(start) + 1 :]:
            if name in vars(base):
                raw = vars(base)[name]
                if (
                    base.__flags__ & HEAP
                    and id(base) not in vm.python.created
                    and id(base) not in vm.python.made_classes
                ):
                    vm.guards.check(sources.class_attr(base, name), native.IS, raw)
                if isinstance(obj, type) and obj is cls and type(raw) is types.FunctionType:
                    return raw
                return bind_raw(vm, raw, obj, cls, name, vm.sources.get(id(obj)))
    return fields[name] if name in fields else user(getattr, proxy, name)


def super_fields(vm: Interpreter, proxy: Any) -> dict[str, Any]:
    """The fields of a `super` object, with guards if the object is external."""
    source = vm.source_of(proxy)
    if source is None:
        return {name: getattr(proxy, name) for name in ("__self__", "__self_class__", "__thisclass__")}
    obj = vm.external(proxy.__self__, sources.attr(source, "__self__"))
    for name in ("__self_class__", "__thisclass__"):
        vm.guards.check(sources.attr(source, name), native.IS, getattr(proxy, name))
    return {"__self__": obj, "__self_class__": proxy.__self_class__, "__thisclass__": proxy.__thisclass__}


@READ(weakref.ProxyType, weakref.CallableProxyType)
def read_proxy(vm: Interpreter, value: object, source: Source) -> object:
    """Read a weak proxy: guards compare its class and the class of its referent.

    Raises:
        Break: the referent is dead, so that every use of the proxy is an error.
    """
    kind = class_of_referent(value)
    if kind is None:
        raise Break("a weak proxy of an object that is dead", "it raises an error for whatever it is asked")
    vm.guards.check(source, native.TYPE_IS, type(value))
    vm.guards.check(sources.called(source, class_of_referent, "stands_for"), native.IS, kind)
    return vm.register(value, source)


@ATTR(weakref.ProxyType, weakref.CallableProxyType)
def load_proxy_attr(vm: Interpreter, obj: object, name: str) -> object:
    """End the graph, because no guard compares which object a weak proxy refers to."""
    raise Break(f"an attribute of a {type(obj).__name__}", "which object it stands for is not guarded", in_frame=True)


@ATTR(types.MethodType)
def load_method_attr(vm: Interpreter, method: types.MethodType, name: str) -> object:
    """An attribute of a bound method: `__func__`, `__self__`, or an attribute of its function."""
    if name in ("__func__", "__self__"):
        return load_object_attr(vm, method, name) if vm.source_of(method) else getattr(method, name)
    return load_object_attr(vm, method.__func__, name) if name != "__class__" else types.MethodType


@ATTR(types.FunctionType)
def load_function_attr(vm: Interpreter, function: types.FunctionType, name: str) -> object:
    """An attribute of a function. A guard on the function's identity does not cover attributes, which may change."""
    key = (id(function), name)
    written = vm.reads.get(key, MISS)
    if written is DELETED:
        raise UserError(AttributeError(f"'function' object has no attribute {name!r}", name=name, obj=function))
    if written is not MISS:
        return written
    if (
        id(function) in vm.python.created
        or vm.sources.get(id(function)) is None
        and policy.is_frozen(function.__module__)
    ):
        return user(getattr, function, name)
    source = function_source(vm, function)
    attributes = function.__dict__
    if name not in attributes:
        vm.guards.check(sources.instance_dict(source), native.NOT_KEY, name)
    value = user(getattr, function, name)
    if type(value) is types.CellType or value is function.__closure__:
        vm.adopt_cells(function, source)
    if name in attributes:
        base = sources.instance_item(source, name)
    else:
        base = sources.function_field(source, name) if name in sources.FUNCTION_FIELDS else sources.attr(source, name)
    if isinstance(value, types.MethodWrapperType) or name in ("__globals__", "__builtins__", "__get__"):
        return value
    value = vm.external(value, base)
    vm.reads[key] = value
    vm.keep(function)
    return value


def function_source(vm: Interpreter, fn: types.FunctionType) -> Source:
    """The source of an external function; for a function without a source, the function as a constant."""
    found: Source | None = vm.sources.get(id(fn))
    return found if found is not None else sources.const(fn, fn.__qualname__)
