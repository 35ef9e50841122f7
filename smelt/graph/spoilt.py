"""Tensors that have a history which nobody can go back through: what it needs was overwritten, or used up, or there is
no derivative.

Eager has them all the same, and raises when a backward comes to them. Others have a history that leads to no tensor
outside of the graph: a backward comes to them, and that is all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.graph.absent import quiet_below


class _Spoilt(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        text: str | None,
        kind: type[RuntimeError],
        anchor: torch.Tensor,
        *origins: torch.Tensor,
    ) -> torch.Tensor:
        ctx.mark_dirty(tensor)  # the tensor itself, not a view of it
        ctx.set_materialize_grads(False)
        ctx.text, ctx.kind = text, kind
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        if gradient is None or ctx.text is None:  # a compiled graph has no use for the tensor in this backward
            for node, _ in ctx.next_functions:
                quiet_below(node)
            return (None,) * len(ctx.needs_input_grad)
        raise ctx.kind(ctx.text)


_ANCHOR = torch.zeros((), device="cpu", requires_grad=True)


def spoilt(
    tensor: torch.Tensor,
    text: str | None,
    origins: Sequence[torch.Tensor] = (),
    kind: type[RuntimeError] = RuntimeError,
) -> torch.Tensor:
    """The tensor, which requires gradients now; a backward that comes to it raises an error with this text.

    Args:
        text: None: no error, and no gradients.
        origins: what its history leads to: a derivative by one of them has to come through it.
    """
    with torch.enable_grad():
        out: torch.Tensor = _Spoilt.apply(tensor, text, kind, _ANCHOR, *origins)
    return out
