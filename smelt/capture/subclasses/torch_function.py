"""Captured forms of `__torch_function__`: torch's default, the contexts that switch it off, the tests for overrides."""

from __future__ import annotations

import torch
import torch.overrides
from torch.utils._pytree import PyTree

from smelt.base import torch_c
from smelt.base.class_tables import isinstance
from smelt.capture.core.breaks import Break, CannotRebuild, user, user_raise
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import REBUILD, TENSOR_METHODS, Rebuilder, special
from smelt.capture.python import containers
from smelt.capture.subclasses.probes import Dispatch
from smelt.graph.trace.trace import TraceTensor

_alias = torch.ops.aten.alias.default


@special(torch_c.default_torch_function)
def default_torch_function(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `super().__torch_function__(func, types, args, kwargs)`."""
    return _default(vm, *args, **kwargs)


def _default(
    vm: Interpreter, cls: type, func: PyTree, types: PyTree, args: PyTree = (), kwargs: PyTree = None
) -> object:
    plain = vm.effects.plain
    if not all(issubclass(cls, kind) for kind in plain(types)):
        return NotImplemented
    given, named = plain(args), plain(kwargs)
    before = vm.ambient.torch_functions
    vm.ambient.torch_functions = False, before[1]
    try:
        out = vm.call(func, tuple(given), dict(named or {}))
    finally:
        vm.ambient.torch_functions = before
    if func in torch.overrides.get_default_nowrap_functions():
        return out
    return _as_class(vm, out, cls)


def _as_class(vm: Interpreter, value: PyTree, cls: type) -> PyTree:
    """A result of torch as torch's default gives it: tensors get the class, unless they are instances of it."""
    if cls is torch.Tensor:
        return value
    if type(value) is TraceTensor:
        return value if issubclass(vm.type_of(value), cls) else as_subclass(vm, value, cls)
    if isinstance(value, (tuple, list)) and _holds_tensors(value):
        items = [_as_class(vm, each, cls) for each in value]
        return type(value)(items) if not hasattr(value, "_fields") else type(value)(*items)
    return value


def _holds_tensors(value: PyTree) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_holds_tensors, value))
    return type(value) is TraceTensor


# -- tests for overrides -------------------------------------------------------------------------------------------


