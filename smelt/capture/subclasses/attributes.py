"""Attributes of tensors of subclasses: methods, properties and values of the class, and what the program has set."""

from __future__ import annotations

import types

import torch
from torch.utils._pytree import PyTree

from smelt.base.class_tables import isinstance
from smelt.capture.core.breaks import Break, user_raise
from smelt.capture.core.interface import NO_OVERRIDE, Interpreter
from smelt.capture.core.registry import ATTR
from smelt.capture.python.attribute_reads import (
    MISS,
    bind_raw,
    find_in_class,
    guard_absence,
    guard_order,
    is_data_descriptor,
)
from smelt.graph.trace.trace import TraceTensor

_OF_TORCH = {id(raw) for cls in (torch.nn.Parameter, *torch.Tensor.__mro__) for raw in vars(cls).values()}
_KEPT_ALIVE = [vars(cls).copy() for cls in (torch.nn.Parameter, *torch.Tensor.__mro__)]
_NOT_DISPATCHED = frozenset({"__class__", "__dict__", "__torch_function__"})


def read_attr(vm: Interpreter, tensor: TraceTensor, cls: type, name: str) -> object:
    """An attribute of an instance that its class or the program gives; `NO_OVERRIDE` for one that torch gives.

    Args:
        cls: the subclass of the tensor.

    Raises:
        Break: the class computes all attributes (`__getattribute__`).
    """
    if isinstance(find_in_class(vm, cls, "__getattribute__"), types.FunctionType):
        raise Break(f"an attribute of a {cls.__name__}", "its __getattribute__ runs at every read")
    raw = find_in_class(vm, cls, name)
    if raw is not MISS and id(raw) not in _OF_TORCH:
        return _read_own(vm, tensor, cls, name, raw)
    set_here = vm.subclasses.attributes(tensor)
    if set_here is not None and name == "__dict__":
        return set_here
    if set_here is not None and name in set_here:
        return set_here[name]
    if raw is MISS:
        return _read_missing(vm, tensor, cls, name)
    _guard_own(vm, tensor, name, raw)
    if type(raw) in (types.GetSetDescriptorType, property) and name not in _NOT_DISPATCHED:
        if vm.subclasses.overrides(tensor):
            return vm.subclasses.intercept(getattr, (tensor, name), {})
    return NO_OVERRIDE


def _guard_own(vm: Interpreter, tensor: TraceTensor, name: str, raw: object) -> None:
    """Guard that no attribute of an instance from outside hides one of torch's methods."""
    real = vm.tensors.real.get(id(tensor))
    if real is not None and not is_data_descriptor(raw):
        guard_absence(vm, real, name)


def _read_own(vm: Interpreter, tensor: TraceTensor, cls: type, name: str, raw: object) -> object:
    """An attribute for which the class has a function, a property or a value."""
    if not is_data_descriptor(raw):
        set_here = vm.subclasses.attributes(tensor)
        if set_here is not None and name in set_here:
            return set_here[name]
        real = vm.tensors.real.get(id(tensor))
        if real is not None:
            if name in real.__dict__ or id(real.__dict__) in vm.effects.mirrors:
                return NO_OVERRIDE
            guard_absence(vm, real, name)
    return bind_raw(vm, raw, tensor, cls, name, vm.sources.get(id(tensor)))


def _read_missing(vm: Interpreter, tensor: TraceTensor, cls: type, name: str) -> object:
    """An attribute that the class does not have."""
    real = vm.tensors.real.get(id(tensor))
    if real is not None and (name in real.__dict__ or id(real.__dict__) in vm.effects.mirrors):
        return NO_OVERRIDE
    fallback = find_in_class(vm, cls, "__getattr__")
    if isinstance(fallback, types.FunctionType):
        if real is not None:
            guard_absence(vm, real, name)
        return vm.call(fallback, (tensor, name), {})
    if real is not None:
        return NO_OVERRIDE
    return user_raise(AttributeError(f"{cls.__name__!r} object has no attribute {name!r}", name=name, obj=tensor))


def write_attr(vm: Interpreter, tensor: TraceTensor, cls: type, name: str, value: object) -> bool:
    """`tensor.name = value` for an instance; False for an attribute of torch, or of an instance from outside.

    Raises:
        Break: the class has a `__setattr__`, or only one arm of a branch sets the attribute.
    """
    if isinstance(find_in_class(vm, cls, "__setattr__"), types.FunctionType):
        raise Break(f"an attribute of a {cls.__name__} is written", "its __setattr__ runs at every write")
    raw: PyTree = find_in_class(vm, cls, name)
    if raw is not MISS and id(raw) not in _OF_TORCH and is_data_descriptor(raw):
        if type(raw) is not property or raw.fset is None:
            raise Break(f"{cls.__name__}.{name} is written", "a descriptor gets the value")
        vm.call(raw.fset, (tensor, value), {})
        return True
    if id(raw) in _OF_TORCH and is_data_descriptor(raw):
        out = NO_OVERRIDE
        if vm.subclasses.overrides(tensor):
            out = vm.subclasses.intercept(setattr, (tensor, name, value), {})
        return out is not NO_OVERRIDE
    set_here = vm.subclasses.attributes(tensor)
    if set_here is None:
        return False
    if vm.control.branching:
        raise Break(f"tensor.{name} is assigned in a branch", "the tensor object does not exist yet")
    vm.work += 1
    set_here[name] = value
    return True


class TensorSuper:
    """`super(start, tensor)` for a tensor of a subclass."""

    def __init__(self, start: type, tensor: TraceTensor) -> None:
        self.start, self.tensor = start, tensor


@ATTR(TensorSuper)
def load_super_attr(vm: Interpreter, proxy: TensorSuper, name: str) -> object:
    """`super().name` in a method of a subclass of tensors."""
    cls = vm.type_of(proxy.tensor)
    guard_order(vm, cls)
    mro = cls.__mro__
    for base in mro[mro.index(proxy.start) + 1 :]:
        if name not in vars(base):
            continue
        raw = vars(base)[name]
        if id(raw) not in _OF_TORCH:
            found = find_in_class(vm, base, name)
            return bind_raw(vm, found, proxy.tensor, cls, name, vm.sources.get(id(proxy.tensor)))
        if type(raw) in (types.GetSetDescriptorType, property):
            return vm.call(raw.__get__, (proxy.tensor,), {})
        if isinstance(raw, (classmethod, staticmethod)):
            return bind_raw(vm, raw, proxy.tensor, cls, name, None)
        return types.MethodType(raw, proxy.tensor)
    return user_raise(AttributeError(f"'super' object has no attribute {name!r}"))
