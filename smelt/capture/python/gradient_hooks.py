"""Calls of the hooks on leaves whose gradients the captured function computes.

Hooks are interpreted like other functions of the program, and their table is read with guards. Hooks run with gradients
disabled, on the accumulated gradient, in the order in which the autograd engine reaches the leaves.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from smelt.capture.core.breaks import Break, user_raise
from smelt.capture.core.interface import Interpreter
from smelt.graph.trace.trace import TraceTensor

_FIRST = -(1 << 62)
"""Priority of nodes that add to `.grad`: the engine runs them before all other ready nodes."""


def call_hooks(vm: Interpreter, leaf: TraceTensor, gradient: TraceTensor) -> TraceTensor:
    """Call the `register_hook` hooks of a leaf; returns the gradient, or its replacement that the hooks return."""
    for hook in _hooks(vm, leaf, "_backward_hooks"):
        with vm.ambient.gradients(False):
            changed = vm.call(hook, (gradient,), {})
        if changed is None:
            continue
        if type(changed) is not TraceTensor or changed.shape != gradient.shape or changed.dtype != gradient.dtype:
            raise Break("a hook that returns no gradient of the same shape and type", "the engine says what is wrong")
        gradient = changed
    return gradient


def call_late_hooks(vm: Interpreter, leaf: TraceTensor) -> None:
    """Call the `register_post_accumulate_grad_hook` hooks of a leaf, whose `.grad` has been written."""
    for hook in _hooks(vm, leaf, "_post_accumulate_grad_hooks"):
        with vm.ambient.gradients(False):
            result = vm.call(hook, (leaf,), {})
        if result is not None:
            user_raise(RuntimeError("Tensor post accumulate grad hooks should return None."))


def _hooks(vm: Interpreter, leaf: TraceTensor, table: str) -> list[object]:
    hooks = vm.load_attr(leaf, table)
    found = [] if hooks is None else list(vm.effects.mirror(hooks).values())
    return found + [each.hook for each in registered(vm, leaf) if each.name == _REGISTERING[table]]


_REGISTERING = {
    "_backward_hooks": "register_hook",
    "_post_accumulate_grad_hooks": "register_post_accumulate_grad_hook",
}


def registered(vm: Interpreter, tensor: TraceTensor) -> list[Any]:
    """The hooks that the program itself has registered on a tensor."""
    return [each for each in vm.python.hooks.get(id(tensor), ()) if not each.removed]


def _edges_to(nodes: Iterable[torch.autograd.graph.Node]) -> dict[torch.autograd.graph.Node, int]:
    """The number of incoming edges of each node that is reachable from these nodes."""
    waiting: dict[torch.autograd.graph.Node, int] = {}
    found = list(nodes)
    seen = set(found)
    while found:
        for below, _ in found.pop().next_functions:
            if below is not None:
                waiting[below] = waiting.get(below, 0) + 1
                if below not in seen:
                    seen.add(below)
                    found.append(below)
    return waiting


def in_order(roots: Sequence[torch.Tensor], leaves: Sequence[TraceTensor]) -> list[TraceTensor]:
    """The leaves in the order in which the engine reaches them: it runs later operations first, and leaves once they
    are ready."""
    waiting = _edges_to(root.grad_fn for root in roots if root.grad_fn is not None)
    count = itertools.count()
    ready: list[tuple[int, int, Any]] = []

    def push(node: Any) -> None:
        order = _FIRST if hasattr(node, "variable") else -node._sequence_nr()
        heapq.heappush(ready, (order, next(count), node))

    for root in dict.fromkeys(root.grad_fn for root in roots):
        if root is not None and not waiting.get(root):
            push(root)
    position: dict[int, int] = {}
    while ready:
        node = heapq.heappop(ready)[2]
        if hasattr(node, "variable"):
            position.setdefault(id(node.variable), len(position))
        for below, _ in node.next_functions:
            if below is not None:
                waiting[below] -= 1
                if not waiting[below]:
                    push(below)
    return sorted(leaves, key=lambda leaf: position.get(id(leaf), -1))
