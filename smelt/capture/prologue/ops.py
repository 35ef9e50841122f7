"""Python's operators, functions and attributes applied to prologue values (`prologue.prologue`)."""

from __future__ import annotations

import random
import types
from collections.abc import Callable, MutableSequence
from typing import Any

import numpy
import torch

from smelt.base.class_tables import classes, isinstance
from smelt.capture import _native as native
from smelt.capture.arrays import methods as array_methods
from smelt.capture.arrays.array import TensorArray
from smelt.capture.core import sources
from smelt.capture.core.breaks import Break
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.prologue_value import PrologueMethod, PrologueValue, values_in
from smelt.capture.core.registry import ATTR, CALL, READ, special
from smelt.capture.core.sources import Source
from smelt.capture.core.values import read_object
from smelt.capture.prologue.calls import CLOCKS, MAKERS, SOURCES, is_numpy, is_plain
from smelt.capture.prologue.functions import call_whole
from smelt.capture.prologue.source import GENERATOR_CLASSES, GENERATORS
from smelt.capture.tensors.torch_calls import call_torch
from smelt.graph.trace.trace import TraceTensor

_MAKING = classes(type(numpy.random.default_rng), type)

_KIND = frozenset({"shape", "dtype", "ndim", "size", "itemsize", "nbytes", "strides"})
"""Attributes of arrays that the array's kind determines."""


def _guard_identity(vm: Interpreter, fn: object) -> None:
    source = vm.source_of(fn)
    if source is not None:
        vm.guards.check(source, native.IS, fn)


def call(vm: Interpreter, fn: object, args: Args, kwargs: Kwargs) -> object:
    """Record a call as a prologue operation; NotImplemented if the call is not one."""
    kind = type(fn)
    if type(fn) is types.MethodType:
        if type(fn.__self__) in GENERATOR_CLASSES:
            _guard_identity(vm, fn)
            return draw(vm, fn.__self__, fn.__name__, args, kwargs)
        return NotImplemented
    if type(fn) is types.BuiltinFunctionType and type(fn.__self__) in GENERATOR_CLASSES:
        return draw(vm, fn.__self__, fn.__name__, args, kwargs)
    if type(fn) is types.FunctionType:
        return call_whole(vm, fn, args, kwargs)
    if kind in _MAKING and (fn in SOURCES or fn in MAKERS):
        _guard_identity(vm, fn)
        return vm.prologue.run(fn, args, kwargs)
    if not vm.prologue.ops and not vm.prologue.arrays:  # there are no prologue values yet
        return NotImplemented
    if any(True for _ in values_in((args, kwargs))) and is_plain(fn):
        return vm.prologue.run(fn, args, kwargs)
    return NotImplemented


def draw(vm: Interpreter, generator: object, name: str, args: Args, kwargs: Kwargs) -> object:
    """Call a method of an external random generator."""
    if name in _STATES:
        raise Break(f"a call of {type(generator).__name__}.{name}", "it hands out the state of a generator")
    return _drawn(vm, generator, generator, name, args, kwargs)


def _drawn(vm: Interpreter, generator: object, example: object, name: str, args: Args, kwargs: Kwargs) -> object:
    if name == "shuffle" and any(isinstance(arg, MutableSequence) for arg in (*args, *kwargs.values())):
        raise Break("a list is shuffled", "the order differs from call to call", "torch.randperm")
    if name in ("choice", "sample", "choices") and isinstance(example, random.Random):
        args = (_as_indices(vm, args[0]), *args[1:]) if args else args
    return vm.prologue.run(None, (generator, *args), kwargs, method=name)


_STATES = frozenset({"getstate", "setstate", "get_state", "set_state", "__setstate__", "__getstate__", "__reduce__"})


def _as_indices(vm: Interpreter, value: object) -> object:
    items = vm.effects.plain(value)
    if any(type(item) is TraceTensor for item in items if isinstance(items, (list, tuple))):
        raise Break("a random choice of tensors", "which one it is differs from call to call")
    return items


@READ(numpy.ndarray)
def read_array(vm: Interpreter, value: object, source: Source) -> object:
    """Read an external array: its dtype, shape and strides are guarded, and the prologue reads its elements at each
    call.
    """
    if type(value) is not numpy.ndarray or value.dtype.hasobject or value.dtype.names is not None:
        return read_object(vm, value, source)
    vm.guards.check(source, native.TYPE_IS, numpy.ndarray)
    vm.guards.check(sources.called(source, layout, "layout"), native.EQ, layout(value))
    vm.register(value, source)
    return vm.prologue.external(value, source)


