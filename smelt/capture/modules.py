"""nn.Module: calls of submodules are inlined straight to `forward` when no hook is registered."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module

from smelt.capture import _native as native
from smelt.capture import calls, containers, sources
from smelt.capture.attributes import find_in_class, load_member
from smelt.capture.breaks import Break, user
from smelt.capture.registry import CALL, special
from smelt.capture.stores import store_module_attr

Args = tuple[Any, ...]
Kwargs = dict[str, Any]

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)

_GLOBAL_SOURCES = {name: sources.const(getattr(torch_module, name), name) for name in _GLOBAL_HOOKS}


@CALL(nn.Module)
def call_module(vm: Any, module: nn.Module, args: Args, kwargs: Kwargs) -> Any:
    """`module(*args, **kwargs)`"""
    method = find_in_class(vm, type(module), "__call__")
    if method is not nn.Module.__call__:
        return calls.call_instance(vm, module, args, kwargs)
    return call_impl(vm, (module, *args), kwargs)


@special(nn.Module.__call__, nn.Module._call_impl)
def call_impl(vm: Any, args: Args, kwargs: Kwargs) -> Any:
    """`nn.Module._call_impl`: hooks around `forward`."""
    module = args[0]
    held = module.__dict__
    if held.get("_compiled_call_impl") is not None:
        raise Break("a submodule that torch.compile compiled", "it runs its own compiler")
    source = vm.sources.get(id(module))
    if any(held[name] for name in HOOKS) or any(getattr(torch_module, name) for name in _GLOBAL_HOOKS):
        return call_with_hooks(vm, module, args[1:], kwargs)
    for name in _GLOBAL_HOOKS:
        vm.guards.check(_GLOBAL_SOURCES[name], native.LEN, 0)
    if source is not None:
        vm.guards.check(source, native.MODULE, (None, HOOKS))
    return vm.call(vm.load_attr(module, "forward"), args[1:], kwargs)


def call_with_hooks(vm: Any, module: nn.Module, args: Args, kwargs: Kwargs) -> Any:
    """Forward and its hooks; hooks that act during backward end the graph."""
    held = module.__dict__
    if any(getattr(torch_module, name) for name in _GLOBAL_HOOKS):
        raise Break("global module hooks are registered", "they run Python code around every module")
    if held["_backward_hooks"] or held["_backward_pre_hooks"]:
        raise Break("a module has backward hooks", "they run while gradients are computed")
    for key, hook in list(vm.effects.mirror(vm.load_attr(module, "_forward_pre_hooks")).items()):
        if key in held["_forward_pre_hooks_with_kwargs"]:
            changed = vm.call(hook, (module, args, kwargs), {})
            args, kwargs = (args, kwargs) if changed is None else changed
        else:
            changed = vm.call(hook, (module, args), {})
            args = args if changed is None else changed if isinstance(changed, tuple) else (changed,)
    out = vm.call(vm.load_attr(module, "forward"), args, kwargs)
    for key, hook in list(vm.effects.mirror(vm.load_attr(module, "_forward_hooks")).items()):
        if key in held["_forward_hooks_with_kwargs"]:
            changed = vm.call(hook, (module, args, kwargs, out), {})
        else:
            changed = vm.call(hook, (module, args, out), {})
        out = out if changed is None else changed
    return out


@special(nn.Module.__getattr__)
def module_getattr(vm: Any, args: Args, kwargs: Kwargs) -> Any:
    """`super().__getattr__(name)` of a module"""
    return load_member(vm, *args)


@special(nn.Module.__setattr__)
def module_setattr(vm: Any, args: Args, kwargs: Kwargs) -> None:
    """`super().__setattr__(name, value)` of a module"""
    store_module_attr(vm, *args)


@special(nn.ModuleList.__getitem__, nn.Sequential.__getitem__)
def module_item(vm: Any, args: Args, kwargs: Kwargs) -> Any:
    """An item or a slice of a list of modules; a slice is a list object that lives in the trace only."""
    module, index = args
    members = vm.effects.mirror(vm.load_attr(module, "_modules"))
    items = list(members.values())
    if isinstance(index, slice):
        return ModuleSlice(vm, module, user(items.__getitem__, vm.effects.plain(index)))
    return user(items.__getitem__, containers.operator.index(index))


class ModuleSlice(list[nn.Module]):
    """What `modules[a:b]` gives while capturing: a list of modules; calling it runs them in order (Sequential)."""

    def __init__(self, vm: Any, module: nn.Module, items: list[nn.Module]) -> None:
        super().__init__(items)
        self.vm, self.sequential = vm, isinstance(module, nn.Sequential)


@CALL(ModuleSlice)
def call_slice(vm: Any, modules: ModuleSlice, args: Args, kwargs: Kwargs) -> Any:
    """`sequential[a:b](x)`"""
    if not modules.sequential:
        return user(list, *args)
    (value,) = args
    for module in modules:
        value = vm.call(module, (value,), {})
    return value