@special(torch.overrides.has_torch_function)
def has_torch_function(vm: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Captured form of `has_torch_function(values)`."""
    return vm.subclasses.present and bool(vm.subclasses.overridden(tuple(vm.effects.plain(args[0]))))


@special(torch.overrides.has_torch_function_unary, torch.overrides.has_torch_function_variadic)
def has_torch_function_of(vm: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Captured form of `has_torch_function_unary(value)` and `has_torch_function_variadic(*values)`."""
    return vm.subclasses.present and bool(vm.subclasses.overridden(args))


@special(torch.overrides.handle_torch_function)
def handle_torch_function(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `handle_torch_function(public_api, relevant_args, *args, **kwargs)`."""
    func, relevant, *given = args
    kinds: list[type] = []
    for tensor in vm.subclasses.overridden(tuple(vm.effects.plain(relevant))):
        cls = vm.type_of(tensor)
        if cls not in kinds:  # subclasses are asked before their superclasses
            kinds.insert(next((i for i, kind in enumerate(kinds) if issubclass(cls, kind)), len(kinds)), cls)
    found = Dispatch(tuple(kinds), func, (func, tuple(kinds), tuple(given), kwargs))
    return vm.subclasses.dispatch(found, (*given, tuple(relevant)), kwargs, lambda: _unimplemented(func, kinds))


def _unimplemented(func: PyTree, kinds: list[type]) -> TypeError:
    name = f"{func.__module__}.{func.__name__}"
    return TypeError(f"no implementation found for '{name}' on types that implement __torch_function__: {kinds}")


# -- contexts ------------------------------------------------------------------------------------------------------

_CONTEXTS: dict[PyTree, bool] = {torch_c.without_torch_function: False, torch_c.without_any_torch_function: True}
"""Class of a context -> whether modes are ignored as well."""


def _register_contexts() -> None:
    for kind, ignores_modes in _CONTEXTS.items():

        def enter(vm: Interpreter, args: Args, kwargs: Kwargs, all_off: bool = ignores_modes) -> object:
            before = vm.ambient.torch_functions
            vm.python.contexts[id(args[0])] = before
            vm.keep(args[0])
            vm.ambient.switch_torch_functions((False, all_off or before[1]))
            return None

        def leave(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
            vm.ambient.switch_torch_functions(vm.python.contexts.get(id(args[0]), (True, False)))

        special(vars(kind)["__enter__"])(enter)
        special(vars(kind)["__exit__"])(leave)

        def make(vm: Interpreter, args: Args, kwargs: Kwargs, kind: PyTree = kind) -> object:
            return user(kind, *args, **kwargs)

        special(kind)(make)


_register_contexts()


@REBUILD(*_CONTEXTS)
def rebuild_context(r: Rebuilder, value: object) -> str:
    """A new context in place of one that the program has entered: when it ends, it switches the functions on.

    Raises:
        CannotRebuild: the functions were not on when the program entered it.
    """
    if r.vm.python.contexts.get(id(value), (True, False)) != (True, False):
        raise CannotRebuild(f"a {type(value).__name__} inside of another one")
    return f"{r.constant(type(value), type(value).__name__)}()"


# -- instances that the frame makes --------------------------------------------------------------------------------


def as_subclass(vm: Interpreter, tensor: PyTree, cls: PyTree) -> object:
    """Captured form of `tensor.as_subclass(cls)`."""
    if not isinstance(cls, type) or not issubclass(cls, torch.Tensor):
        return user(torch.Tensor.as_subclass, torch.empty(0), cls)  # raises
    return vm.subclasses.adopt(vm.tensors.run(_alias, (tensor,), {}), cls)


TENSOR_METHODS["as_subclass"] = as_subclass
TENSOR_METHODS |= {
    "__iter__": containers.iterate,
    "__len__": containers.length,
    "__getitem__": containers.subscript,
    "__setitem__": containers.store_item,
    "__contains__": containers.contains,
    "__int__": lambda vm, tensor: vm.call(int, (tensor,), {}),
    "__float__": lambda vm, tensor: vm.call(float, (tensor,), {}),
    "__complex__": lambda vm, tensor: vm.call(complex, (tensor,), {}),
}


@special(torch.Tensor._make_subclass)
def make_subclass(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `torch.Tensor._make_subclass(cls, data, require_grad=False)`."""
    return _make_subclass(vm, *args, **kwargs)


def _make_subclass(vm: Interpreter, cls: PyTree, data: PyTree, require_grad: bool = False, **others: object) -> object:
    if type(data) is not TraceTensor or any(others.values()) or issubclass(cls, torch.nn.Parameter):
        raise Break(f"a {getattr(cls, '__name__', cls)} is made", "a graph makes no tensors of this kind")
    out = vm.tensors.run(torch.Tensor.detach, (data,), {}, method="detach")
    return vm.subclasses.adopt(vm.tensors.make_leaf(out) if require_grad else out, cls)


@special(torch_c.tensor_maker)
def make_tensor(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `torch.Tensor.__new__(cls, data)`."""
    cls, *given = args
    if not isinstance(cls, type) or not issubclass(cls, torch.Tensor):
        user_raise(TypeError("torch.Tensor.__new__(X): X is not a subclass of torch.Tensor"))
    if len(given) == 1 and type(given[0]) is TraceTensor and not kwargs:
        return as_subclass(vm, given[0], cls)
    raise Break(f"a {cls.__name__} is made", "a graph makes plain tensors only", "make it outside of the function")
