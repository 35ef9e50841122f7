"""Attribute writes and deletions, as in `object.__setattr__` and its counterparts; deferred for external objects."""

from __future__ import annotations

import types
from typing import Any

import torch

from smelt.base.class_tables import isinstance
from smelt.base.torch_private import is_view, version_of
from smelt.capture import _native as native
from smelt.capture.core import sources
from smelt.capture.core.breaks import Break, Restart, UserError, user, user_raise
from smelt.capture.core.interface import Interpreter
from smelt.capture.core.values import C_METHODS, IMMUTABLE_TYPE
from smelt.capture.python.attribute_reads import (
    MISS,
    find_in_class,
    guard_no_member,
    instance_dict,
    mirrored_dict,
    no_attribute,
    own_dict,
)
from smelt.capture.python.backward import store_grad
from smelt.capture.python.effects import DELETED
from smelt.graph.trace.trace import TraceTensor

_SET = vars(torch.nn.Module)["__setattr__"]  # read at import: the program may replace it for a time
_DELETE = vars(torch.nn.Module)["__delattr__"]


def store_attr(vm: Interpreter, obj: object, name: str, value: object) -> None:
    """`obj.name = value`"""
    cls = type(obj)
    if isinstance(obj, torch.Tensor):
        store_tensor_attr(vm, obj, name, value)
        return
    setter = find_in_class(vm, cls, "__setattr__")
    if isinstance(obj, torch.nn.Module) and setter is _SET:
        store_module_attr(vm, obj, name, value)
    elif isinstance(setter, types.FunctionType):
        vm.call(setter, (obj, name, value), {})
    elif type(setter) not in C_METHODS:
        raise Break(f"an attribute of a {cls.__name__} is written", "its __setattr__ is no function")
    else:
        store_generic(vm, obj, name, value)


def store_generic(vm: Interpreter, obj: object, name: str, value: object) -> None:
    """`object.__setattr__(obj, name, value)`"""
    if type(obj) is TraceTensor:
        store_tensor_attr(vm, obj, name, value)
        return
    raw = _of_class(vm, obj, name)
    if type(raw) is property:
        if raw.fset is None:
            user(property.__set__, raw, obj, value)  # raises
        vm.call(raw.fset, (obj, value), {})
        return
    setter = getattr(type(raw), "__set__", None) if raw is not MISS else None
    if isinstance(setter, types.FunctionType):
        vm.call(setter, (raw, obj, value), {})
        return
    if is_external(vm, obj):
        taken = mirrored_dict(vm, obj)
        if taken is not None:
            taken[name] = value
            return
        _expect_room(obj, name, value, raw, own_dict(obj) is not None)
        if type(obj) is types.ModuleType:
            vm.effects.store_variable(vars(obj), name, value)
            return
        vm.effects.store("attr", obj, name, value)
        return
    vm.work += 1
    if type(obj) is types.FunctionType or not hasattr(type(obj), "__setattr__"):
        user(setattr, obj, name, value)
    else:
        user(object.__setattr__ if not isinstance(obj, type) else type.__setattr__, obj, name, value)


def _of_class(vm: Interpreter, obj: object, name: str) -> object:
    """The raw attribute of an object's class that decides what a write or deletion does."""
    return MISS if isinstance(obj, types.ModuleType) else find_in_class(vm, type(obj), name)


def _expect_room(obj: object, name: str, value: object, raw: object, has_dict: bool) -> None:
    """Check that a write that is to be deferred will not fail, because later instructions run before it is made.

    Raises:
        UserError: the object does not accept the attribute.
        Break: C code of its class decides whether the write fails.
    """
    if isinstance(obj, type):
        if obj.__flags__ & IMMUTABLE_TYPE:
            user(setattr, obj, name, value)
        _refuse_own_record(obj, name)
    elif raw is not MISS and hasattr(type(raw), "__set__"):
        if not native.takes_all(raw):
            raise Break(f"attribute {name!r} of a {type(obj).__name__} is written", "C code looks at the value")
    elif not has_dict and not isinstance(obj, types.ModuleType):
        user(object.__setattr__, obj, name, value)