def layout(array: numpy.ndarray) -> tuple[object, ...]:
    """The guarded properties of an array."""
    return array.dtype.str, array.shape, array.strides, array.flags.writeable


@ATTR(PrologueValue)
def load_attr(vm: Interpreter, value: PrologueValue, name: str) -> object:
    """An attribute or a method of a prologue value."""
    example = value.example
    if name == "__class__":
        return type(example)
    if name in _KIND and isinstance(example, (numpy.ndarray, numpy.generic)):
        vm.prologue.shape(value)
        return getattr(example, name)
    raw = getattr(type(example), name, None)
    if callable(raw):
        return PrologueMethod(value, name)
    return vm.prologue.run(getattr, (value, name), {})


@ATTR(PrologueMethod)
def load_method_attr(vm: Interpreter, method: PrologueMethod, name: str) -> object:
    """An attribute of a method of a prologue value, such as its name, which does not follow from the value."""
    if name == "__self__":
        return method.owner
    if name not in _OF_METHODS:
        raise Break(f"{name} of a method of a {type(method.owner.example).__name__}", "it may follow from the value")
    return getattr(getattr(method.owner.example, method.name), name)


_OF_METHODS = ("__name__", "__qualname__", "__module__", "__doc__", "__class__", "__text_signature__")


@CALL(PrologueMethod)
def call_method(vm: Interpreter, method: PrologueMethod, args: Args, kwargs: Kwargs) -> object:
    """Call a method of a prologue value."""
    if isinstance(method.owner.example, GENERATORS):
        return _drawn(vm, method.owner, method.owner.example, method.name, args, kwargs)
    return vm.prologue.run(None, (method.owner, *args), kwargs, method=method.name)


def numpy_call(vm: Interpreter, fn: object, args: Args, kwargs: Kwargs) -> object:
    """Call a NumPy function on plain data; NotImplemented for other arguments or functions."""
    if not is_numpy(fn):
        return NotImplemented
    return vm.prologue.run(fn, args, kwargs)


def _register() -> None:
    for fn in CLOCKS:

        def read(vm: Interpreter, args: Args, kwargs: Kwargs, fn: Callable[..., object] = fn) -> object:
            return vm.prologue.run(fn, args, kwargs)

        special(fn)(read)


_register()

# -- tensors of arrays ------------------------------------------------------------------------------------------------


@special(torch.from_numpy)
def from_numpy(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `torch.from_numpy(array)`."""
    (value,) = args
    if type(value) is TensorArray:
        return array_methods.to_tensor(vm, value)
    vm.prologue.shares(value)
    return _shared_tensor(vm, value)


def _shared_tensor(vm: Interpreter, value: PrologueValue) -> TraceTensor:
    out = vm.prologue.inputs.tensor(vm.prologue.run(torch.from_numpy, (value,), {}))
    vm.tensors.forbid_writes(out)
    return out


@special(torch.as_tensor)
def as_tensor(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `torch.as_tensor(data)`, whose result may share the memory of an array."""
    value = args[0] if args else kwargs.get("data")
    if type(value) is TensorArray:
        return array_methods.as_tensor(vm, value, kwargs)
    if not any(True for _ in values_in((args, kwargs))):
        return call_torch(vm, torch.as_tensor, args, kwargs)
    if type(value) is PrologueValue and isinstance(value.example, numpy.ndarray):
        vm.prologue.shares(value)
    out = tensor_of(vm, torch.as_tensor, args, kwargs)
    vm.tensors.forbid_writes(out)
    return out


def tensor_of(vm: Interpreter, fn: Callable[..., object], args: Args, kwargs: Kwargs) -> Any:
    """A new tensor made of numbers and arrays; the prologue makes it on the CPU."""
    named = dict(kwargs)
    device, dtype, grad = named.pop("device", None), named.pop("dtype", None), named.pop("requires_grad", False)
    if named.pop("pin_memory", False):
        raise Break("torch.tensor(pin_memory=True)")
    data = args[0] if args else named.pop("data")
    named["dtype"], named["device"] = dtype, torch.device("cpu")
    out = vm.prologue.inputs.tensor(vm.prologue.run(fn, (data,), named))
    device = torch.get_default_device() if device is None else torch.device(device)
    if device.type != "cpu":
        out = vm.tensors.run(torch.Tensor.to, (out, device), {}, method="to")
    return vm.tensors.make_leaf(out) if grad else out
