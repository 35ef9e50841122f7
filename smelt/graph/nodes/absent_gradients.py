"""Keeps hooks and custom functions from running without a gradient if a compiled graph gives an input no gradient.

A compiled graph is one node of autograd's engine, which continues from it to all of its inputs. In eager the engine
does not reach inputs on which no used result depends, and so does not call their hooks or the backward methods of
custom functions. After a compiled graph it would call them, with None or zeros.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from smelt.base.torch_private import backward_hooks
from smelt.graph.nodes.engine_nodes import nodes_below


def skipping_absent(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a tensor's hook that is skipped without a gradient."""
    if getattr(hook, "skipping_absent", False):
        return hook

    def called(gradient: torch.Tensor | None) -> Any:
        return None if gradient is None else hook(gradient)

    called.skipping_absent = True  # type: ignore[attr-defined]
    return called


def skipping_absent_of_module(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a module's backward hook (full, or pre-hook) that is skipped if no result of the module has a
    gradient.
    """

    def called(module: Any, *gradients: Any) -> Any:
        return None if all(each is None for each in gradients[-1]) else hook(module, *gradients)

    return called


def skip_absent_below(node: Any) -> None:
    """Prepare for the engine's visit of a node without a gradient.

    Hooks of the leaves below the node, and custom functions there, will not be called.
    """
    for here in nodes_below([node]):
        leaf = getattr(here, "variable", None)
        if leaf is not None:
            skip_absent(backward_hooks(leaf))
        if isinstance(here, BackwardCFunction):
            _SkippedFunction.of(here).expected = True


class _SkippedFunction:
    """A node of a `torch.autograd.Function` whose backward is skipped when it gets no gradient.

    Attributes:
        expected: whether in this backward it may get no gradient; nothing: whether all of its gradients are None.
    """

    __slots__ = ("node", "expected", "nothing")

    def __init__(self, node: Any) -> None:
        self.node = weakref.ref(node)
        self.expected = self.nothing = False

    @staticmethod
    def of(node: Any) -> _SkippedFunction:
        """Returns the object for a node of the engine, which from this call on runs the object's methods."""
        found = getattr(vars(node).get("apply"), "__self__", None)
        if type(found) is not _SkippedFunction:
            found = _SkippedFunction(node)
            # a pre-hook detects absent gradients, for which the function would get zeros
            node.register_prehook(found.before)
            node.apply = found.apply
        return found

    def before(self, gradients: tuple[Any, ...]) -> None:
        self.nothing = self.expected and all(each is None for each in gradients)
        self.expected = False

    def apply(self, *gradients: Any) -> Any:
        """Called by the engine instead of the function's backward."""
        node: Any = self.node()
        return (None,) * len(node.needs_input_grad) if self.nothing else type(node).apply(node, *gradients)


def skip_absent(hooks: dict[int, Callable[..., Any]] | None) -> None:
    """Make all of a tensor's hooks skip absent gradients."""
    for key, hook in list((hooks or {}).items()):
        hooks[key] = skipping_absent(hook)  # type: ignore[index]


def hooks_of(tensor: torch.Tensor) -> Callable[[], dict[int, Callable[..., Any]] | None]:
    """Returns a function that returns the hooks of a tensor that is not a leaf, including later ones. It keeps no
    tensor alive.

    The engine knows only the node that made the tensor, and not its hooks.
    """
    known = backward_hooks(tensor)
    if known is not None:
        return weakref.ref(known)
    weak = weakref.ref(tensor)

    def later() -> dict[int, Callable[..., Any]] | None:
        found = weak()
        return None if found is None else backward_hooks(found)

    return later


def propagate_absent_gradients(node: Any) -> None:
    """Make a custom function's node return None, instead of zeros, if all of its gradients are absent."""
    weak = weakref.ref(node)

    def before(gradients: tuple[Any, ...]) -> None:
        weak().set_materialize_grads(any(each is not None for each in gradients))  # type: ignore[union-attr]

    node.register_prehook(before)