def _refuse_own_record(cls: type, name: str) -> None:
    """End the graph at a write that C code depends on at once: to a class's name, bases or dunder methods.

    Raises:
        Break: the name is such an attribute.
    """
    if name.startswith("__") and name.endswith("__") and name not in ("__doc__", "__annotations__"):
        raise Break(f"{name} of a class is written", "C code looks at it", "write it outside of the function")


def is_external(vm: Interpreter, obj: object) -> bool:
    """Whether a write to `obj` must be deferred, because code outside of the frame can read the object."""
    if id(obj) in vm.sources:
        return True
    return isinstance(obj, (type, types.ModuleType, types.FunctionType)) and id(obj) not in vm.python.created


def store_module_attr(vm: Interpreter, module: torch.nn.Module, name: str, value: object) -> None:
    """`nn.Module.__setattr__`, for plain values and existing buffers; for other members the graph ends.

    A module whose constructor is the captured function may have no tables yet.
    """
    attributes = module.__dict__
    kind = vm.type_of(value)
    if vm.source_of(module) is None:
        vm.work += 1
        _store_own_member(module, name, value, kind)
        return
    parameters, modules, buffers = (
        _guarded_members(vm, module, name, table) for table in ("_parameters", "_modules", "_buffers")
    )
    if issubclass(kind, (torch.nn.Parameter, torch.nn.Module)) or name in parameters:
        raise Break("a parameter or submodule is replaced", hint="assign parameters outside of the compiled function")
    if name in modules:
        raise Break("a submodule is replaced", hint="assign submodules outside of the compiled function")
    if name in buffers:
        if not name or "." in name:
            raise Break("a buffer whose name holds a point is assigned", "eager raises an error")
        if value is not None and not issubclass(kind, torch.Tensor):
            raise Break(f"a buffer is assigned a {kind.__name__}", "eager raises an error")
        if buffers is attributes["_buffers"]:
            vm.effects.store("attr", module, name, value)
            vm.effects.tables.add(id(buffers))
        else:
            vm.work += 1
            buffers[name] = value
        return
    store_generic(vm, module, name, value)


def _guarded_members(vm: Interpreter, module: torch.nn.Module, name: str, table: str) -> dict[str, object]:
    """The members in one table of an external module, with a guard on whether the table has this name."""
    members, own = _members(vm, module.__dict__, table), module.__dict__.get(table)
    if members is own and name in members:
        vm.guards.check(sources.instance_item(vm.sources[id(module)], table), native.HAS_KEY, name)
    elif members is own:
        guard_no_member(vm, vm.sources[id(module)], table, members, name)
    return members


def _members(vm: Interpreter, attributes: dict[str, Any], table: str) -> dict[str, Any]:
    """A module's parameters, submodules or buffers, or their mirror with the program's writes."""
    members: dict[str, Any] = attributes.get(table, {})
    mirror = vm.effects.mirrors.get(id(members))
    return members if mirror is None else mirror.copy


def _store_own_member(module: torch.nn.Module, name: str, value: object, kind: type) -> None:
    """`nn.Module.__setattr__` for a module that the frame made, whose tables are written at once."""
    attributes = module.__dict__
    table = "_parameters" if issubclass(kind, torch.nn.Parameter) else "_modules"
    if issubclass(kind, (torch.nn.Parameter, torch.nn.Module)):
        attributes[table][name] = value
    elif name in attributes.get("_buffers", ()):
        attributes["_buffers"][name] = value
    else:
        object.__setattr__(module, name, value)


