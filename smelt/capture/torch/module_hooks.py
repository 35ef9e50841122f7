"""Calls of modules that have hooks: forward hooks are interpreted, backward hooks become eager boundaries."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from smelt.base.class_tables import isinstance
from smelt.capture import _native as native
from smelt.capture.core import sources
from smelt.capture.core.breaks import Break
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.python.effects import items_of
from smelt.capture.tensors.cut_points import refuse_nested_cut
from smelt.graph.nodes.module_hooks import AfterForward, Around, BeforeForward, through
from smelt.graph.trace.trace import TraceTensor

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = tuple(f"_global{name}" for name in HOOKS)
GLOBAL_SOURCES = {name: sources.const(getattr(torch_module, name), name) for name in GLOBAL_HOOKS}


def is_hooked(vm: Interpreter, module: nn.Module) -> bool:
    """Whether a call of the module runs hooks of the module or of all modules, or the program has changed their
    tables.
    """
    attributes = module.__dict__
    tables = [*(attributes[name] for name in HOOKS), *(getattr(torch_module, name) for name in GLOBAL_HOOKS)]
    return any(tables) or any(_is_changed(vm, table) for table in tables) or _is_replaced(vm, module, HOOKS)


def _is_replaced(vm: Interpreter, module: nn.Module, names: tuple[str, ...]) -> bool:
    """Whether the program has assigned a new hook table to the module."""
    return any(("attr", id(module), name) in vm.effects.stores for name in names)


def _is_changed(vm: Interpreter, table: object) -> bool:
    """Whether the program has registered a hook in the table or removed one."""
    mirror = vm.effects.mirrors.get(id(table))
    return mirror is not None and mirror.changed


def call_with_hooks(vm: Interpreter, module: nn.Module, args: Args, kwargs: Kwargs) -> object:
    """Call a module's `forward` and its hooks, in the order of `nn.Module._call_impl`."""
    backward = _backward_hooks(vm, module)
    for hook, with_kwargs in _forward_hooks(vm, module, "_forward_pre_hooks"):
        if with_kwargs:
            with _noting_hook():
                changed = vm.call(hook, (module, args, kwargs), {})
            args, kwargs = (args, kwargs) if changed is None else changed
        else:
            with _noting_hook():
                changed = vm.call(hook, (module, args), {})
            args = args if changed is None else changed if isinstance(changed, tuple) else (changed,)
    around = None
    if backward:
        around, args = _enter_boundary(vm, module, args)
    out = vm.call(vm.load_attr(module, "forward"), args, kwargs)
    for hook, with_kwargs in _forward_hooks(vm, module, "_forward_hooks"):
        with _noting_hook():
            changed = vm.call(hook, (module, args, kwargs, out) if with_kwargs else (module, args, out), {})
        out = out if changed is None else changed
    return out if around is None else _leave_boundary(vm, around, out)


@contextmanager
def _noting_hook() -> Iterator[None]:
    """A context that marks graph breaks inside of it as breaks of a hook."""
    try:
        yield
    except Break as stop:
        stop.of_hook = True
        raise


def _forward_hooks(vm: Interpreter, module: nn.Module, table: str) -> Iterator[tuple[object, bool]]:
    """Pairs (hook, whether it takes keyword arguments) in order of the calls: hooks of all modules come first."""
    name = f"_global{table}"
    shared = vm.effects.mirror(vm.external(getattr(torch_module, name), GLOBAL_SOURCES[name]))
    # forward pre-hooks of all modules never take keyword arguments
    takes_kwargs = getattr(torch_module, f"{name}_with_kwargs", ())
    yield from [(hook, key in takes_kwargs) for key, hook in shared.items()]
    yield from _own_hooks(vm, module, table)


def _own_hooks(vm: Interpreter, module: nn.Module, table: str) -> list[tuple[object, bool]]:
    """The module's own hooks, as pairs (hook, whether it takes keyword arguments).

    The hooks are read by position, not by key: keys count up over all modules of the process, so that a guard on keys
    would hold for only one of many equal blocks.
    """
    own, kwargs_table = module.__dict__[table], f"{table}_with_kwargs"
    takes_kwargs = module.__dict__[kwargs_table]
    source = vm.source_of(vm.load_attr(module, table))
    if (
        source is None
        or any(_is_changed(vm, table) for table in (own, takes_kwargs))
        or _is_replaced(vm, module, (kwargs_table,))
    ):
        takes_kwargs = vm.effects.mirror(vm.load_attr(module, kwargs_table))
        return [(hook, key in takes_kwargs) for key, hook in vm.effects.mirror(vm.load_attr(module, table)).items()]
    items = items_of(own)
    vm.guards.check(source, native.LEN, len(items))
    flags = _kwarg_flags(table)
    if not takes_kwargs:
        vm.guards.check(vm.sources[id(vm.load_attr(module, kwargs_table))], native.LEN, 0)
    elif items:
        vm.guards.check(sources.called(vm.sources[id(module)], flags, flags.__name__), native.EQ, flags(module))
    hooks = [vm.external(hook, sources.dict_value(source, i)) for i, (_, hook) in enumerate(items)]
    return list(zip(hooks, flags(module), strict=True))


