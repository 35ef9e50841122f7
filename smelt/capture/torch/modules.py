"""nn.Module: calls of submodules are inlined straight to `forward` when no hook is registered."""

from __future__ import annotations

from torch import nn

from smelt.base.class_tables import isinstance
from smelt.capture import _native as native
from smelt.capture.calls import calls
from smelt.capture.core import compiler_marks
from smelt.capture.core.breaks import user
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import CALL, special
from smelt.capture.python import containers
from smelt.capture.python.attribute_reads import find_in_class, load_member
from smelt.capture.python.attribute_writes import store_module_attr
from smelt.capture.torch.module_hooks import GLOBAL_SOURCES, HOOKS, call_with_hooks, is_hooked

_CALL = vars(nn.Module)["__call__"]  # the original, which a program may replace temporarily


@CALL(nn.Module)
def call_module(vm: Interpreter, module: nn.Module, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `module(*args, **kwargs)`."""
    method = find_in_class(vm, type(module), "__call__")
    if method is not _CALL and not is_hooked(vm, module) and compiler_marks.original_module(module) is not None:
        return vm.call(load_member(vm, module, "_orig_mod"), args, kwargs)  # a module wrapped by torch.compile
    if method is not _CALL:
        return calls.call_instance(vm, module, args, kwargs)
    return call_impl(vm, (module, *args), kwargs)


@special(nn.Module.__call__, nn.Module._call_impl)
def call_impl(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `nn.Module._call_impl`, which calls hooks around `forward`."""
    module = args[0]
    source = vm.sources.get(id(module))
    if is_hooked(vm, module):
        return call_with_hooks(vm, module, args[1:], kwargs)
    for source_of_hooks in GLOBAL_SOURCES.values():
        vm.guards.check(source_of_hooks, native.LEN, 0)
    if source is not None:
        vm.guards.check(source, native.MODULE, (None, HOOKS))
    return vm.equal_calls.call(module, args[1:], kwargs, lambda: _call_forward(vm, module, args[1:], kwargs))


def _call_forward(vm: Interpreter, module: nn.Module, args: Args, kwargs: Kwargs) -> object:
    forward = vm.load_attr(module, "forward")
    vm.python.module_depths.append(len(vm.frames))
    try:
        return vm.call(forward, args, kwargs)
    finally:
        vm.python.module_depths.pop()


@special(nn.Module.__getattr__)
def module_getattr(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `super().__getattr__(name)` of a module."""
    return load_member(vm, *args)


@special(nn.Module.__setattr__)
def module_setattr(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of `super().__setattr__(name, value)` of a module."""
    store_module_attr(vm, *args)


@special(nn.ModuleList.__getitem__, nn.Sequential.__getitem__)
def module_item(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """An item or a slice of a list of modules; a slice is a `ModuleSlice`, which exists only during capture."""
    module, index = args
    members = vm.effects.mirror(vm.load_attr(module, "_modules"))
    items = list(members.values())
    if isinstance(index, slice):
        return ModuleSlice(vm, module, user(items.__getitem__, vm.effects.plain(index)))
    return user(items.__getitem__, containers.operator.index(index))


class ModuleSlice(list[nn.Module]):
    """The result of `modules[a:b]` during capture: a list of modules, callable if `modules` is a Sequential."""

    def __init__(self, vm: Interpreter, module: nn.Module, items: list[nn.Module]) -> None:
        super().__init__(items)
        self.vm, self.sequential = vm, isinstance(module, nn.Sequential)


@CALL(ModuleSlice)
def call_slice(vm: Interpreter, modules: ModuleSlice, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `sequential[a:b](x)`."""
    if not modules.sequential:
        return user(list, *args)
    (value,) = args
    for module in modules:
        value = vm.call(module, (value,), {})
    return value