def store_tensor_attr(vm: Interpreter, tensor: Any, name: str, value: object) -> None:
    """`tensor.name = value`"""
    cls = vm.subclasses.class_of(tensor) if vm.subclasses.present else None
    if cls is not None and vm.subclasses.write_attr(tensor, cls, name, value):
        return
    if name == "data":
        store_data(vm, tensor, value)
        return
    if name == "requires_grad":
        vm.call(vm.load_attr(tensor, "requires_grad_"), (value,), {})
        return
    if name == "grad":
        _store_grad(vm, tensor, value)
        return
    if name in ("grad_fn", "names"):
        raise Break(f"tensor.{name} is assigned", "a graph has no such operation", "do it outside of the function")
    attributes = mirrored_dict(vm, tensor)
    if attributes is not None:
        attributes[name] = value
    elif vm.source_of(tensor) is not None:
        vm.effects.store("attr", tensor, name, value)
    else:
        raise Break(f"tensor.{name} is assigned", "the tensor object does not exist yet", "assign it outside")


def _store_grad(vm: Interpreter, tensor: TraceTensor, value: object) -> None:
    """`tensor.grad = value`; the value must be None or match the tensor, as in the setter."""
    if value is not None:
        if type(value) is not TraceTensor:
            user_raise(TypeError(f"assigned grad expected to be a Tensor or None but got grad of type {type(value)}"))
        if value is tensor:
            user_raise(RuntimeError("can't assign Variable as its own grad"))
        if value.shape != tensor.shape or value.dtype != tensor.dtype or value.device != tensor.device:
            raise Break("tensor.grad is assigned a tensor of another shape, dtype or device")
    store_grad(vm, tensor, value)


def store_data(vm: Interpreter, tensor: TraceTensor, value: object) -> None:
    """`tensor.data = value`: the object gets another storage, and views of the old storage keep it.

    The trace tensor moves to the storage of the new values, and residual code makes the assignment. Autograd has saved
    the tensor object itself in earlier operations, so a tensor that the frame makes would have to be an argument of the
    graph that uses it.

    Raises:
        Restart: the frame makes the tensor, which is a view or may be saved by autograd; the next attempt ends the
            graph before the assignment.
    """
    made = vm.source_of(tensor) is None
    if made and (is_view(tensor) or _may_be_saved(vm)):
        stop = Break("tensor.data is assigned", "the tensor object does not exist yet", "write x = value.detach()")
        born = vm.tensors.born.get(id(tensor), -1) if vm.tensors is vm.outermost else -1
        if born < 0:
            raise stop
        raise Restart(born, stop)
    if tensor.requires_grad:
        raise Break(
            "data of a tensor with gradients is assigned", "its history would be lost", "use copy_() in no_grad()"
        )
    if type(value) is not TraceTensor or _kind(value) != _kind(tensor):
        raise Break("tensor.data is assigned a value of another kind", "a graph's inputs keep shape, dtype and device")
    fresh = vm.tensors.run(torch.Tensor.detach, (value,), {}, method="detach")
    tensor.data = fresh
    vm.tensors.nodes[id(tensor)] = vm.tensors.nodes[id(fresh)]
    if made:
        return
    before = vm.effects.stores.get(("attr", id(tensor), "data"))
    vm.effects.store("attr", tensor, "data", fresh)
    now = vm.effects.stores["attr", id(tensor), "data"]
    now.version = version_of(tensor) if before is None else before.version


def _may_be_saved(vm: Interpreter) -> bool:
    """Whether autograd may have saved tensors that the frame made, which then show what they get as their data."""
    return vm.tensors is not vm.outermost or any(each.requires_grad for _, each in vm.tensors.made_tensors())