@functools.cache
def _kwarg_flags(table: str) -> Callable[[nn.Module], tuple[bool, ...]]:
    """A function that returns, for each hook of a module, whether the hook takes keyword arguments."""

    def flags(module: nn.Module) -> tuple[bool, ...]:
        takes_kwargs = module.__dict__[f"{table}_with_kwargs"]
        return tuple(key in takes_kwargs for key, _ in items_of(module.__dict__[table]))

    flags.__name__ = flags.__qualname__ = f"which_of{table}_take_kwargs"
    return flags


# -- backward hooks ------------------------------------------------------------------------------------------------


def _backward_hooks(vm: Interpreter, module: nn.Module) -> bool:
    """Whether the module has backward hooks, which is guarded; the hooks themselves are looked up when the graph runs.

    Raises:
        Break: the graph cannot take the module as an input, or its hooks are of the deprecated kind.
    """
    tables = [*map(module.__dict__.get, _OF_BACKWARD), *(getattr(torch_module, f"_global{n}") for n in _OF_BACKWARD)]
    if any(_is_changed(vm, table) for table in tables) or _is_replaced(vm, module, _OF_BACKWARD):
        raise Break("a module whose backward hooks the function changes", "which hooks are called is decided later")
    kind = hooks_of_backward(module)
    source = vm.source_of(module)
    if source is None:
        if kind != "none":
            raise Break("a module that was made inside has backward hooks", "the graph cannot be given it")
        return False
    vm.guards.python(_KIND_CHECKS[kind], [source])
    if kind == "old":
        raise Break(
            "register_backward_hook() on a module",
            "it is called with the gradients of the last operation inside",
            "use register_full_backward_hook()",
        )
    return kind == "full"


_OF_BACKWARD = ("_backward_hooks", "_backward_pre_hooks")


def hooks_of_backward(module: nn.Module) -> str:
    """The kind of a module's backward hooks: "none", "full" or "old"."""
    full, old = module._get_backward_hooks()
    return "old" if old else "full" if full or module._get_backward_pre_hooks() else "none"


def _hooks_are(kind: str) -> Callable[[nn.Module], bool]:
    def check(module: nn.Module) -> bool:
        return hooks_of_backward(module) == kind

    check.__name__ = check.__qualname__ = f"backward_hooks_are_{kind}"
    return check


_KIND_CHECKS = {kind: _hooks_are(kind) for kind in ("none", "full", "old")}


def _enter_boundary(vm: Interpreter, module: nn.Module, args: Args) -> tuple[object, Args]:
    """(value that represents this call of the module in the graph, arguments of `forward`)."""
    positions = _differentiable(args)
    if not positions and not torch.is_grad_enabled():
        return None, args
    refuse_nested_cut(vm, "a module with backward hooks")
    owner = vm.tensors.object_input(module, vm.sources[id(module)])
    around = Around()
    seen = _through(vm, [args[i] for i in positions])
    vm.tensors.note(
        (around, *seen), (), False, BeforeForward(len(args), positions), (owner, *(args[i] for i in positions)), {}
    )
    return around, _replaced(args, positions, seen)


def _leave_boundary(vm: Interpreter, around: object, out: object) -> object:
    if not isinstance(out, (torch.Tensor, tuple)):
        text = "For backward hooks to be called, module output should be a Tensor or a tuple of Tensors"
        vm.call(warnings.warn, (f"{text} but received {vm.type_of(out)}",), {"stacklevel": 2})
        return out
    results = out if isinstance(out, tuple) else (out,)
    positions = _differentiable(results)
    if not positions:
        return out
    refuse_nested_cut(vm, "a module with backward hooks")
    seen = _through(vm, [results[i] for i in positions])
    tensors = [results[i] for i in positions]
    vm.tensors.note(tuple(seen), (), False, AfterForward(len(results), positions), (around, *tensors), {})
    return _replaced(results, positions, seen) if isinstance(out, tuple) else seen[0]


def _differentiable(values: Args) -> list[int]:
    """The positions of tensors among the values, if one of them requires gradients; else an empty list."""
    positions = [i for i, value in enumerate(values) if type(value) is TraceTensor]
    return positions if torch.is_grad_enabled() and any(values[i].requires_grad for i in positions) else []


def _through(vm: Interpreter, tensors: list[TraceTensor]) -> list[TraceTensor]:
    return vm.tensors.runner.attempt(through, tuple(tensors), {})[0] if tensors else []


def _replaced(values: Args, positions: list[int], tensors: list[TraceTensor]) -> Args:
    items = list(values)
    for position, tensor in zip(positions, tensors, strict=True):
        items[position] = tensor
    kind: Any = type(values)
    return tuple(items) if kind is tuple else kind(*items)
