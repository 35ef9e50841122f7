"""`torch.func.functional_call`: a module runs with other tensors in place of its parameters and buffers."""

from __future__ import annotations

from typing import Any

import torch

from smelt.base.class_tables import isinstance
from smelt.capture.core.breaks import Break, user, user_raise
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import special


def _signature(
    module: object,
    parameter_and_buffer_dicts: object,
    args: object = None,
    kwargs: object = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    if strict:
        raise Break("functional_call(strict=True)", "the names are compared when it runs")
    return module, parameter_and_buffer_dicts, args, kwargs or {}, tie_weights


@special(torch.func.functional_call)
def functional_call(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `functional_call`: the modules' tables, as the program sees them, contain the given tensors
    during the call.
    """
    module, given, inputs, named, tied = user(_signature, *args, **kwargs)
    dicts = [vm.effects.plain(each) for each in (given if isinstance(given, (tuple, list)) else (given,))]
    if not all(isinstance(each, dict) for each in dicts):
        user_raise(TypeError("functional_call wants a dictionary of parameters and buffers, or several"))
    if tied and _shares(module):
        raise Break("functional_call of a module with tied weights", "one tensor has several names")
    inputs = () if inputs is None else inputs if isinstance(inputs, tuple) else (inputs,)
    before: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for path, tensor in [item for each in dicts for item in each.items()]:
            owner, table, name = _slot(vm, module, path)
            before.append((table, name, table[name]))
            table[name] = tensor
            vm.reads.pop((id(owner), name), None)
        return vm.call(module, inputs, vm.effects.plain(named))
    finally:
        for table, name, tensor in reversed(before):
            table[name] = tensor


def _slot(vm: Interpreter, module: object, path: str) -> tuple[Any, dict[str, Any], str]:
    """(module, table of the module, name in the table) of the parameter or buffer at a dotted path."""
    *parents, name = path.split(".")
    for parent in parents:
        module = vm.load_attr(module, parent)
    for table in ("_parameters", "_buffers"):
        if name in module.__dict__.get(table, ()):
            if vm.source_of(module) is None:
                raise Break("functional_call of a module that the function makes")
            return module, vm.effects.mirror(vm.load_attr(module, table)), name
    raise Break(f"functional_call with the unknown name {path}")


def _shares(module: torch.nn.Module) -> bool:
    tensors = [id(t) for _, t in module.named_parameters(remove_duplicate=False)]
    tensors += [id(t) for _, t in module.named_buffers(remove_duplicate=False)]
    return len(set(tensors)) != len(tensors)