def _kind(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def delete_attr(vm: Interpreter, obj: object, name: str) -> None:
    """`del obj.name`"""
    set_here = vm.subclasses.attributes(obj) if type(obj) is TraceTensor and vm.subclasses.present else None
    if set_here is not None:
        if name not in set_here or vm.control.branching:
            raise Break(f"del tensor.{name}", "the tensor object does not exist yet")
        del set_here[name]
        return
    deleter = find_in_class(vm, type(obj), "__delattr__")
    if isinstance(deleter, types.FunctionType) and not (isinstance(obj, torch.nn.Module) and deleter is _DELETE):
        vm.call(deleter, (obj, name), {})
    elif type(deleter) not in C_METHODS and type(deleter) is not types.FunctionType:
        raise Break(f"an attribute of a {type(obj).__name__} is deleted", "its __delattr__ is no function")
    elif not _deleted_from_tables(vm, obj, name):
        delete_generic(vm, obj, name)


def _deleted_from_tables(vm: Interpreter, obj: object, name: str) -> bool:
    """Delete a name from the mirror of a module's parameters, buffers or submodules; False if no mirror of them has the
    name."""
    if not isinstance(obj, torch.nn.Module) or not is_external(vm, obj):
        return False
    for table in sources.MEMBERS:
        members = _members(vm, obj.__dict__, table)
        if members is not obj.__dict__.get(table) and name in members:
            vm.work += 1
            del members[name]
            return True
    return False


def delete_generic(vm: Interpreter, obj: object, name: str) -> None:
    """`object.__delattr__(obj, name)`"""
    raw = _of_class(vm, obj, name)
    deleter = getattr(type(raw), "__delete__", None) if raw is not MISS else None
    if type(raw) is property:
        if raw.fdel is None:
            user(property.__delete__, raw, obj)  # raises
        vm.call(raw.fdel, (obj,), {})
    elif isinstance(deleter, types.FunctionType):
        vm.call(deleter, (raw, obj), {})
    elif is_external(vm, obj):
        _expect_attr(vm, obj, name)
        if isinstance(obj, type):
            _refuse_own_record(obj, name)
        taken = mirrored_dict(vm, obj)
        if taken is not None and name in taken:
            del taken[name]
            return
        if type(obj) is types.ModuleType:
            vm.effects.store_variable(vars(obj), name, DELETED)
            return
        vm.effects.delete("attr", obj, name)
    else:
        vm.work += 1
        user(delattr, obj, name)


_GENERIC_DELETERS = (object.__delattr__, types.MethodType.__delattr__)
_OTHERWISE = (type, types.ModuleType, types.FunctionType, torch.nn.Module, torch.Tensor)


def _expect_attr(vm: Interpreter, obj: object, name: str) -> None:
    """Check that a deferred `del obj.name` will succeed. `__getattr__` is not called, because a deletion ignores it.

    Raises:
        UserError: AttributeError, if the object does not have the attribute.
    """
    own = not isinstance(obj, _OTHERWISE)
    attributes = instance_dict(vm, obj) if own else None
    if hasattr(getattr(type(obj), name, None), "__delete__"):
        attributes = None  # a slot or a descriptor
    elif attributes is None and own and type(obj).__delattr__ in _GENERIC_DELETERS:
        user(delattr, obj, name)  # raises: there is no dictionary to delete it from
    store = vm.effects.stores.get(("attr", id(obj), name))
    if attributes is None or store is not None and store.value is not DELETED:
        _expect_value(vm, obj, name)
    elif store is not None or name not in attributes:
        raise no_attribute(vm, obj, name)
    else:
        vm.guards.check(sources.instance_dict(vm.sources[id(obj)]), native.HAS_KEY, name)


def _expect_value(vm: Interpreter, obj: object, name: str) -> None:
    """Raise Python's AttributeError, as `UserError`, if a slot or descriptor is empty."""
    if type(find_in_class(vm, type(obj), name)) is not types.MemberDescriptorType:
        vm.load_attr(obj, name)
        return
    try:
        vm.load_attr(obj, name)
    except UserError as error:  # an empty slot
        if not isinstance(error.error, AttributeError):
            raise
        user_raise(AttributeError(name))
