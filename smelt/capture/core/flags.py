"""Settings of torch that a program reads: constants of the graph, guarded by reading them at each call.

Settings that nearly every program depends on are among the ambient modes (`calibrate`); these are read by few.
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
"""Functions of torch.backends about the build and the machine."""


def read_flag(vm: Interpreter, fn: Callable[..., object], args: Args) -> object:
    """`fn(*args)` now, guarded to stay the same."""
    value = fn(*args)
    guard_flag(vm, fn, args, value)
    return value


def guard_flag(vm: Interpreter, fn: Callable[..., object], args: Args, value: object) -> None:
    """Guard that `fn(*args)` gives `value` again; it depends on settings of torch."""
    if type(value) in LEAVES and not vm.ambient.log:  # a setting that the program itself switched is not external state
        vm.guards.flag(fn, args, value)


def is_setting(function: types.FunctionType) -> bool:
    """A function written in Python that reads settings of torch."""
    return module_name(function.__module__).startswith("torch.backends") and function.__name__ not in _FIXED


def module_setting(module: types.ModuleType, name: str) -> bool:
    """A setting that a module computes as an attribute: `torch.backends.cudnn.enabled`."""
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
    """`torch.is_grad_enabled()`: one of the ambient modes. It can also be read in inference mode, where it has no
    effect."""
    return torch.is_grad_enabled()


@special(torch.is_inference_mode_enabled)
def inference_mode(vm: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """`torch.is_inference_mode_enabled()`: guarded with the ambient modes, switched off for the capture itself."""
    return bool(vm.ambient.inference)
