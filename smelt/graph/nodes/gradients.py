"""Derivatives as a graph node, for a program whose hooks are nodes of the same graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.base.torch_c import engine_in_this_thread
from smelt.base.torch_private import backward_hooks, set_backward_hooks

_KEEPING = "_smelt_keeps_absent"


def note_keeping(cls: type, results: Any) -> None:
    """Mark these results as made by a `torch.autograd.Function` with `set_materialize_grads(False)`.

    The engine's node does not show that.
    """
    for result in results if isinstance(results, (tuple, list)) else (results,):
        node = result.grad_fn if isinstance(result, torch.Tensor) else None
        if getattr(type(node), "_forward_cls", None) is cls:
            setattr(node, _KEEPING, True)


def keeps_absent(node: Any) -> bool:
    """Whether the backward of an engine node gets None, instead of zeros, for a result that is not used."""
    return getattr(node, _KEEPING, False)


def gradients(
    outputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor], tangents: Sequence[Any], retain_graph: bool = False
) -> tuple[torch.Tensor | None, ...]:
    """Compute `torch.autograd.grad` without calling the hooks of the leaves, whose calls are nodes of the graph.

    The engine runs in this thread: in another thread, trace tensors on CUDA would be taken for real ones during
    capture.
    """
    hooks_of_leaves = [backward_hooks(leaf) for leaf in leaves]
    try:
        for leaf, hooks in zip(leaves, hooks_of_leaves, strict=True):
            if hooks:
                set_backward_hooks(leaf, None)
        with engine_in_this_thread():
            return torch.autograd.grad(outputs, leaves, tangents, retain_graph=retain_graph, allow_unused=True)
    finally:
        for leaf, hooks in zip(leaves, hooks_of_leaves, strict=True):
            if hooks:
                set_backward_hooks(leaf, hooks)


DERIVATIVES = frozenset({torch.autograd.grad, torch.autograd.backward, gradients})
"""Functions that run the autograd engine."""
