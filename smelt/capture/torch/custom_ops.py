"""Calls of operator objects of `torch.library` and of functions of `torch.jit.script`."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch
from torch.library import CustomOpDef

from smelt.base.class_tables import isinstance
from smelt.capture import _native as native
from smelt.capture.calls import calls
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import CALL
from smelt.capture.tensors.torch_calls import call_torch


@CALL(CustomOpDef)
def call_custom_op(vm: Interpreter, op: object, args: Args, kwargs: Kwargs) -> object:
    """Call a custom operator, which becomes one node. An operator that launches Triton kernels is inlined instead, so
    that each launch is a node.

    With gradients, such an operator stays one node as well: its derivative, or the error for a missing derivative,
    belongs to the whole operator.
    """
    body = _launching(vars(op).get("_init_fn"))
    if body is not None and not (torch.is_grad_enabled() and _requires_grad((*args, *kwargs.values()))):
        return vm.call(body, args, kwargs)
    return calls.call_instance(vm, op, args, kwargs)


def _requires_grad(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_requires_grad, value))
    return isinstance(value, torch.Tensor) and value.requires_grad


def _launching(function: object) -> FunctionType | None:
    """The user's function inside an operator of `triton_op`; None for an operator of another kind."""
    if not isinstance(function, FunctionType) or "set_wrap_triton_enabled" not in function.__code__.co_names:
        return None
    values = (cell.cell_contents for cell in function.__closure__ or ())
    return next((value for value in values if isinstance(value, FunctionType)), None)


class ScriptCall:
    """A function of `torch.jit.script` as the target of a graph node; its result depends only on its arguments."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.__name__ = self.__qualname__ = f"{function.name}_scripted"
        self.__module__ = __name__

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self.function(*args, **kwargs)


@CALL(torch.jit.ScriptFunction)
def call_scripted(vm: Interpreter, function: object, args: Args, kwargs: Kwargs) -> object:
    """Call a function of `torch.jit.script`, which becomes one node."""
    source = vm.source_of(function)
    if source is not None:
        vm.guards.check(source, native.IS, function)
    key = id(function), "scripted"
    if key not in vm.reads:
        vm.reads[key] = ScriptCall(function)
    return call_torch(vm, vm.reads[key], args, kwargs)
