"""Settings of torch that a program reads. They are constants of the graph, and guards read them at each call.

Settings that nearly every program depends on are ambient modes instead (`calibrate`); few programs read these.
"""

from __future__ import annotations

import types
from collections.abc import Callable

import torch

from smelt.base import torch_c
from smelt.base.class_tables import isinstance
from smelt.base.python_text import module_name
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import special
from smelt.capture.core.values import LEAVES

_FIXED = frozenset({"is_available", "is_built", "version", "is_macos13_or_newer", "is_macos_or_newer", "get_arch_list"})
"""Functions of torch.backends whose results depend only on the build and the machine: they need no guard."""


def read_flag(vm: Interpreter, fn: Callable[..., object], args: Args) -> object:
    """The present result of `fn(*args)`, with a guard that it stays the same."""
    value = fn(*args)
    guard_flag(vm, fn, args, value)
    return value


def guard_flag(vm: Interpreter, fn: Callable[..., object], args: Args, value: object) -> None:
    """Guard that `fn(*args)`, which reads settings of torch, returns `value` at later calls, too."""
    if type(value) in LEAVES and not vm.ambient.log:  # a setting that the program itself switched is not external state
        vm.guards.flag(fn, args, value)


def is_setting(function: types.FunctionType) -> bool:
    """Whether the function is one of torch.backends, written in Python, that reads settings."""
    return module_name(function.__module__).startswith("torch.backends") and function.__name__ not in _FIXED


def module_setting(module: types.ModuleType, name: str) -> bool:
    """Whether an attribute of a module is a computed setting of torch, such as `torch.backends.cudnn.enabled`."""
    kind = type(module)
    if kind is types.ModuleType or not module_name(vars(module).get("__name__")).startswith("torch."):
        return False
    raw = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
    return isinstance(getattr(type(raw), "__get__", None), types.FunctionType) or isinstance(raw, property)


def _register() -> None:
    for fn in torch_c.SETTINGS:

        def read(vm: Interpreter, args: Args, kwargs: Kwargs, fn: Callable[..., object] = fn) -> object:
            return read_flag(vm, fn, args)

        special(fn)(read)


_register()


@special(torch.is_grad_enabled)
def grad_mode(vm: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """`torch.is_grad_enabled()`, which is one of the ambient modes and can also be read in inference mode."""
    return torch.is_grad_enabled()


@special(torch.is_inference_mode_enabled)
def inference_mode(vm: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """`torch.is_inference_mode_enabled()`: guarded with the ambient modes; capture itself runs outside of that mode."""
    return bool(vm.ambient.inference)
