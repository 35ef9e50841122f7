"""`torch.autograd.grad` in captured code: a node like any other, as long as the history lies within the graph."""

from __future__ import annotations

from typing import Any

import torch

from smelt.capture.breaks import Break
from smelt.capture.registry import special
from smelt.capture.torch_calls import call_torch
from smelt.graph.conditional import conditionals
from smelt.graph.trace import TraceTensor

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


@special(torch.autograd.grad)
def grad(vm: Any, args: Args, kwargs: Kwargs) -> Any:
    """The engine runs on trace tensors, which have the history that the program gave them.

    Raises:
        Break: it would go on in what was computed before the captured function.
    """
    outputs = vm.effects.plain(args[0] if args else kwargs.get("outputs"))
    given = [vm.tensors.real[id(leaf)] for leaf in _leaves(outputs) if id(leaf) in vm.tensors.real]
    for real in given:
        if not real.is_leaf or real._backward_hooks:
            raise Break("torch.autograd.grad of a tensor with a history", "it began before the captured function")
    if conditionals(vm.tensors.graph):
        raise Break("torch.autograd.grad after a branch on a tensor's value", "the graph is differentiated in pieces")
    plain = [vm.sources[id(vm.tensors.traced[id(real)])] for real in given if type(real) is torch.Tensor]
    if plain:
        vm.guards.python(begin_here, plain)
    return call_torch(vm, torch.autograd.grad, args, kwargs)


def begin_here(*tensors: torch.Tensor) -> bool:
    """None of the tensors was computed from others that require gradients, and nobody watches their gradients."""
    return all(tensor.is_leaf and not tensor._backward_hooks for tensor in tensors)


def _leaves(outputs: Any) -> list[torch.Tensor]:
    """The tensors at which the history of the outputs begins."""
    heads = [t for t in (outputs if isinstance(outputs, (list, tuple)) else (outputs,)) if type(t) is TraceTensor]
    found: list[torch.Tensor] = [t for t in heads if t.requires_grad and t.grad_fn is None]
    waiting: list[Any] = [t.grad_fn for t in heads if t.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        function = waiting.pop()
        if hasattr(function, "variable"):
            found.append(function.variable)
        for before, _ in function.next_functions:
            if before is not None and before not in seen:
                seen.add(before)
                waiting.append(before)
    return found
