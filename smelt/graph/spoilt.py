"""Tensors that have a history which nobody can go back through: what it needs was overwritten, or used up.

Eager has them all the same, and raises when a backward comes to them.
"""

from __future__ import annotations

from typing import Any

import torch


class _Spoilt(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, anchor: torch.Tensor, text: str) -> torch.Tensor:
        ctx.mark_dirty(tensor)  # the tensor itself, not a view of it
        ctx.set_materialize_grads(False)
        ctx.text = text
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        if gradient is None:  # it comes from a compiled graph, which has no use for the tensor in this backward
            return None, None, None
        raise RuntimeError(ctx.text)


_ANCHOR = torch.zeros((), requires_grad=True)


def spoilt(tensor: torch.Tensor, text: str) -> torch.Tensor:
    """The tensor, which requires gradients now; a backward that comes to it raises an error with this text."""
    with torch.enable_grad():
        out: torch.Tensor = _Spoilt.apply(tensor, _ANCHOR, text)
    return out
