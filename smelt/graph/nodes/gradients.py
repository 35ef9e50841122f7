"""Derivatives as a graph node, for a program whose hooks are nodes of the same graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.base.torch_c import engine_in_this_thread
from smelt.base.torch_private import backward_hooks, set_backward_hooks

_KEEPING = "_smelt_keeps_absent"


def note_keeping(cls: type, results: Any) -> None:
    """These are results of a call of a `torch.autograd.Function` with `set_materialize_grads(False)`.

    Its node does not tell.
    """
    for result in results if isinstance(results, (tuple, list)) else (results,):
        node = result.grad_fn if isinstance(result, torch.Tensor) else None
        if getattr(type(node), "_forward_cls", None) is cls:
            setattr(node, _KEEPING, True)


def keeps_absent(node: Any) -> bool:
    """Whether the backward of an engine node gets None for a result that is not used, and no zeros."""
    return getattr(node, _KEEPING, False)


def gradients(
    outputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor], tangents: Sequence[Any], retain_graph: bool = False
) -> tuple[torch.Tensor | None, ...]:
    """`torch.autograd.grad` that calls no hook of the leaves; calls of them are in the graph, which may run so.

    In this thread: while a program is captured, another would not know that its tensors on CUDA are fake.
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
"""Calls that run the autograd engine."""
