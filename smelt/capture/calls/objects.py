"""Calls of classes: make objects as `type.__call__` does, with Python `__new__` and `__init__` interpreted."""

from __future__ import annotations

import builtins
import copyreg
import enum
import types
import weakref
from collections.abc import Callable

import torch

from smelt.base import torch_c
from smelt.base.class_tables import isinstance
from smelt.base.python_text import module_name
from smelt.base.torch_c import DISPATCH_GUARDS
from smelt.capture.calls import calls
from smelt.capture.core.breaks import Break, user
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.made_classes import note_statement
from smelt.capture.core.registry import CALL, SPECIAL, special
from smelt.capture.core.values import HEAP, IMMUTABLE_TYPE, LEAVES, is_written
from smelt.capture.python.attribute_reads import find_in_class, load_generic, python_method
from smelt.capture.python.effects import CONTAINERS
from smelt.capture.tensors.tensors import READABLE, unreadable
from smelt.graph.trace.trace import TraceTensor


@CALL(type)
def call_class(vm: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `cls(*args, **kwargs)`."""
    meaning = SPECIAL.get(id(cls))
    if meaning is not None:
        return meaning(vm, args, kwargs)
    if cls in DISPATCH_GUARDS:  # an object made during capture would act on the capture itself
        raise Break(f"torch._C.{cls.__name__}()", "it changes how this thread dispatches operators while it lives")
    if cls in READABLE or issubclass(cls, torch.Tensor) and unreadable(cls) and not _python_method(vm, cls, "__new__"):
        raise Break(f"a {cls.__name__} is made", "a graph makes plain tensors only", "make it outside of the function")
    maker = type.__call__ if type(cls) is type else find_in_class(vm, type(cls), "__call__")
    if isinstance(maker, types.FunctionType) and not issubclass(cls, enum.Enum):
        return vm.call(maker, (cls, *args), kwargs)
    if isinstance(maker, type):  # Python does not bind a class here: the `__call__` of `TypedDict` is `dict`
        return vm.call(maker, args, kwargs)
    if cls in LEAVES or issubclass(cls, (enum.Enum, BaseException)) and not _python_method(vm, cls, "__init__"):
        return calls.call_native(vm, cls, args, kwargs)
    return construct(vm, cls, args, kwargs)


@special(vars(type)["__call__"])
def call_type(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `super().__call__(*args)` in a metaclass."""
    if not args or not isinstance(args[0], type) or args[0] is type:
        return user(type.__call__, *args, **kwargs)
    return construct(vm, args[0], args[1:], kwargs)


@special(builtins.__build_class__)
def build_class(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Refuse a class statement: C code runs its body."""
    frame = vm.frames[-1]
    note_statement(module_name(frame.globals.get("__name__")), frame.code.co_qualname, args[1])
    raise Break("a class is defined", "class bodies are not captured", "define it outside of the function")


def construct(vm: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `type.__call__(cls, ...)`: calls `__new__`, then `__init__` if `__new__` returned an
    instance.
    """
    if _has_finalizer(cls):
        raise Break(f"a {cls.__name__} is made", "its __del__ runs when Python drops it")
    new, init = _python_method(vm, cls, "__new__"), _python_method(vm, cls, "__init__")
    if new is None and issubclass(cls, torch.Tensor):
        new = torch_c.tensor_maker
    if new is None and init is None:
        return calls.call_native(vm, cls, args, kwargs)
    vm.work += 1
    if new is not None:
        obj = vm.call(new, (cls, *args), kwargs)
    elif cls.__new__ is object.__new__:
        obj = user(object.__new__, cls)
    else:
        obj = calls.call_native(vm, cls.__new__, (cls, *args), kwargs)
    if not issubclass(vm.type_of(obj), cls):
        return obj
    if init is not None:
        vm.call(init, (obj, *args), kwargs)
    elif type(obj) is not TraceTensor and (start := getattr(cls, "__init__")) is not object.__init__:  # noqa: B009
        calls.call_native(vm, start, (obj, *args), kwargs)
    return obj


def _has_finalizer(cls: type) -> bool:
    """Whether a class of the program has a `__del__`, also one inherited from a C class: the `__del__` of files calls
    `close` and `flush`.
    """
    flags = cls.__flags__
    return bool(flags & HEAP and not flags & IMMUTABLE_TYPE) and any("__del__" in vars(base) for base in cls.__mro__)


def _python_method(vm: Interpreter, cls: type, name: str) -> object:
    """The class's `__new__` or `__init__` if it is written in Python, else None."""
    raw = find_in_class(vm, cls, name)
    raw = raw.__func__ if isinstance(raw, staticmethod) else raw
    return raw if isinstance(raw, types.FunctionType) else None


def _register_weak_references() -> None:
    for fn, first in ((weakref.ref, 0), (vars(weakref.ref)["__new__"], 1), (weakref.proxy, 0)):

        def make(
            vm: Interpreter, args: Args, kwargs: Kwargs, fn: Callable[..., object] = fn, first: int = first
        ) -> object:
            callback = args[first + 1] if len(args) > first + 1 else None
            if callback is not None and not _is_weak_table_callback(callback):
                raise Break(
                    "a weak reference with a callback is made",
                    "Python calls it when the object dies",
                    "keep it outside",
                )
            if fn is weakref.proxy:
                raise Break("a weak proxy is made", "Python knows whether its object lives when it is asked")
            return calls.call_native(vm, fn, args, kwargs)

        special(fn)(make)


def _is_weak_table_callback(callback: object) -> bool:
    """Whether the callback belongs to a weak container of Python's library; it calls no code of the program."""
    named = type(callback) is types.FunctionType and (module_name(callback.__module__), callback.__name__)
    return named in (("weakref", "remove"), ("_weakrefset", "_remove"))


_register_weak_references()


@special(object.__reduce_ex__)
def reduce_object(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `object.__reduce_ex__(protocol)`, by which `copy` reads an object's state; the state is
    guarded.
    """
    if not args or id(args[0]) not in vm.sources or isinstance(args[0], CONTAINERS):
        return calls.call_native(vm, object.__reduce_ex__, args, kwargs)
    obj, cls = args[0], type(args[0])
    own = python_method(vm, obj, "__reduce__")
    if own is not None:
        return vm.call(own, (obj,), {})
    special_state = any(_python_method(vm, cls, name) for name in ("__getnewargs__", "__getnewargs_ex__"))
    if args[1:] < (2,) or special_state or not _is_plain(cls):
        raise Break(
            f"a {cls.__name__} is taken apart to be copied",
            "the object was made outside of the function, and C code does it",
        )
    if isinstance(find_in_class(vm, cls, "__getattribute__"), types.FunctionType):
        for name in ("__reduce__", "__getstate__"):  # the result is unused: the class has no method of this name
            vm.load_attr(obj, name)
    return vars(copyreg)["__newobj__"], (cls,), _state(vm, obj), None, None


@special(object.__getstate__)
def object_state(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `object.__getstate__()`."""
    if len(args) != 1 or id(args[0]) not in vm.sources or isinstance(args[0], CONTAINERS):
        return calls.call_native(vm, object.__getstate__, args, kwargs)
    if not _is_plain(type(args[0])):
        raise Break(
            f"the state of a {type(args[0]).__name__}",
            "the object was made outside of the function, and C code reads it",
        )
    return _attributes(vm, args[0])


def _is_plain(cls: type) -> bool:
    """Whether instances of a class have no state besides a dictionary of attributes."""
    if cls.__reduce__ is not object.__reduce__ or cls.__reduce_ex__ is not object.__reduce_ex__:
        return False
    return is_written(cls) and cls.__dictoffset__ != 0 and not copyreg._slotnames(cls)  # type: ignore[attr-defined]


def _state(vm: Interpreter, obj: object) -> object:
    """The state that `copy` gives to a new object."""
    own = python_method(vm, obj, "__getstate__")
    return _attributes(vm, obj) if own is None else vm.call(own, (obj,), {})


def _attributes(vm: Interpreter, obj: object) -> object:
    """An object's attributes in a new dictionary, which `deepcopy` may use as a key by address; None without
    attributes.
    """
    attributes = load_generic(vm, obj, type(obj), "__dict__", vm.sources.get(id(obj)))  # C code reads it without a hook
    return dict(vm.effects.mirror(attributes)) or None
