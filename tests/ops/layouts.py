"""The layouts in which the sweeps give a tensor: what lies between and before its elements is poison."""

from __future__ import annotations

import torch

LAYOUTS = ("own", "gaps", "steps", "transposed", "offset")
"""As it is; a gap behind each row; every second element; columns first; one element after the start of its memory."""


def lay_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The values of `x` in that layout; `x` itself where it has none (no dimension, sparse, elements that overlap)."""
    if layout == "own" or not _can(x):
        return x
    if layout == "transposed":
        if x.dim() < 2 or 1 in x.shape[-2:]:
            return x
        made = x.detach().transpose(-1, -2).clone(memory_format=torch.contiguous_format).transpose(-1, -2)
    else:
        made = _room(x, layout)
        made.copy_(x.detach())
    if type(x) is torch.nn.Parameter:
        return torch.nn.Parameter(made, x.requires_grad)
    return made.requires_grad_(x.requires_grad)


def _can(x: torch.Tensor) -> bool:
    return (
        x.layout is torch.strided
        and x.dim() > 0
        and x.numel() > 0
        and not (x.is_quantized or x.is_conj() or x.is_neg())
        and type(x) in (torch.Tensor, torch.nn.Parameter)
    )


def _room(x: torch.Tensor, layout: str) -> torch.Tensor:
    *rows, last = x.shape
    if layout == "gaps":
        return poison([*rows, last + 3], x)[..., :last]
    if layout == "steps":
        return poison([*rows, 2 * last], x)[..., ::2]
    return poison([x.numel() + 1], x)[1:].view(x.shape)


def poison(shape: list[int], like: torch.Tensor) -> torch.Tensor:
    """Memory whose values show in any result that reads them."""
    value = float("nan") if like.is_floating_point() or like.is_complex() else True if like.dtype is torch.bool else 77
    return torch.full(shape, value, dtype=like.dtype, device=like.device)
