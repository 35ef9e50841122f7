"""Hooks and functions where a gradient is absent: a compiled graph is one node of autograd's, and may give inputs none.

The engine goes on from such a node to all of its inputs. In eager it would not come to those that no used result
depends on: their hooks, and backward methods of the program, are not called there. Here they would be, with None or
zeros.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from smelt.base.torch_private import backward_hooks
from smelt.graph.nodes.engine_nodes import nodes_below


def only_given(hook: Callable[..., Any]) -> Callable[..., Any]:
    """The hook of a tensor, not called without a gradient."""
    if getattr(hook, "only_given", False):
        return hook

    def called(gradient: torch.Tensor | None) -> Any:
        return None if gradient is None else hook(gradient)

    called.only_given = True  # type: ignore[attr-defined]
    return called


def only_given_of_module(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A backward hook of a module, full or before, not called when no result of the module has a gradient."""

    def called(module: Any, *gradients: Any) -> Any:
        return None if all(each is None for each in gradients[-1]) else hook(module, *gradients)

    return called


def quiet_below(node: Any) -> None:
    """The engine is about to come to a node without a gradient.

    Hooks of the leaves below, and functions of the program there, are not to be called.
    """
    for here in nodes_below([node]):
        leaf = getattr(here, "variable", None)
        if leaf is not None:
            quiet(backward_hooks(leaf))
        if isinstance(here, BackwardCFunction):
            _Skipped.of(here).expected = True


class _Skipped:
    """A `torch.autograd.Function` that the engine comes to without a gradient, in a backward that comes past here.

    Attributes:
        expected: it may be so in this backward; nothing: it is so.
    """

    __slots__ = ("node", "expected", "nothing")

    def __init__(self, node: Any) -> None:
        self.node = weakref.ref(node)
        self.expected = self.nothing = False

    @staticmethod
    def of(node: Any) -> _Skipped:
        """That of a node of the engine, which asks it from now on."""
        found = getattr(vars(node).get("apply"), "__self__", None)
        if type(found) is not _Skipped:
            found = _Skipped(node)
            node.register_prehook(found.before)  # it sees what is absent, where the function is given zeros
            node.apply = found.apply
        return found

    def before(self, gradients: tuple[Any, ...]) -> None:
        self.nothing = self.expected and all(each is None for each in gradients)
        self.expected = False

    def apply(self, *gradients: Any) -> Any:
        """In place of the backward."""
        node: Any = self.node()
        return (None,) * len(node.needs_input_grad) if self.nothing else type(node).apply(node, *gradients)


def quiet(hooks: dict[int, Callable[..., Any]] | None) -> None:
    """None of a tensor's hooks is called without a gradient."""
    for key, hook in list((hooks or {}).items()):
        hooks[key] = only_given(hook)  # type: ignore[index]


def hooks_of(tensor: torch.Tensor) -> Callable[[], dict[int, Callable[..., Any]] | None]:
    """The hooks of a tensor that is no leaf, later: also such as are registered by then. It is not kept alive.

    The engine knows no more than the node that made the tensor.
    """
    known = backward_hooks(tensor)
    if known is not None:
        return weakref.ref(known)
    weak = weakref.ref(tensor)

    def later() -> dict[int, Callable[..., Any]] | None:
        found = weak()
        return None if found is None else backward_hooks(found)

    return later


def pass_on_absent(node: Any) -> None:
    """Let a custom function's node give nothing when it gets nothing, not zeros."""
    weak = weakref.ref(node)

    def before(gradients: tuple[Any, ...]) -> None:
        weak().set_materialize_grads(any(each is not None for each in gradients))  # type: ignore[union-attr]

    node.register_prehook(before)
